"""Random attacks, seeded: each failure is printed as the command that repeats it.

    make fuzz                                              # all kinds, about half an hour on two cores
    python tests/fuzz.py controller --first 17 --count 1   # one of them

controller  plan, observe, draw and extend in random order, with random settings of any method: several plans
            in flight, prompts and rollouts missing, bad input, states saved and restored. Held: the exact
            budget and the bounds, finite numbers, no dependence on batch order, a restored run bit-equal, bad
            input and functions of the method that raise or answer nonsense refused, which changes nothing.
threads     eight threads share a controller of random settings: what it knows of each prompt is what it would
            know from one thread.
worlds      the shipped worlds with values and lines changed at random: read and drawn as they say, or refused
            by a ValueError that ends with what to do.
answers     hostile completions and gold answers for the math reward: 0 or 1, no exception.
verdicts    right answers spelled otherwise (spaces, a full stop, sizes, a set in another order, an equal
            fraction) stay right; with one digit changed they are wrong. 200 cases each.
training    a training killed with SIGKILL at random moments, its checkpoints then damaged at random, and
            resumed: the same weights and record as undisturbed.
arena       an arena killed at a random moment and started again: the same scores.
records     tables and manifests that are written again and again, with SIGKILL meanwhile: always whole.
"""

import argparse
import inspect
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
from ruamel.yaml import YAML
from tqdm import tqdm

from gdro import METHODS, GDROController
from gdro.core import saved
from gdro.core.bins import ESTIMATORS
from gdro.core.uids import as_uids
from gdro.tasks.world import WORLDS, read_world
from gdro.training.files import load_state, save_state
from gdro.training.records import read_manifest, read_table, write_manifest, write_table

ROOT = Path(__file__).parents[1]
POOL = 30  # prompts of a controller's data set
saved.inspect = SimpleNamespace(signature=cache(inspect.signature))  # which takes most of a state_dict

# ---- controller -------------------------------------------------------------------------------


def settings_of(rng: np.random.Generator, methods: Sequence[str]) -> dict:
    """Random settings of a controller of one of the methods; some are impossible, and then refused."""

    def some(**choices: Sequence) -> dict:
        return {name: values[rng.integers(len(values))] for name, values in choices.items()}

    found = some(method=methods, mean_rollouts=[1, 2, 2.5, 4, 7.75], seed=list(range(99)))
    bins = some(k=list(range(1, 10)), history=list(range(1, 60)), estimator=sorted(ESTIMATORS))
    if rng.random() < 0.3:
        bins["edges"] = sorted(rng.random(rng.integers(1, 12)).tolist())
    possible = {"bins": bins | some(hysteresis=[0, 0.03, 0.3])}
    possible |= some(preset=["default", "paper"], n_min=[1, 2, 3], n_max=list(range(2, 20)))
    possible |= some(success_threshold=[0, 0.5], advantage_std=["population", "sample"])
    possible |= some(scale_rewards=["group", "batch", "none"], advantage_clip=[0.5, 5])
    if found["method"] in ("prompt", "both"):
        possible |= some(action=["reweight", "resample"])
    if found["method"] in ("rollout", "both"):
        possible["rollout"] = some(utility=["variance", "loss"], gamma=[0, 0.01, 1], eta=[0, 0.65, 30])
    return found | {name: value for name, value in possible.items() if rng.random() < 0.4}


def made(settings: dict) -> GDROController:
    """The controller, an oracle with pass rates of its own."""
    controller = GDROController(**settings)
    if hasattr(controller.method, "rates"):
        controller.method.rates = lambda keys: keys % 97 / 96
    return controller


def state_of(value: object) -> object:
    """What a checkpoint holds of a controller, to be compared; arrays bit by bit."""
    if isinstance(value, GDROController):
        value = value.state_dict()
    if isinstance(value, dict):
        return {name: state_of(part) for name, part in value.items()}
    return (value.dtype.str, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value


def refused(call: Callable, *arguments) -> None:
    """Hold that the call raises a ValueError."""
    try:
        call(*arguments)
    except ValueError:
        return
    raise AssertionError(f"accepted {arguments}")


SEEN: set[tuple[str, str]] = set()  # methods, and which of their functions have failed and were refused


class Stop(Exception):
    """What a function of a method raises."""


class Twins:
    """Two equal controllers; the second gets every batch in another order and is saved and restored."""

    def __init__(self, seed: int, methods: Sequence[str]):
        self.rng = np.random.default_rng(seed)
        self.settings = settings_of(self.rng, methods)
        self.pair = [made(self.settings), made(self.settings)]
        self.kind = self.rng.choice(["int", "str"])
        self.flying: list[tuple] = []

    def uids(self, positions: np.ndarray) -> np.ndarray:
        """Uids of the data set's prompts."""
        return 100 + positions if self.kind == "int" else np.array([f"prompt {p}" for p in positions])

    def plan(self) -> None:
        """A batch, drawn or random; the twins' plans agree, hold the budget and the bounds."""
        pool, first = self.uids(np.arange(POOL)), self.pair[0]
        if first.method.draws:
            self.fail_in(["draw"], lambda: first.draw(pool, 8))
        if first.method.moves_rollouts:
            self.fail_in(["allocate"], lambda: first.plan(pool[:8]))
        drawn = [twin.draw(pool, 8) for twin in self.pair]
        np.testing.assert_equal(*drawn, "the restored twin draws others")
        positions = self.rng.choice(POOL, 8, replace=False) if drawn[0] is None else drawn[0]
        assert len(positions) == 8
        assert set(positions.tolist()) <= set(range(POOL))
        distinct = len(set(positions.tolist())) == 8
        assert distinct or first.name in ("prompt", "both")  # which may draw a prompt of a small bin twice
        order = self.rng.permutation(8) if distinct else np.arange(8)
        plans = [self.pair[0].plan(self.uids(positions)), self.pair[1].plan(self.uids(positions[order]))]
        assert np.array_equal(plans[0].rollouts[order], plans[1].rollouts), "batch order changed the plan"
        rollouts, run = plans[0].rollouts, self.pair[0].run
        budget = round(run.mean_rollouts * 8)
        least = 1 if self.pair[0].method.rounds else budget
        assert least <= rollouts.sum() <= budget, "budget"
        assert run.n_min <= rollouts.min() <= rollouts.max() <= run.n_max, "bounds"
        self.flying.append((plans, order, positions))

    def observe(self) -> None:
        """One of the plans in flight, with prompts and rollouts missing; then bad input, which is refused."""
        plans, order, positions = self.flying.pop(self.rng.integers(len(self.flying)))
        rollouts = plans[0].rollouts.copy()
        outcome = self.rng.random((8, 400)) < (positions / POOL)[:, None]
        low, high = (0.0, 1.0) if self.rng.random() < 0.5 else (-1.0, 1.0)
        missing = self.rng.random() < 0.3

        def came_back(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            groups = np.repeat(np.arange(8), counts)
            rewards = np.concatenate([outcome[p, :n] for p, n in enumerate(counts)])
            return groups, np.where(rewards, high, low)

        back = np.argsort(order)  # where the second twin has each prompt
        for _ in range(9):
            groups, rewards = came_back(rollouts)
            self.fail_in(["extend"], lambda: self.pair[0].extend(plans[0], groups, rewards))  # noqa: B023
            further = self.pair[0].extend(plans[0], groups, rewards)
            twin = self.pair[1].extend(plans[1], back[groups], rewards)
            assert (further is None) == (twin is None)
            if further is None:
                break
            assert np.array_equal(further[order], twin)
            rollouts += further
            assert rollouts.max() <= self.pair[0].run.n_max, "extend passed n_max"
        budget = round(self.pair[0].run.mean_rollouts * 8)
        assert rollouts.sum() <= budget
        if rollouts.sum() == budget:
            SEEN.add((self.pair[0].name, "all is spent"))
        if missing:
            rollouts = self.rng.integers(0, rollouts + 1)
            rollouts[self.rng.integers(8)] = max(1, rollouts.max())
            rollouts = np.minimum(rollouts, plans[0].rollouts)
            rollouts[np.argmax(plans[0].rollouts)] = 1
        groups, rewards = came_back(rollouts)
        losses = self.rng.normal(size=len(groups))
        # the groups mixed at random, each group's rollouts in their order
        shuffled = self.rng.permutation(groups).argsort(kind="stable").argsort(kind="stable")
        before = state_of(self.pair[0])
        for wrong in self.wrong_inputs(groups, rewards):
            refused(self.pair[0].observe, plans[0], *wrong)
        hooks = ["update", "weights", "advantages", "ready", "report"]
        self.fail_in(hooks, lambda: self.pair[0].observe(plans[0], groups, rewards))
        assert state_of(self.pair[0]) == before, "a refused batch changed the state"
        assert "spoiled" not in plans[0].prompts.memo
        first = self.pair[0].observe(plans[0], groups, rewards, losses=losses)
        given = back[groups][shuffled], rewards[shuffled]
        second = self.pair[1].observe(plans[1], *given, losses=losses[shuffled])
        assert first.ready == second.ready
        assert np.isfinite(first.advantages).all()
        assert (first.weights >= 0).all()
        assert np.array_equal(first.advantages[shuffled], second.advantages), "order changed the advantages"
        assert np.array_equal(first.weights[order], second.weights), "order changed the weights"
        text = json.dumps(first.row, allow_nan=False)
        assert text == json.dumps(second.row), "order changed the record"
        refused(self.pair[0].observe, plans[0], groups, rewards)  # a second time

    def fail_in(self, hooks: list[str], call: Callable) -> None:
        """Now and then one of the method's functions raises or answers nonsense, and nothing has moved."""
        if self.rng.random() < 0.7:
            return
        method, hook, called = self.pair[0].method, str(self.rng.choice(hooks)), []
        raises, works = hook == "update" or self.rng.random() < 0.5, self.rng.random() < 0.5
        good, before = getattr(method, hook), state_of(self.pair[0])

        def bad(*given):
            called.append(hook)
            answer = good(*given) if works or not raises else None
            for memo in (one.memo for one in given if hasattr(one, "memo")):
                memo["spoiled"] = True
            if raises:
                raise Stop
            return answer, np.nan

        setattr(method, hook, bad)
        try:
            call()
        except (ValueError, Stop):
            assert called, "refused before the hook was called"
            SEEN.add((method.name, hook))
        else:
            assert not called, f"{hook} failed and was not noticed"
        finally:
            delattr(method, hook)
        assert state_of(self.pair[0]) == before, f"{hook} failed and the state changed"

    def wrong_inputs(self, groups: np.ndarray, rewards: np.ndarray) -> list[tuple]:
        """Groups and rewards that cannot be."""
        nan, far = rewards.copy(), groups.copy()
        nan[self.rng.integers(len(nan))] = self.rng.choice([np.nan, np.inf])
        far[self.rng.integers(len(far))] = self.rng.choice([-1, 8])
        return [
            (groups, nan),
            (far, rewards),
            (groups[:-1], rewards),
            (np.r_[groups, [groups[0]] * 99], np.r_[rewards, np.ones(99)]),
        ]

    def restore(self) -> None:
        """The second twin from a saved state, which closes its plans: both start anew."""
        with tempfile.TemporaryDirectory() as folder:
            save_state(Path(folder, "state.safetensors"), self.pair[1].state_dict())
            state = load_state(Path(folder, "state.safetensors"))
        self.pair[1] = made(self.settings)
        self.pair[1].load_state_dict(state)
        assert state_of(self.pair[0]) == state_of(self.pair[1]), "the restored state differs"
        self.flying.clear()


def controller(seed: int, *methods: str) -> str:
    """A random sequence of 4 to 12 operations, of any method or of one of those named."""
    try:
        twins = Twins(seed, methods or sorted(METHODS))
    except ValueError:
        return "settings refused"
    for _ in range(twins.rng.integers(4, 13)):
        choice = twins.rng.random()
        if choice < 0.1 and not twins.flying:
            twins.restore()
        elif not twins.flying or (choice < 0.5 and len(twins.flying) < 3):
            twins.plan()
        else:
            twins.observe()
    return "held"


# ---- threads ----------------------------------------------------------------------------------


def threads(seed: int, *methods: str) -> str:
    """Eight threads, six steps each on prompts of their own; now and then a step is refused and repeated."""
    settings = settings_of(np.random.default_rng(seed), methods or sorted(METHODS))
    try:
        shared, alone = made(settings), made(settings)
    except ValueError:
        return "settings refused"

    def steps(controller: GDROController, thread: int) -> list[int]:
        rng, found = np.random.default_rng((seed, thread)), []
        for _ in range(6):
            uids = 1000 * thread + rng.choice(POOL, 8, replace=False)
            groups = np.repeat(np.arange(8), controller.run.n_min)  # the least that each has
            rewards = rng.random(len(groups)) < uids[groups] % 7 / 6
            controller.draw(uids, 4)
            plan = controller.plan(uids)
            if rng.random() < 0.3:
                refused(controller.observe, plan, groups + 8, rewards)
                controller.state_dict()
            controller.extend(plan, groups, rewards)
            found.append(controller.observe(plan, groups, rewards).row["step"])
        return found

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            rows = list(pool.map(partial(steps, shared), range(8)))
    finally:
        sys.setswitchinterval(before)
    for thread in range(8):
        steps(alone, thread)
    assert sorted(np.ravel(rows).tolist()) == list(range(48)), "steps are missing or double"
    assert (shared.step, shared.planned) == (alone.step, alone.planned)
    uids = as_uids([1000 * thread + number for thread in range(8) for number in range(POOL)])
    rows = [one.bins.table.find(uids) for one in (shared, alone)]
    assert np.array_equal(rows[0] < 0, rows[1] < 0), "other prompts than one thread has"
    counts = [one.bins.beliefs.counts(at[at >= 0]) for one, at in zip((shared, alone), rows, strict=True)]
    assert np.array_equal(*counts), "other counts than one thread has"
    made(settings).load_state_dict(shared.state_dict())  # which refuses a table with a key given twice
    return "held"


# ---- worlds -----------------------------------------------------------------------------------

VALUES = [0, 1, -1, 2, 7, 0.5, 1e-9, 1e308, float("inf"), 3000, 10**12, 10**30, None, True, "", "x", "1", "é"]
VALUES += [[], {}, [1], {"a": 1}, "../x", "*" * 300]


def changed(rng: np.random.Generator, fields: dict | list) -> None:
    """Change one value at random, in place: to another, none at all, or a sibling's."""
    keys = list(fields) if isinstance(fields, dict) else list(range(len(fields)))
    if not keys:
        return
    key = keys[rng.integers(len(keys))]
    if isinstance(fields[key], dict | list) and rng.random() < 0.8:
        changed(rng, fields[key])
    elif type(fields[key]) in (int, float) and rng.random() < 0.5:
        fields[key] = type(fields[key])(fields[key] * rng.uniform(0.3, 2))
    elif (how := rng.random()) < 0.6:
        fields[key] = VALUES[rng.integers(len(VALUES))]
    elif how < 0.7:
        del fields[key]
    elif how < 0.85 or isinstance(fields, list):
        fields[key] = fields[keys[rng.integers(len(keys))]]
    else:
        fields[f"{key}x"] = fields[key]


def too_long(*_: object) -> None:
    raise TimeoutError("longer than a minute")


def worlds(seed: int) -> str:
    """A shipped world, changed up to three times, then read and drawn."""
    rng = np.random.default_rng(seed)
    shipped = sorted(WORLDS.glob("*.yaml"))
    text = shipped[rng.integers(len(shipped))].read_text(encoding="utf-8")
    if rng.random() < 0.7:
        fields = YAML(typ="safe", pure=True).load(text)
        fields["n_train"] = min(fields.get("n_train", 1000), 300)  # so that it is quickly drawn
        for _ in range(rng.integers(1, 4)):
            changed(rng, fields)
        text = json.dumps(fields)
    else:
        lines = text.splitlines()
        place = rng.integers(len(lines))
        lines[place : place + rng.integers(2)] = [lines[rng.integers(len(lines))][rng.integers(3) :]]
        text = "\n".join(lines)[: len(text) if rng.random() < 0.7 else rng.integers(len(text))]
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(60)
    try:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "own.yaml").write_text(text)
            world = read_world(Path(folder, "own.yaml"))
            task = world.spec.draw(seed)
    except ValueError as error:
        if not re.search(r"; \w[^;]*$", str(error)):
            raise AssertionError("no remedy") from error
        return "refused"
    finally:
        signal.alarm(0)
    families, each = len(world.spec.families), world.spec.n_eval_per_family
    assert len(task.eval) == families * each, "prompts held out"
    assert len({row["prompt"] for row in [*task.train, *task.eval]}) == len(task.train) + len(task.eval)
    assert world.spec.n_train in (0, len(task.train)), "prompts to train on"
    return "held"


# ---- answers ----------------------------------------------------------------------------------

PIECES = r"""
    \boxed{ } { \frac{ }{ \sqrt{ ^{ _{ \left( \right) ( ) [ ] , ; = \le \pm - + * / ! % \% $ \infty \text{
    \pi x y 0 1 7 -1 .5 1e99999 9**9**9**9 \binom{9}{4} \begin{pmatrix} \end{pmatrix} & \\ \int
    \sum_{n=1}^{\infty} \lim \cup \circ 10^{10^{10}} NaN inf \cdot \times é 中 ٣ 𝟙 <|im_end|> \boxed
    \boxed{} }}}} {{{{ None True __import__('os') 1_000 0x10 7\! \mathrm{cm}
""".split()  # noqa: SIM905


@cache
def math_reward():
    from gdro.tasks.math.rewards import MathReward

    return MathReward()


def answers(seed: int) -> str:
    """Eight random answers, some very long, for a random gold answer."""
    rng = np.random.default_rng(seed)
    texts = []
    for _ in range(9):
        pieces = rng.choice(PIECES, rng.integers(1, 12)).tolist()
        text = ("" if rng.random() < 0.5 else " ").join(pieces) * int(rng.choice([1, 1, 1, 50]))
        texts.append(rf"\boxed{{{text}}}" if rng.random() < 0.8 else text)
    golds = ["7", r"\frac{1}{2}", "(1, 2)", r"\{1, 2\}", texts[0].removeprefix(r"\boxed{")[:200]]
    gold, completions = str(rng.choice(golds)), texts[1:]
    try:
        rewards = math_reward()(completions, [gold] * len(completions))
    except ValueError as error:  # a gold answer that cannot be read is refused, by name
        if "answer" not in str(error):
            raise
        return "gold refused"
    assert set(rewards) <= {0.0, 1.0}, rewards
    return "held"


def shapes(rng: np.random.Generator) -> tuple[str, str]:
    """A random answer key, and another spelling of it by the rules of its shape."""
    a, b, c, k = (int(n) for n in rng.choice(np.arange(2, 98), 4, replace=False))
    found = {
        "number": (f"{a}{b}", f"{a}{b}.0"),
        "thousands": (f"{a}{b + 900}", f"{a},{b + 900}"),
        "fraction": (rf"\frac{{{a}}}{{{b}}}", rf"\frac{{{k * a}}}{{{k * b}}}"),
        "set": (rf"\{{{a}, {b}, {c}\}}", rf"\{{{c}, {a}, {b}\}}"),
        "list": (f"{a}, -{b}", f"-{b}, {a}"),
        "interval": (f"[{a}, {a + b})", rf"{a} \le x < {a + b}"),
        "pair": (f"({a}, -{b})", f"( {a},-{b} )"),
        "surd": (rf"{a}+{b}\sqrt{{{c}}}", rf"\sqrt{{{c}}}\cdot {b}+{a}"),
        "line": (f"y={a}x+{b}", f"{a}x - y + {b} = 0"),
        "product": (f"(x-{a})(x+{b})", f"x^2+{b}x-{a}x-{a * b}"),
        "money": (rf"\${a}.{b + 2:02}", rf"{a}.{b + 2:02} \text{{ dollars}}"),
    }
    return found[str(rng.choice(list(found)))]


def decorate(rng: np.random.Generator, text: str) -> str:
    """The same answer, typeset otherwise."""
    for change in rng.permutation(6)[: rng.integers(1, 4)]:
        if change == 0:
            text = f"  {text} "
        elif change == 1:
            text = text.rstrip(". ") + "."
        elif change == 2:
            text = rf"\displaystyle {text}"
        elif change == 3 and "left" not in text:
            text = re.sub(r"(\\\{|[(\[])", r"\\left\1", re.sub(r"(\\\}|[)\]])", r"\\right\1", text))
        elif change == 4:
            text = text.replace(r"\frac", r"\dfrac").replace(", ", r",\;")
        elif change == 5 and "$" not in text:
            text = f"${text}$"
    return text


def verdicts(seed: int) -> str:
    """Spellings of a right answer stay right, and one digit changed makes it wrong."""
    rng, cases = np.random.default_rng(seed), []
    for _ in range(100):
        gold, other = shapes(rng)
        right = decorate(rng, gold if rng.random() < 0.5 else other)
        place = rng.choice([match.start() for match in re.finditer(r"\d", gold)])
        wrong = gold[:place] + str((int(gold[place]) + rng.integers(1, 10)) % 10) + gold[place + 1 :]
        cases += [(gold, right, 1.0), (gold, decorate(rng, wrong), 0.0)]
    rewards = math_reward()([rf"\boxed{{{answer}}}" for _, answer, _ in cases], [gold for gold, *_ in cases])
    missed = [case for case, reward in zip(cases, rewards, strict=True) if reward != case[2]]
    assert not missed, missed
    return "held"


# ---- training and arena -----------------------------------------------------------------------

PROFILE = {
    "seeds": [0],
    "task": {"n_train": 60, "n_eval_per_family": 4},
    "base": {"steps": 30, "batch_size": 32},
    "train": {"max_steps": 6, "prompts_per_step": 8, "save_steps": 2},
    "variants": {"both": {"method": "both"}, "pivotal": {"method": "pivotal"}},
}
BASES = Path(tempfile.gettempdir()) / "gdro-fuzz-bases"


def run(arguments: str, seconds: float | None = None) -> tuple[int, str]:
    """Run a module of ours; after `seconds`, kill it and all that it started. Returns code and errors."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    command, pipe = [sys.executable, "-m", *arguments.split()], subprocess.PIPE
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )
    try:
        _, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        _, errors = process.communicate()
    return process.returncode, errors


@cache
def undisturbed(command: Callable, left: Callable, *given: str) -> tuple[object, float]:
    """What a command leaves that nothing interrupts, and its seconds."""
    with tempfile.TemporaryDirectory() as place:
        began = time.monotonic()
        run_whole(command(Path(place), *given))
        return left(Path(place)), time.monotonic() - began


def run_whole(arguments: str) -> None:
    """Run it to the end, which must be well."""
    code, errors = run(arguments)
    assert code == 0, errors[-2000:]


def train_command(folder: Path, variant: str) -> str:
    profile = folder / "fuzz.yaml"
    profile.write_text(json.dumps(PROFILE))
    return f"gdro train {profile} {variant} --folder {folder / 'run'} --cache-dir {BASES}"


def trained(folder: Path) -> tuple[str, bytes]:
    """What a training leaves: its record and its weights."""
    files = folder / "run" / "record.jsonl", folder / "run" / "model" / "model.safetensors"
    return files[0].read_text(), files[1].read_bytes()


def damage(folder: Path, rng: np.random.Generator) -> str:
    """Truncate, flip a bit of, delete or exchange a file of the newest checkpoint."""
    checkpoints = sorted(
        folder.glob("run/checkpoints-*/checkpoint-*"), key=lambda path: int(path.name.split("-")[1])
    )
    if not checkpoints:
        return "nothing"
    file = rng.choice(sorted(path for path in checkpoints[-1].rglob("*") if path.is_file()))
    other = checkpoints[0] / file.relative_to(checkpoints[-1])
    how = str(rng.choice(["truncate", "flip", "delete", "exchange"]))
    content = bytearray(file.read_bytes())
    if how == "exchange" and other.is_file() and other != file:
        content = other.read_bytes()
    elif how == "flip" and content:
        content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
    else:
        content = content[: rng.integers(len(content) + 1)]
    file.unlink() if how == "delete" else file.write_bytes(content)
    return f"{how} {file.name} of {len(checkpoints)}"


def training(seed: int) -> str:
    """Kill a training up to three times, each time damage its newest checkpoint, and resume."""
    rng = np.random.default_rng(seed)
    variant = str(rng.choice(sorted(PROFILE["variants"])))
    wanted, seconds = undisturbed(train_command, trained, variant)
    story, kills = [], 0
    with tempfile.TemporaryDirectory() as place:
        folder, arguments = Path(place), train_command(Path(place), variant)
        for _ in range(rng.integers(1, 4)):
            kills += run(arguments, seconds=rng.uniform(0.3, 1.0) * seconds)[0] == -signal.SIGKILL
            story.append(damage(folder, rng) if rng.random() < 0.7 else "kill")
        code, errors = run(arguments)
        if code:
            last = errors.strip().splitlines()[-1]
            assert re.match(r"gdro train: .*or delete", last), f"{story}: {last}"
            for checkpoints in folder.glob("run/checkpoints-*"):
                shutil.rmtree(checkpoints)
            run_whole(arguments)
        assert trained(folder) == wanted, f"{story}: other weights or another record"
    return f"held after {kills} kills"


def arena_command(folder: Path) -> str:
    """A small arena: rare-hard with a base of 20 steps."""
    text = (ROOT / "gdro/tasks/worlds/rare-hard.yaml").read_text(encoding="utf-8")
    (folder / "world.yaml").write_text(text + "base: {steps: 20, batch: 32}\n", encoding="utf-8")
    return (
        f"gdro arena --world {folder}/world.yaml --methods grpo,pivotal --learning-rates 1e-4 --draws 1 "
        f"--steps 5 --prompts 8 --out {folder}/out --bases {folder}/bases"
    )


def scores(folder: Path) -> str:
    """An arena's scores without the two columns of seconds."""
    table = pd.read_csv(folder / "out" / "scores.csv")
    return table.drop(columns=["seconds", "controller_seconds"]).to_csv(index=False)


def arena(seed: int) -> str:
    """Kill an arena at a random moment and start it again."""
    wanted, seconds = undisturbed(arena_command, scores)
    with tempfile.TemporaryDirectory() as place:
        command = arena_command(Path(place))
        killed = run(command, np.random.default_rng(seed).uniform(0.2, 1) * seconds)[0] < 0
        run_whole(command)
        assert scores(Path(place)) == wanted
    return f"held after {int(killed)} kills"


def records(seed: int) -> str:
    """Kill a process that writes a table and a manifest in turns; what is there is old or new, and whole."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as place:
        table, manifest = Path(place, "record.jsonl"), Path(place, "manifest.json")

        def write(version: int) -> None:
            write_table(table, [{"version": version, "row": row} for row in range(2000)])
            write_manifest(manifest, {"version": version})

        write(0)
        for _ in range(4):
            if not (pid := os.fork()):
                for version in range(1, 10**9):
                    write(version)
            time.sleep(rng.uniform(0, 0.2))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            rows = read_table(table)
            assert [row["row"] for row in rows] == list(range(2000)), "rows"
            assert len({row["version"] for row in rows}) == 1, "two versions in one table"
            assert rows[0]["version"] - read_manifest(manifest)["version"] in (0, 1), "the order of writing"
            write(0)
            assert len(os.listdir(place)) == 2, "what the killed one left"
    return "held after 4 kills"


# ---- the command ------------------------------------------------------------------------------

KINDS: dict[str, tuple[Callable[[int], str], int]] = {
    "controller": (controller, 100_000),
    "threads": (threads, 2_000),
    "worlds": (worlds, 1_000),
    "answers": (answers, 300),
    "verdicts": (verdicts, 50),
    "training": (training, 20),
    "arena": (arena, 2),
    "records": (records, 20),
}


def attack(kind: str, seed: int) -> str:
    """Outcome of one attack; for a failure the command that repeats it, and what went wrong."""
    try:
        return KINDS[kind][0](seed)
    except Exception:
        return f"python tests/fuzz.py {kind} --first {seed} --count 1\n{traceback.format_exc(limit=-3)}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", default=list(KINDS), metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--first", type=int, default=0, help="seed of the first attack")
    parser.add_argument("--count", type=int, help="attacks of each kind; by default those of `make fuzz`")
    parser.add_argument("--jobs", type=int, default=2)
    given, failures = parser.parse_args(), 0
    for kind in given.kinds:
        count = given.count or KINDS[kind][1]
        began = time.monotonic(), sum(os.times()[:4])
        seeds, chunk = range(given.first, given.first + count), max(1, min(200, count // (4 * given.jobs)))
        with ProcessPoolExecutor(given.jobs) as pool:
            found = pool.map(partial(attack, kind), seeds, chunksize=chunk)
            outcomes = Counter(tqdm(found, desc=kind, total=count, mininterval=5))
        failed = [outcome for outcome in outcomes if "\n" in outcome]
        counted = sorted(outcomes.items() - {(outcome, 1) for outcome in failed})
        took = time.monotonic() - began[0], sum(os.times()[:4]) - began[1]
        story = ", ".join(f"{n} {outcome}" for outcome, n in counted)
        print(*failed, f"{kind}: {story}; {took[0]:.0f} s, {took[1]:.0f} s of processor time", sep="\n")
        failures += len(failed)
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
