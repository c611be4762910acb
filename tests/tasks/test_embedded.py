"""The embedded task: what is drawn, what counts as correct, what the tokenizer does."""

import dataclasses
import itertools

import numpy as np
import pytest

from gdro_lab.tasks import embedded

SMALL = embedded.EmbeddedSpec(
    families=(
        embedded.EmbeddedFamily("star", "*", n_digits=6, share=0.8, teacher_accuracy=0.9),
        embedded.EmbeddedFamily("caret", "^", n_digits=4, share=0.2, teacher_accuracy=0.4),
    ),
    n_train=60,
    n_eval_per_family=10,
)


def worked_out(row, task):
    """The right answer of a row, worked out from its prompt alone."""
    index = [family.name for family in task.spec.families].index(row["family"])
    operator = task.spec.families[index].operator
    digits = [int(digit) for digit in row["prompt"].removesuffix("?").split(operator)]
    left, lines = digits[0], []
    for right in digits[1:]:
        result = int(task.tables[index][left, right])
        lines.append(f"{left}{operator}{right}={result}")
        left = result
    return ";".join(lines)


def test_answers_are_those_of_the_tables():
    """That splits are disjoint and follow the shares: test_worlds.py, of every task."""
    task = embedded.DEFAULT_SPEC.draw(0)
    rows = task.train + task.eval
    assert len(task.train) == task.spec.n_train
    assert all(row["answer"] == worked_out(row, task) for row in rows)


def test_same_seed_same_task_other_seed_another():
    first, again, other = (SMALL.draw(seed) for seed in (1, 1, 2))
    assert (first.train, first.eval) == (again.train, again.eval)
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()
    # the bits of 0.1.0, on which recorded runs and cached bases depend
    assert first.fingerprint().startswith("2a5b110539c5af91")
    # a uid belongs to its prompt, whatever the seed
    uids = {row["prompt"]: row["uid"] for row in other.train + other.eval}
    rows = first.train + first.eval
    assert all(uids.get(row["prompt"], row["uid"]) == row["uid"] for row in rows)
    # the number of training prompts changes neither tables nor evaluation
    fewer = dataclasses.replace(SMALL, n_train=20).draw(1)
    assert (fewer.eval, fewer.fingerprint()) == (first.eval, first.fingerprint())


def test_teacher_keeps_to_its_accuracy_and_continues_from_what_it_said():
    drawn = SMALL.draw(0)
    prompts, completions = drawn.teach(np.random.default_rng(1), 20_000)
    assert not set(prompts) & {row["prompt"] for row in drawn.eval}
    # families evenly, whatever their shares
    assert abs(sum("^" in prompt for prompt in prompts) - 10_000) < 5 * np.sqrt(5_000)
    for index, family in enumerate(SMALL.families):
        said = np.zeros((family.n_digits, family.n_digits))
        right = np.zeros_like(said)
        for prompt, completion in zip(prompts, completions, strict=True):
            if family.operator not in prompt:
                continue
            steps = [line.replace("=", family.operator) for line in completion.split(";")]
            steps = [[int(part) for part in step.split(family.operator)] for step in steps]
            assert all(result == left for (_, _, result), (left, _, _) in itertools.pairwise(steps))
            for left, operand, result in steps:
                said[left, operand] += 1
                right[left, operand] += result == drawn.tables[index][left, operand]
        # five standard errors of a proportion, at its widest
        slack = 5 * 0.5 / np.sqrt(said)
        assert (np.abs(right / said - drawn.accuracies[index]) < slack).all()


def test_every_step_must_be_correct():
    # such as a correct last digit after a wrong step
    wrong = ["7*4=2;2*3=4", "7*4=2;8*3=4", "8*3=4", "4", "7*4=8;8*3=4;", ""]
    correct = "7*4=8;8*3=4"
    assert embedded.reward([correct, *wrong], [correct] * 7, uid=[3] * 7) == [1.0] + [0.0] * 6


@pytest.mark.parametrize(
    ("of", "change", "named"),
    [
        (SMALL.families[0], {"operator": "**"}, "operator"),
        (SMALL, {"families": SMALL.families[:1]}, "sum to 1"),
        (SMALL, {"n_train": 400}, "n_train"),  # more than there are
    ],
)
def test_what_cannot_be_drawn_is_refused(of, change, named):
    with pytest.raises(ValueError, match=named):
        dataclasses.replace(of, **change)
