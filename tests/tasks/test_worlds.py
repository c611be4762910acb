"""Worlds are read strictly; whatever their task, prompts, lessons and rewards keep to the protocol."""

import os
import subprocess
import sys

import numpy as np
import pytest

from gdro.tasks import chain
from gdro.tasks.world import WORLDS, read_world

SHIPPED = sorted(file.stem for file in WORLDS.glob("*.yaml"))
FAMILY = (
    "families: [{name: a, operator: '*', n_digits: 10, share: 1, teacher_accuracy: 0.5}]\nn_operands: 4\n"
)
GYM = "task: reasoning_gym\nfamilies: [{name: a, task: gcd, prompt: 'g{numbers:,}'%s}]\n"


def test_rare_hard_is_the_embedded_default():
    assert read_world("rare-hard").spec == chain.DEFAULT_SPEC


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (None, "world must be one of"),
        ("[1]", "must hold fields such as"),
        ("families: [", "cannot be read"),
        (f"{FAMILY}n_trian: 9\n", "n_trian: Unexpected keyword"),
        (f"{FAMILY}n_train: 9\nn_train: 10\n", 'duplicate key "n_train"'),
        ("name: a\n", "families: Field required"),
        (f"{FAMILY}name: ../../../evilworld\n", "name: String should match pattern"),
        (f"{FAMILY}name: [1, 2]\n", "name: Input should be a valid string"),
        (f"{FAMILY}base: {{step: 9}}\n", "base: step: Extra inputs"),
        (f"{FAMILY}base: {{learning_rate: 0}}\n", "base: learning_rate: Input should be greater than 0"),
        (f"{FAMILY}task: chess\n", "task of .* must be"),
        ((GYM % "").replace("gcd", "n_queens"), "task of 'a' must be one of"),
        (GYM % "", "prompt_length and answer_length must be given"),
        (GYM % ", share: 0.5", "shares that sum to 1"),
    ],
)
def test_a_world_that_cannot_be_read_is_refused(tmp_path, text, match):
    file = tmp_path / "own.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ValueError, match=match):
        read_world(str(file))


@pytest.fixture(scope="module", params=SHIPPED)
def drawn(request):
    world = read_world(request.param)
    return world, world.spec.draw(3)


def test_every_task_keeps_to_the_protocol(drawn):
    world, task = drawn
    assert world.name in SHIPPED
    held_out, train = ({row["prompt"] for row in rows} for rows in (task.eval, task.train))
    rows = [*task.eval, *task.train]
    assert len({row["uid"] for row in rows}) == len(held_out | train) == len(rows)
    assert sum(task.shares.values()) == pytest.approx(1)
    for family, share in task.shares.items():
        counts = [sum(row["family"] == family for row in part) for part in (task.train, task.eval)]
        assert abs(counts[0] - share * len(task.train)) < 1
        assert counts[1] == world.spec.n_eval_per_family

    prompts, lessons = task.teach(np.random.default_rng(0), 2000)
    assert not set(prompts) & held_out
    assert len({len(prompt) for prompt in [*prompts, *train]}) == 1
    tokenizer = task.tokenizer()
    ids = tokenizer([a + b for a, b in zip(prompts, lessons, strict=True)])["input_ids"]
    assert list(map(len, ids)) == [len(a) + len(b) for a, b in zip(prompts, lessons, strict=True)]
    assert max(map(len, lessons)) < task.max_completion_tokens

    columns = {name: [row[name] for row in rows] for name in ("answer", "uid", "family")}
    assert set(task.reward([row["answer"] for row in rows], **columns)) == {1.0}
    for wrong in ("", "7", "{} {}", "{}\n"):
        given = [wrong.format(row["answer"], row["answer"]) for row in rows]
        right = [text in task.correct_texts(row) for text, row in zip(given, rows, strict=True)]
        assert task.reward(given, **columns) == list(map(float, right))
        assert not any(right) or wrong == "7"  # which is a sum or a greatest common divisor
    assert all(row["answer"] in task.correct_texts(row) for row in rows[:400])


def test_gym_tasks_are_the_same_in_every_process():
    task = read_world("gym-strings").spec.draw(1)
    code = "from gdro.tasks.world import read_world; t = read_world('gym-strings').spec.draw(1); "
    code += "print(t.fingerprint(), t.train[:50], t.eval[-1])"
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout == f"{task.fingerprint()} {task.train[:50]} {task.eval[-1]}\n"


def test_palindromes_of_the_same_letters_are_all_correct():
    task = read_world("gym-strings").spec.draw(0)
    row = next(row for row in task.train if row["family"] == "palin" and len(set(row["answer"])) == 3)
    texts = task.correct_texts(row)
    assert len(texts) == 2
    given = [*texts, row["answer"] + "a", row["answer"][:-1] + "?"]
    assert task.reward(given, [row["answer"]] * 4, ["palin"] * 4) == [1, 1, 0, 0]
