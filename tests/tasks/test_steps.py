"""Questions that need steps: solutions are right, and no question is in two splits."""

import dataclasses
import itertools
import re
from collections import Counter

import numpy as np
import pytest

from gdro_lab.tasks.steps import KINDS, solution_reward
from gdro_lab.tasks.world import read_world

SIGNS = {"g": -1, "l": -1, "f": 1, "b": 1}


def worked_out(prompt):
    """The answer of a question, from its text alone."""
    text = prompt.strip().removesuffix("?")
    if equation := re.fullmatch(r"(\d+)x\+(\d+)=(\d+)", text):
        m, c, total = map(int, equation.groups())
        [x] = [x for x in range(total + 1) if m * x + c == total]
        return x
    if story := re.fullmatch(r"[A-Z](\d+)x(\d+)([a-z])(\d+)", text):
        boxes, pens, verb, others = story.groups()
        return int(boxes) * int(pens) + SIGNS[verb] * int(others)
    assert re.fullmatch(r"\d+([-+*%]\d+)+", text)
    return eval(text)


def identity(prompt):
    """The form of a question, whatever its names and verbs, with its numbers in any order."""
    form = re.sub(r"\d+", "", re.sub("[A-Zglfb]", "w", prompt.strip()))
    return form, tuple(sorted(re.findall(r"\d+", prompt)))


@pytest.fixture(scope="module")
def spec():
    return read_world("steps").spec


@pytest.mark.parametrize("name", KINDS)
def test_solutions_are_right(name):
    rng = np.random.default_rng(0)
    for _ in range(500):
        problem = KINDS[name](rng)
        lines = [line.split("=") for line in problem.solution().split(";")]
        assert len(lines) >= 2
        assert all(eval(expression) == int(value) >= 0 for expression, value in lines)
        assert int(lines[-1][1]) == worked_out(problem.question)


def test_no_question_is_in_two_splits_in_any_order(spec):
    task, other = (spec.draw(seed) for seed in (0, 1))
    train, held_out, others = (
        {identity(row["prompt"]) for row in rows}
        for rows in (task.train, task.eval, other.train + other.eval)
    )
    assert len(train | held_out) == len(task.train) + len(task.eval)
    prompts, _ = task.teach(np.random.default_rng(1), 20_000)
    lessons = set(map(identity, prompts))
    assert len(lessons) > 5000
    assert not lessons & (train | held_out | others)


def test_lessons_keep_to_their_shares(spec):
    changed = [dataclasses.replace(f, lessons=1 / len(spec.families)) for f in spec.families]
    even = dataclasses.replace(spec, families=tuple(changed)).draw(0).without_slips()
    prompts, texts = even.teach(np.random.default_rng(2), 8000)
    [equations] = [f for f in spec.families if f.name == "equation"]
    assert abs(Counter("x+" in prompt for prompt in prompts)[True] - 1000) < 5 * np.sqrt(1000)
    assert equations.lessons != changed[0].lessons
    assert even.fingerprint() != spec.draw(0).fingerprint() == spec.draw(1).fingerprint()
    assert even.reward(texts, texts) == [1.0] * len(texts)


def test_a_teacher_slips_and_continues_from_what_was_said(spec):
    [family] = [family for family in spec.families if family.name == "sum-4"]
    task = dataclasses.replace(
        spec, families=(dataclasses.replace(family, share=1.0, lessons=1.0),), n_train=40
    ).draw(0)
    _, texts = task.teach(np.random.default_rng(3), 2000)
    lines = [re.findall(r"(\d+)\+(\d+)=(\d+)", text) for text in texts]
    assert all(a[2] == b[0] for steps in lines for a, b in itertools.pairwise(steps))
    off = Counter(int(value) - int(a) - int(b) for steps in lines for a, b, value in steps)
    assert set(off) == {0, -10, -1, 1, 10}
    slips = 6000 * (1 - family.accuracy)
    assert abs(off.total() - off[0] - slips) < 5 * np.sqrt(slips)
    assert len(task.train) == 40


def test_the_last_number_of_a_solution_is_judged():
    answer = "40+30=70;7+5=12;70+12=82"
    right = ["47+35=82", "40+30=71;7+5=12;71+12=82", answer]
    wrong = ["82", "47+35=82;", "47+35=082", "82=82", "7+5=12", ""]
    texts = right + wrong
    assert solution_reward(texts, [answer] * len(texts)) == [1.0] * len(right) + [0.0] * len(wrong)


@pytest.mark.parametrize(
    ("change", "named"),
    [({"name": "chess"}, "chess"), ({"share": 0.5}, "share"), ({"lessons": 0.5}, "lessons")],
)
def test_families_that_cannot_be_drawn_are_refused(spec, change, named):
    families = (dataclasses.replace(spec.families[0], **change), *spec.families[1:])
    with pytest.raises(ValueError, match=named):
        dataclasses.replace(spec, families=families)


def test_more_questions_than_there_are_are_refused(spec):
    with pytest.raises(ValueError, match=r"n_train.*'sum-3'"):
        dataclasses.replace(spec, n_train=12_000).draw(0)
