"""The seam: what the controller guarantees for any method. tests/test_fuzz.py plays all registered ones."""

import copy
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import own_method
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gdro import METHODS, DifficultyBins, GDROController, Method, PromptGDRO, RolloutGDRO, register

DOCS = Path(__file__).parents[2] / "docs/methods.md"
EXAMPLE = Path(own_method.__file__)
POOL = np.arange(100, 140)


def state_of(controller):
    """The whole state as text."""
    return json.dumps(controller.state_dict(), default=lambda array: [str(array.dtype), array.tolist()])


OUTSIDE = {  # of each option with bounds, values beyond them; tests/test_refusals.py tries what is no number
    DifficultyBins: {"k": [0, 2.0, True, 10**10], "history": [0, 10**10], "hysteresis": [-0.1, 1]}
    | {"edges": [(), (0.5, 0.5), (0.7, 0.5), (0.0, 0.5), (0.5, 1.0), (0.5, np.nan), ((0.5,),)]},
    PromptGDRO: {"num_bins": [0, 2.5], "eta": [-1, np.nan, 1e308], "gamma": [1.01, -0.01], "ema": [0, 1.5]}
    | {"clip": [0, np.nan], "max_weight": [-1], "share_floor": [0], "debias": [1]},
    RolloutGDRO: {"num_bins": [0], "n_min": [0], "n_max": [1, 10**10], "mean_rollouts": [13, 1.5, np.nan]}
    | {"gamma": [1.01], "eta": [np.inf, 1e308], "ema": [0], "price_lr": [-1, 1e308], "bonus": [-0.1]},
    METHODS["pivotal"]: {"k": [0], "epsilon": [0.0, 2.0]},
    METHODS["pilot_commit"]: {"pilot": [0], "low": [1.5], "high": [0.1]},
    METHODS["spo"]: {"epsilon": [0.0]},
    METHODS["mopps"]: {"target": [1.5], "candidates": [0]},
    METHODS["reinforce_ada"]: {"keep": [1]},
    METHODS["coba"]: {"kappa": [9.5], "tau": [0.0], "window": [0]},
    METHODS["dbb"]: {"discount": [0.0, 1.5]},
    METHODS["bbg"]: {"k": [0], "threshold": [-1]},
    METHODS["passk_training"]: {"k": [0]},
    METHODS["nsr"]: {"positive": [-1]},
    METHODS["power"]: {"a": [-1], "b": [np.nan], "epsilon": [0]},
    METHODS["pooled"]: {"past": [-1]},
}


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [(kind, name, v) for kind, options in OUTSIDE.items() for name, vs in options.items() for v in vs],
)
def test_options_outside_their_domain_are_refused(kind, name, value):
    with pytest.raises(ValueError, match=rf"^{kind.__name__}\({name}=…\) must .*, got .*; "):
        kind(**{name: value})


# Any method


class Answers(Method):
    """Gives back what it is told to."""

    def __init__(self, **answers):
        for name, value in answers.items():
            setattr(self, name, lambda *_, value=value: value)

    draws = property(lambda self: "draw" in vars(self))
    moves_rollouts = True


sizes = st.floats(0, 1e308) | st.sampled_from([0.0, 5e-324, 1e-300, 1.0, 1e308])


@given(
    st.lists(sizes, min_size=8, max_size=8),
    st.sampled_from([(1, None, None), (2, 2, 2), (2.5, 2, 5), (4, None, None), (4.125, 1, 9), (30, 1, 200)]),
    st.integers(0, 99),
)
def test_whatever_a_method_wants_the_budget_is_exact_within_the_bounds(wanted, budget, seed):
    assume(any(wanted))
    mean, low, high = budget
    controller = GDROController(Answers(allocate=np.array(wanted)), mean, n_min=low, n_max=high, seed=seed)
    rollouts = controller.plan(np.arange(8)).rollouts
    assert rollouts.dtype.kind == "i"
    assert rollouts.sum() == 8 * mean
    assert controller.run.n_min <= rollouts.min() <= rollouts.max() <= controller.run.n_max
    order = np.argsort(wanted)
    assert (np.diff(rollouts[order]) >= -1).all()  # who wants more gets no less, but for rounding


@given(st.lists(st.floats(0.05, 0.95), min_size=6, max_size=6), st.floats(1e-3, 1.0))
def test_what_fits_is_given_in_proportion(wanted, scale):
    wanted = np.array(wanted)
    share = 60 * wanted / wanted.sum()
    controller = GDROController(Answers(allocate=scale * wanted), 10, n_min=1, n_max=60)
    assume(share.min() >= 1)
    assert np.abs(controller.plan(np.arange(6)).rollouts - share).max() < 1 + 1e-6


def no_numbers(size):
    """Answers that are not `size` finite numbers."""
    one_off = [[np.inf, *[1.0] * (size - 1)], [1.0] * (size - 1), [[1.0] * size] * size, [[1], [1, 2]]]
    return [[np.nan] * size, ["a"] * size, [1j] * size, *one_off, None, 1.0]


ROWS = [None, [1.0], {"price": np.nan}, {"own": np.inf}, {"step": 3}, {"share": []}, {"own": np.ones(2)}]
NONSENSE = {
    "allocate": [*no_numbers(4), [-1.0, 1, 1, 1], [0.0] * 4],
    "weights": [*no_numbers(4), [-1.0, 1, 1, 1], [1e200] * 4],
    "advantages": [*no_numbers(16), [-1e200] * 16],
    "report": ROWS,
    "ready": [None, "yes", 2, np.ones(2)],
    "draw": [[0, 1, 2], [0, 1, 2, 40], [-1, 0, 1, 2], [0.0, 1.0, 2.0, 3.0], [True] * 4, "abcd", 3],
}


@pytest.mark.parametrize(("name", "value"), [(name, v) for name, values in NONSENSE.items() for v in values])
def test_nonsense_is_refused_by_the_name_of_the_method(name, value):
    controller = GDROController(Answers(**{name: value}))

    def step():
        controller.draw(POOL, 4)
        plan = controller.plan(POOL[:4])
        controller.observe(plan, np.repeat(np.arange(4), plan.rollouts), np.ones(16))

    with pytest.raises(ValueError, match=r"of method 'Answers' must be "):
        step()


def in_rounds(further, **settings):
    """A controller whose first round gives 2 rollouts to each prompt."""
    method = Answers(allocate=np.full(4, 2), extend=further)
    method.rounds = True
    return GDROController(method, **settings)


WRONG_ROUNDS = [[1.0] * 4, [-1, 1, 1, 1], [0] * 4, [3] * 4, [1] * 3, "some", [5, 0, 0, 0]]


@pytest.mark.parametrize("further", WRONG_ROUNDS)
def test_further_rollouts_are_held_to_the_budget_and_to_n_max(further):
    controller = in_rounds(further, n_max=6)
    with pytest.raises(ValueError, match=r"extend of method 'Answers' must be "):
        controller.extend(controller.plan(POOL[:4]), np.repeat(np.arange(4), 2), np.ones(8))


def test_rounds_spend_what_the_first_left():
    controller = in_rounds(np.array([2, 0, 0, 0]))
    plan, rollouts = controller.plan(POOL[:4]), np.full(4, 2)
    assert plan.rollouts.tolist() == [2] * 4
    for _ in range(4):
        rollouts += controller.extend(plan, np.repeat(np.arange(4), rollouts), np.ones(rollouts.sum()))
    assert rollouts.tolist() == [10, 2, 2, 2]
    everything = np.repeat(np.arange(4), rollouts), np.ones(16)
    assert controller.extend(plan, *everything) is None
    assert controller.observe(plan, *everything).weights.tolist() == [1.0] * 4


def test_what_a_hook_is_given_is_whole_and_read_only():
    given = []

    class Looks(Method):
        rounds = True

        def draw(self, pool, *_):
            given.append(pool)

        def allocate(self, prompts, *_):
            given.append(prompts)
            return np.full(len(prompts), 2)

        extend = update = draw

    controller = GDROController(Looks())
    for _ in range(2):
        controller.draw(POOL, 4)
        plan = controller.plan(POOL[:4])
        back = np.repeat(np.arange(4), plan.rollouts), np.ones(8)
        assert controller.extend(plan, *back) is None
        controller.observe(plan, *back, losses=np.ones(8))
    kinds = [type(one).__name__ for one in given]
    assert kinds == ["Prompts", "Prompts", "Batch", "Batch"] * 2
    for one in given:
        names = [name for name in dir(one) if name.endswith(("_P", "_R"))]
        arrays = {name: a for name in names if (a := getattr(one, name)) is not None}  # losses in `extend`
        assert all(array.shape in ((len(one),), (8,)) for array in arrays.values()), arrays
        assert not any(array.flags.writeable for array in arrays.values())
        with pytest.raises(AttributeError):
            one.bins_P = np.zeros(4)
    first, second = given[2:4], given[6:8]
    assert [one.bins_after_P.tolist() for one in first] == [[-1] * 4, [8] * 4]  # in `extend` no bin has moved
    assert [one.bins_P.tolist() for one in first + second] == [[-1] * 4, [8] * 4, [8] * 4, [8] * 4]
    assert [one.first_visit_P.all() for one in first + second] == [True, True, False, False]


def test_a_method_may_leave_the_order_to_the_trainer():
    assert GDROController(Answers(draw=None)).draw(POOL, 4) is None


# The registry, and a method from outside the package


def test_names_are_taken_once_and_go_to_methods_alone():
    for name in ("Other", "GRPO"):  # a copy of the package's own, with its class's name, is refused too
        with pytest.raises(ValueError, match=r"method name 'grpo' is taken by gdro\.methods\.grpo\.GRPO"):
            register("grpo")(type(name, (Method,), {}))
    with pytest.raises(TypeError, match="decorates a subclass of Method"):
        register("mine")(PromptGDRO)
    with pytest.raises(TypeError, match="register takes a name"):
        register(Answers)
    assert {"grpo", "prompt", "rollout", "both"} <= set(METHODS)
    assert "mine" not in METHODS


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"method": "ppo"}, r"method must be one of \[.*'grpo'.*\], got 'ppo'"),
        ({"method": "grpo", "floor": 1}, r"options of method 'grpo' must be arguments of GRPO, got \{'flo"),
        ({"method": Answers(), "floor": 1}, r"options must be given to the constructor of 'Answers'"),
    ],
)
def test_unknown_methods_and_options_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        GDROController(**arguments)


KEPT = {"scores": np.zeros(2), "seen": np.zeros(0, int), "batches": 0, "price": 0.0, "word": "", "on": False}


class Keeps(Method):
    """Keeps a state, into which `update` puts something else."""

    state, by_prompt = tuple(KEPT), ("seen",)

    def __init__(self, start=(), later=()):
        self.given, self.later = {**KEPT, **dict(start)}, dict(later)

    def start(self, run):
        vars(self).update(copy.deepcopy(self.given))

    def update(self, batch):
        self.seen = self.at_least(self.seen, batch.rows_P)
        self.seen[batch.rows_P] += 1
        vars(self).update(self.later)


def test_states_of_every_kind_come_back():
    changed = {
        "scores": np.array([1.0, 2.0]),
        "batches": 3,
        "price": np.float64(0.5),
        "word": "a",
        "on": True,
    }
    running, resumed = GDROController(Keeps(later=changed)), GDROController(Keeps())
    plan = running.plan([5, 6, 7])
    running.observe(plan, [0, 2], [1, 0])
    resumed.load_state_dict(running.state_dict())
    assert state_of(resumed) == state_of(running)
    assert resumed.method.seen[:3].tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("name", "value"),
    [("scores", [0.0, 1.0]), ("scores", None), ("scores", np.array(["a"])), ("seen", 0), ("batches", -1)],
)
def test_a_state_that_no_checkpoint_can_hold_is_refused_before_the_first_step(name, value):
    with pytest.raises(ValueError, match=rf"Keeps.{name} must be an array of numbers, .*; set it in `start`"):
        GDROController(Keeps(start={name: value}))


OTHERS = {"scores": np.zeros(2, int), "batches": 0.5, "price": 1, "seen": np.zeros(9)}


@pytest.mark.parametrize(("name", "value"), [("scores", np.zeros(3)), *OTHERS.items()])
def test_a_state_that_becomes_another_is_refused_in_the_step_that_changes_it(name, value):
    controller = GDROController(Keeps(later={name: value}))
    plan, before = controller.plan([5, 6]), state_of(controller)
    with pytest.raises(ValueError, match=r"must stay as `start` made it|Keeps.batches must be .* got -1"):
        controller.observe(plan, [0, 1], [1, 0])
    assert state_of(controller) == before


def test_a_state_that_is_not_finite_is_not_saved():
    controller = GDROController(Keeps(later={"price": np.nan}))
    controller.observe(controller.plan([5]), [0], [1])
    with pytest.raises(ValueError, match=r"Keeps.price must be finite, got nan; keep NaN"):
        controller.state_dict()


KILLED = """
import os, signal, sys
import numpy as np
from pathlib import Path
from gdro.training.files import load_state, save_state
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
    code = "\n".join(re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL))

    def run(state, kill):
        command = [sys.executable, "-c", KILLED, code, tmp_path / state, str(kill)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == (-signal.SIGKILL if kill else 0), done.stderr
        return done.stdout

    assert run("killed", 3) + run("killed", 0) == run("straight", 0)


def test_the_example_gives_rollouts_by_failure_rate():
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, check=True)
    table = {line.split()[0]: [float(x) for x in line.split()[1:]] for line in done.stdout.splitlines()[1:]}
    assert table["grpo"] == [4.0, 4.0, 4.0]
    assert table["failures"][0] < table["failures"][1] < table["failures"][2]
    assert sum(table["failures"]) == pytest.approx(12, abs=0.2)
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 40
