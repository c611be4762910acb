"""Any method: what the controller guarantees, its name, its state, packages of one's own."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gdro import GDROController, Method, find_method, method_names
from gdro.methods.prompt_gdro import PromptGDRO
from gdro.registry import METHODS

DOCS = Path(__file__).parents[2] / "docs/methods.md"
POOL = np.arange(100, 140)


class Answers(Method):
    """Gives back what it is told to."""

    def __init__(self, **answers):
        for name, value in answers.items():
            setattr(self, name, lambda *_, value=value: value)

    draws = property(lambda self: "draw" in vars(self))
    in_rounds = property(lambda self: "extend" in vars(self))
    replays = property(lambda self: "replay" in vars(self))
    moves_rollouts = True


sizes = st.floats(0, 1e308) | st.sampled_from([0.0, 5e-324, 1e-300, 1.0, 1e308])
budgets = [(1, None, None), (2, 2, 2), (2.5, 2, 5), (4, None, None), (4.125, 1, 9), (30, 1, 200)]


@given(st.lists(sizes, min_size=8, max_size=8), st.sampled_from(budgets), st.integers(0, 99))
def test_whatever_a_method_wants_the_budget_is_exact_within_the_bounds(wanted, budget, seed):
    assume(any(wanted))
    mean, low, high = budget
    method = Answers(allocate=np.array(wanted))
    controller = GDROController(method, mean, n_min=low, n_max=high, seed=seed)
    rollouts = controller.plan(np.arange(8)).rollouts
    assert rollouts.dtype.kind == "i"
    assert rollouts.sum() == 8 * mean
    assert controller.run.n_min <= rollouts.min() <= rollouts.max() <= controller.run.n_max
    order = np.argsort(wanted)
    assert (np.diff(rollouts[order]) >= -1).all()  # who wants more gets no less, but for rounding


NONSENSE = {
    "allocate": [[np.nan] * 4, [1.0] * 3, [-1.0, 1, 1, 1], [0.0] * 4],
    "weights": [[np.inf, 1, 1, 1], [-1.0, 1, 1, 1]],
    "advantages": [[np.nan] * 16, [1.0] * 15],
    "draw": [[0, 1, 2], [0, 1, 2, 40]],
    "ready": ["no"],
    "replay": [([0], [np.nan])],
    "extend": [[1.0] * 4, [-1, 1, 1, 1], [0] * 4, [3] * 4, [1] * 3, [5, 0, 0, 0]],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, v) for name, values in NONSENSE.items() for v in values]
)
def test_nonsense_is_refused_by_the_name_of_the_method(name, value):
    rounds = {"allocate": np.full(4, 2)} if name == "extend" else {}
    controller = GDROController(Answers(**rounds | {name: value}), n_max=6)

    def step():
        controller.draw(POOL, 4)
        plan = controller.plan(POOL[:4])
        back = np.repeat(np.arange(4), plan.rollouts), np.ones(plan.rollouts.sum())
        controller.extend(plan, *back)
        controller.observe(plan, *back)
        controller.replay(POOL)

    with pytest.raises(ValueError, match=f"{name} of method 'Answers'"):
        step()


def test_a_method_may_answer_in_numpy_and_have_options_beside_its_parents(monkeypatch):
    class Further(PromptGDRO):
        def __init__(self, mine=1, **options):
            super().__init__(**options)
            self.mine = mine

    monkeypatch.setitem(METHODS, "further", Further)
    assert GDROController("further", mine=2, signal="surrogate").method.mine == 2
    given = {"x": np.array([1.0, np.nan]), "y": (np.float32(2), True), "z": np.inf}
    answers = {"report": given, "ready": np.bool_(True), "replay": [[0], np.ones(1)]}
    controller = GDROController(Answers(**answers))
    row = controller.observe(controller.plan([1]), [0] * 4, [0, 1, 0, 1]).row
    assert {name: row[name] for name in given} == {"x": [1.0, None], "y": [2.0, True], "z": None}
    assert controller.replay([1])[0].tolist() == [0]


PACKAGE = """
from gdro import Method, register

@register("stranger")
class Stranger(Method):
    def allocate(self, prompts, budget, rng):
        return 1.5 - prompts.rate_P
"""


def test_a_package_of_ones_own_is_found_by_its_entry_point(tmp_path, monkeypatch):
    (tmp_path / "stranger_methods.py").write_text(PACKAGE)
    info = tmp_path / "stranger_methods-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger-methods\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gdro.methods]\nstranger = stranger_methods\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert find_method("stranger").__module__ == "stranger_methods"
        assert GDROController("stranger", mean_rollouts=3).plan([1, 2]).rollouts.sum() == 6
        METHODS.pop("stranger")
        sys.modules.pop("stranger_methods")
        assert {"pivotal", "dapo", "stranger"} <= set(method_names())
    finally:
        METHODS.pop("stranger", None)
        sys.modules.pop("stranger_methods", None)


KILLED = """
import os, signal, sys
import numpy as np
from pathlib import Path
from gdro.files import load_state, save_state
exec(sys.argv[1])
controller, state, kill = GDROController("surprise"), Path(sys.argv[2]), int(sys.argv[3])
if state.exists():
    controller.load_state_dict(load_state(state))
pool = np.arange(40)
while controller.step < 8:
    drawn = controller.draw(pool, 8)
    plan = controller.plan(pool[drawn])
    group_ids = np.repeat(np.arange(8), plan.rollouts)
    rewards = np.random.default_rng(controller.step).random(len(group_ids)) < drawn[group_ids] / 40
    batch = controller.observe(plan, group_ids, rewards)
    print(controller.step, drawn.tolist(), batch.advantages.tolist(), flush=True)
    save_state(state, controller.state_dict())
    if controller.step == kill:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_method_written_from_the_docs_alone_is_killed_and_resumes_bit_for_bit(tmp_path):
    text = DOCS.read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))

    def run(state, kill):
        command = [sys.executable, "-c", KILLED, code, tmp_path / state, str(kill)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == (-signal.SIGKILL if kill else 0), done.stderr
        return done.stdout

    assert run("killed", 3) + run("killed", 0) == run("straight", 0)
