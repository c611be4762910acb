"""The README's loop runs as it is printed, with every method."""

import re

import numpy as np
import pytest
from helpers import own_methods
from processes import REPOSITORY as ROOT

from gdro import GDROController, method_names, next_plan

README = (ROOT / "README.md").read_text("utf-8")
[LOOP] = re.findall(r"```python\n(from gdro import GDROController.*?)```", README, re.DOTALL)
SAMPLING = re.search(r"lambda ids_R: \[.*?\]", LOOP)[0]  # every second rollout is correct
UIDS = [f"prompt {n}" for n in range(80)]
# what the method cannot know by itself
OPTIONS = {"oracle": "rates=lambda uids: np.linspace(0, 1, len(uids))"}


def batches_of(name, uids=UIDS, count=4):
    """What the printed lines leave behind, for batch after batch of one controller."""
    rng = np.random.default_rng(0)
    given = ", ".join([repr(name), *filter(None, [OPTIONS.get(name)])])
    lines = LOOP.replace('"both"', given).replace(SAMPLING, "sample_and_reward")
    imports, begin, step = re.split(r"\n\n|(?<=\))\n(?=plan = )", lines, maxsplit=2)
    names = {"np": np}
    exec(f"{imports}\n{begin}", names)
    names["all_uids"] = uids
    names["sample_and_reward"] = lambda group_ids_R: rng.random(len(group_ids_R)) < 0.4
    for _ in range(count):
        exec(step, names)
        yield dict(names)


method_names()  # registers all


@pytest.mark.parametrize("name", own_methods())
def test_the_printed_loop_runs(name):
    for batch, names in enumerate(batches_of(name), 1):
        plan, observed = names["plan"], names["observed"]
        assert len(set(plan.uids)) == len(plan) == 32
        assert set(plan.uids) <= set(UIDS)
        assert observed.advantages.shape == names["samples"].rewards_R.shape
        assert len(observed.advantages) <= 4 * 32
        assert names["controller"].step == batch
    assert isinstance(observed.ready, bool)


def test_without_a_draw_each_epoch_has_every_prompt_once_and_repeats():
    first, second = (
        [names["plan"].uids for names in batches_of("grpo", uids, 6)] for uids in (UIDS[:64],) * 2
    )
    assert first == second
    for epoch in (first[:2], first[2:4], first[4:]):
        assert sorted([*epoch[0], *epoch[1]]) == sorted(UIDS[:64])
    assert first[:2] != first[2:4]


@pytest.mark.parametrize(
    ("uids", "size", "named"),
    [(UIDS, 0, "size"), (UIDS, 81, "size"), ("abcd", 2, "uids"), ([], 2, "uids")],
)
@pytest.mark.parametrize("name", ["grpo", "pivotal"])
def test_a_batch_that_the_data_cannot_fill_is_refused(name, uids, size, named):
    controller = GDROController(name)
    with pytest.raises(ValueError, match=f"^{named}"):
        next_plan(controller, uids, size)
    assert controller.planned == 0
