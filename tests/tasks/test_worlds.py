"""Worlds are read strictly; whatever their task, it keeps to the interface."""

import dataclasses
import logging
import os
import subprocess
import sys

import numpy as np
import pytest
from scipy.stats import chi2_contingency

from gdro_lab.tasks.reasoning_gym import GymFamily, GymSpec
from gdro_lab.tasks.world import WORLDS, read_world

SHIPPED = sorted(file.stem for file in WORLDS.glob("*.yaml"))
FAMILY = "n_train: 500\nfamilies:\n"
FAMILY += "  - {name: a, operator: '*', n_digits: 10, share: 1, teacher_accuracy: 0.5}\n"
GYM = "task: reasoning_gym\nmax_completion_tokens: 9\n"
GYM += "families: [{name: a, task: gcd, prompt: 'g{numbers:,}'}]\n"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (None, "world"),
        (f"{FAMILY}base: {{step: 9}}\n", r"base\.step"),
        (GYM.replace("'}]", "', share: 0.5}]"), "sum to 1"),
        (GYM.replace("{name: a", "{name: all"), "'all'"),
        (f"{FAMILY}n_trian: 9\n", "n_trian"),
        (f"{FAMILY}n_train: 9\nn_train: 10\n", "n_train"),
        (f"{FAMILY}name: ../../../evilworld\n", "name"),
        (GYM.replace("gcd", "n_queens"), "'n_queens'"),
        (f"{GYM}request: no place for it\n", "problem"),
        ("like: chess\n", "'chess'"),
    ],
)
def test_a_world_that_cannot_be_read_is_refused(tmp_path, text, match):
    file = tmp_path / "own.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ValueError, match=match):
        read_world(str(file))


def test_a_world_like_another_takes_what_it_does_not_say(tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text("like: gym-weak\nbase: {batch_size: 8}\n")
    world = read_world(file)
    assert world.name == "own"
    assert world.spec == read_world("gym-strings").spec
    assert (world.base.steps, world.base.batch_size, world.base.learning_rate) == (250, 8, 3e-3)


@pytest.fixture(scope="module", params=SHIPPED)
def drawn(request):
    world = read_world(request.param)
    spec = world.spec  # what a shipped world draws, but for fewer prompts
    return world, dataclasses.replace(spec, n_train=min(spec.n_train, 300)).draw(3)


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

    # whose base is a model that reads
    asks_freely = getattr(world.spec, "prompt_length", 0) is None
    if not asks_freely:
        prompts, lessons = task.teach(np.random.default_rng(0), 2000)
        assert not set(prompts) & held_out
        assert len({len(prompt) for prompt in [*prompts, *train]}) == 1
        texts = [prompt + lesson for prompt, lesson in zip(prompts, lessons, strict=True)]
        assert list(map(len, task.tokenizer()(texts)["input_ids"])) == list(map(len, texts))
        assert max(map(len, lessons)) < task.max_completion_tokens

    rows = rows[::3]
    columns = {name: [row[name] for row in rows] for name in ("answer", "uid", "family")}
    if asks_freely and world.spec.completion != "tags":
        return  # the next test
    rewarded = [task.correct_texts(row) for row in rows]
    for wrong in (None, "", "7", "{} {}", "{}\n"):
        form = "{}" if wrong is None else wrong
        texts = [form.format(*2 * [row["answer"]]) for row in rows]
        given = [f"<answer>{text}</answer>" for text in texts] if asks_freely else texts
        right = [text in correct for text, correct in zip(texts, rewarded, strict=True)]
        if not (asks_freely and wrong == "{}\n"):  # an answer in tags is stripped
            assert task.reward(given, **columns) == list(map(float, right))
        assert all(right) == (wrong is None)
        assert wrong in (None, "7") or not any(right)  # 7 may be a sum


@pytest.mark.parametrize(
    ("style", "completion", "right", "wrong"),
    [
        ("chat", "tags", "so <answer>{}</answer>", "so {}"),
        ("text", "hash", "6*7=42\n#### {}", "so {}"),
        ("chat", "boxed", "so \\boxed{{{}}}", "so {}"),
        ("text", "last_number", "That makes {}.", "{} and then 987654321"),
        ("chat", "whole", " {} ", "It is {}."),
    ],
)
def test_a_world_says_how_an_answer_is_asked_for_and_read(style, completion, right, wrong):
    spec = dataclasses.replace(read_world("smol").spec, n_train=60, n_eval_per_family=1)
    spec = dataclasses.replace(spec, completion=completion, request=None)
    task = spec.draw(2, style)
    rows = [*task.train, *task.eval]
    columns = {name: [row[name] for row in rows] for name in ("answer", "family")}
    for form, reward in ((right, 1.0), (wrong, 0.0)):
        texts = [form.format(row["answer"]) for row in rows]
        assert task.reward(texts, **columns) == [reward] * len(rows)
        chats = [[{"role": "assistant", "content": text}] for text in texts]
        assert task.reward(chats, **columns) == [reward] * len(rows)
    solved = task.solutions(24)
    assert not {row["uid"] for row in solved} & {row["uid"] for row in rows}
    assert "story" in {row["family"] for row in solved}
    texts = [row["solution"] for row in solved]
    columns = {name: [row[name] for row in solved] for name in columns}
    assert task.reward(texts, **columns) == [1.0] * len(solved)
    other = dataclasses.replace(spec, request="Q: {problem}\nA:").draw(2, style)
    prompt = other.train[0]["prompt"]
    text = prompt if style == "text" else prompt[0]["content"]
    assert text.startswith("Q: ")
    assert text.endswith("\nA:")


def test_gym_tasks_are_the_same_in_every_process():
    task = read_world("gym-strings").spec.draw(1)
    code = "from gdro_lab.tasks.world import read_world; t = read_world('gym-strings').spec.draw(1)"
    command = [sys.executable, "-c", f"{code}; print(t.fingerprint(), t.train[:50], t.eval[-1])"]
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert run.stdout == f"{task.fingerprint()} {task.train[:50]} {task.eval[-1]}\n"


GCD = GymFamily("gcd", "gcd", {"min_value": 1, "max_value": 40}, "g{numbers:,}", 0.6)
SPIRAL = GymFamily("spiral", "spiral_matrix", {"min_n": 2, "max_n": 2}, "s{matrix:}", 0.4)


def two_families(n_train):
    return GymSpec(
        families=(GCD, SPIRAL),
        n_train=n_train,
        n_eval_per_family=100,
        prompt_length=9,
        max_completion_tokens=9,
    )


def test_lessons_training_and_held_out_prompts_have_the_same_answers():
    """Of the 1,600 pairs up to 40, the generator draws those with a common factor first."""
    task = two_families(n_train=1000).draw(0)
    parts = (task.eval, task.train, task.lessons[0])
    answers = [[row["answer"] for row in part if row["family"] == "gcd"] for part in parts]
    assert list(map(len, answers)) == [100, 600, 900]
    table = [[part.count("1"), part.count("2"), len(part)] for part in answers]
    table = [[one, two, size - one - two] for one, two, size in table]
    assert chi2_contingency(table).pvalue > 0.01
    assert {row["prompt"] for row in task.lessons[0]}.isdisjoint(
        row["prompt"] for row in (*task.train, *task.eval)
    )


def test_a_family_takes_half_of_its_prompts_at_most(caplog):
    with caplog.at_level(logging.WARNING):
        task = two_families(n_train=2000).draw(0)
    [message] = caplog.messages
    assert "'gcd'" in message
    assert len(task.train) == 700 + 800
    assert task.shares == {"gcd": 700 / 1500, "spiral": 800 / 1500}
    assert len(task.lessons[0]) == 800
    few = dataclasses.replace(GCD, config={"min_value": 1, "max_value": 12})
    with pytest.raises(ValueError, match="n_eval_per_family"):
        dataclasses.replace(two_families(100), families=(few, SPIRAL)).draw(0)


def test_no_family_of_a_world_is_without_prompts():
    families = tuple(GymFamily(name, name) for name in ("spell_backward", "gcd"))
    spec = GymSpec(families, n_train=6, n_eval_per_family=2, max_completion_tokens=64)
    task = spec.draw(0)
    row = next(row for row in task.train if row["family"] == "gcd")
    written = [f"<answer>{float(row['answer'])}</answer>"]
    assert task.reward(written, [row["answer"]], ["gcd"]) == [1.0]
    with pytest.raises(ValueError, match=r"n_train.*1"):
        dataclasses.replace(spec, n_train=1).draw(0)
