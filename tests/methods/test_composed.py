"""Methods out of parts: each part is that of the method it names."""

import numpy as np
import pytest
from helpers import play

from gdro import GDROController
from gdro_lab.experiments.oracles import loop_controller
from gdro_lab.experiments.spelling import read_spelling

UIDS, RATES = np.arange(60), np.linspace(0, 1, 60)


def played(controller):
    """What a controller draws, plans and answers in five steps on prompts of known pass rates."""
    told = []
    for step in range(5):
        drawn = controller.draw(UIDS, 12)
        uids = UIDS[np.arange(12) + step if drawn is None else drawn]
        plan = controller.plan(uids)
        luck, groups = np.random.default_rng(step).random(999), np.zeros(0, int)
        further = plan.rollouts
        while further is not None:
            groups = np.concatenate([groups, np.repeat(np.arange(12), further)])
            rewards = luck[: len(groups)] < RATES[uids][groups]
            further = controller.extend(plan, groups, rewards)
        batch = controller.observe(plan, groups, rewards.astype(float))
        told.append([part.tolist() for part in (uids, groups, batch.advantages, batch.weights)])
    return told


@pytest.mark.parametrize(
    ("whole", "parts"),
    [
        ("grpo", "composed"),
        ("mopps", "composed:draw=mopps"),
        ("vip", "composed:rollouts=vip"),
        ("dars", "composed:rollouts=dars:advantages=dars"),
        ("f_grpo", "composed:weights=f_grpo"),
        ("pkpo:k=4", "composed:advantages.pkpo.k=4"),
        ("pivotal", "composed:draw=pivotal:advantages=pivotal"),
        ("pivotal:epsilon=1", "composed:draw.pivotal.epsilon=1:advantages=pivotal"),
        ("prompt:prompt.eta=3", "composed:weights.prompt.prompt.eta=3"),
    ],
)
def test_the_parts_of_a_method_make_that_method(whole, parts):
    both = [loop_controller(read_spelling(text), 4, seed=1) for text in (whole, parts)]
    told = [played(controller) for controller in both]
    assert told[0] == told[1]
    again = loop_controller(read_spelling(parts), 4, seed=1)
    again.load_state_dict(both[1].state_dict())
    assert played(again) == played(both[1]) == played(both[0])


def test_a_composed_method_has_the_needs_and_the_report_of_its_parts():
    losses = GDROController("composed", weights={"prompt": {"signal": "surrogate"}})
    assert losses.method.needs_losses
    assert GDROController("composed", rollouts="vip").run.n_min == 3
    drawing = GDROController("composed", draw="pivotal")
    _, observed = play(drawing, 0, [1, 2], [0.5, 0.5])
    assert observed.row["k"] == drawing.method.draw_part.k_now
