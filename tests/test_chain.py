"""The embedded task: what is drawn, what counts as right, what the tokenizer does."""

import dataclasses
import itertools

import numpy as np
import pytest

from gdro.tasks import chain

SMALL = chain.ChainSpec(
    families=(
        chain.Family("star", "*", n_digits=6, share=0.8, teacher_accuracy=0.9),
        chain.Family("caret", "^", n_digits=4, share=0.2, teacher_accuracy=0.4),
    ),
    n_train=60,
    n_eval_per_family=10,
)


@pytest.fixture(scope="module")
def task():
    return chain.make_task(chain.DEFAULT_SPEC, np.random.default_rng(0))


def read_chain(row, task):
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


def test_splits_are_disjoint_and_prompts_distinct(task):
    rows = task.train + task.eval
    assert len({row["uid"] for row in rows}) == len(rows)
    assert len({row["prompt"] for row in rows}) == len(rows)


def test_train_follows_the_shares_and_eval_is_even(task):
    for family in task.spec.families:
        in_train = sum(row["family"] == family.name for row in task.train)
        in_eval = sum(row["family"] == family.name for row in task.eval)
        assert abs(in_train - family.share * task.spec.n_train) < 1
        assert in_eval == task.spec.n_eval_per_family
    assert len(task.train) == task.spec.n_train


def test_answers_follow_the_tables(task):
    for row in task.train[:50] + task.eval:
        assert row["answer"] == read_chain(row, task)


def test_rows_are_plain(task):
    row = task.train[0]
    assert {key: type(value) for key, value in row.items()} == {
        "prompt": str,
        "uid": int,
        "family": str,
        "answer": str,
    }


def test_same_seed_same_task_other_seed_another():
    first, again, other = (chain.make_task(SMALL, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first.train == again.train
    assert first.eval == again.eval
    assert first.fingerprint() == again.fingerprint()
    assert first.fingerprint() != other.fingerprint()


def test_uid_belongs_to_the_prompt_whatever_the_seed():
    uids = {}
    for seed in range(3):
        drawn = chain.make_task(SMALL, np.random.default_rng(seed))
        for row in drawn.train + drawn.eval:
            assert uids.setdefault(row["prompt"], row["uid"]) == row["uid"]


def test_n_train_changes_neither_tables_nor_evaluation():
    fewer = dataclasses.replace(SMALL, n_train=20)
    small, smaller = (chain.make_task(spec, np.random.default_rng(0)) for spec in (SMALL, fewer))
    assert small.eval == smaller.eval
    assert small.fingerprint() == smaller.fingerprint()
    assert len(smaller.train) == 20


def test_drawn_tables_cannot_be_written(task):
    with pytest.raises(ValueError, match="read-only"):
        task.tables[0][0, 0] = 1


@pytest.mark.parametrize(
    ("n_train", "counts"),
    [(10, [5, 3, 2]), (11, [6, 3, 2]), (3, [1, 1, 1])],
)
def test_train_counts_sum_and_round_by_largest_remainder(n_train, counts):
    shares = (0.5, 0.3, 0.2)
    families = tuple(
        chain.Family(sign, sign, n_digits=5, share=share, teacher_accuracy=0.5)
        for sign, share in zip("*+#", shares, strict=True)
    )
    assert chain.train_counts(families, n_train) == counts


def test_teacher_keeps_to_its_accuracy_and_goes_on_from_what_it_said():
    drawn = chain.make_task(SMALL, np.random.default_rng(0))
    prompts, completions = chain.teach(drawn, np.random.default_rng(1), 20_000)
    for index, family in enumerate(SMALL.families):
        said = np.zeros((family.n_digits, family.n_digits))
        right = np.zeros_like(said)
        for prompt, completion in zip(prompts, completions, strict=True):
            if family.operator not in prompt:
                continue
            steps = [line.replace("=", family.operator) for line in completion.split(";")]
            steps = [[int(part) for part in step.split(family.operator)] for step in steps]
            for (_, _, result), (left, _, _) in itertools.pairwise(steps):
                assert result == left
            for left, operand, result in steps:
                said[left, operand] += 1
                right[left, operand] += result == drawn.tables[index][left, operand]
        # five standard errors of a proportion, at its widest
        slack = 5 * 0.5 / np.sqrt(said)
        assert (np.abs(right / said - drawn.accuracies[index]) < slack).all()


def test_teacher_never_shows_an_evaluation_prompt():
    drawn = chain.make_task(SMALL, np.random.default_rng(0))
    prompts, _ = chain.teach(drawn, np.random.default_rng(1), 5_000)
    assert not set(prompts) & {row["prompt"] for row in drawn.eval}


def test_teacher_shows_families_evenly():
    drawn = chain.make_task(SMALL, np.random.default_rng(0))
    prompts, _ = chain.teach(drawn, np.random.default_rng(1), 4_000)
    assert abs(sum("^" in prompt for prompt in prompts) - 2_000) < 5 * np.sqrt(1_000)


@pytest.mark.parametrize(
    ("completion", "right"),
    [
        ("7*4=8;8*3=4", True),
        ("7*4=2;2*3=4", False),  # a lucky last digit after a wrong step
        ("7*4=2;8*3=4", False),
        ("8*3=4", False),
        ("4", False),
        ("7*4=8;8*3=4;", False),
        ("", False),
    ],
)
def test_every_step_must_be_right(completion, right):
    assert chain.check("7*4=8;8*3=4", completion) is right
    assert chain.reward([completion], ["7*4=8;8*3=4"], uid=[3]) == [float(right)]


def test_tokenizer_round_trip_and_reload(task, tmp_path):
    transformers = pytest.importorskip("transformers")
    made = chain.make_tokenizer(task.spec)
    made.save_pretrained(tmp_path)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for tokenizer in (made, loaded):
        assert tokenizer.padding_side == "left"
        assert (tokenizer.pad_token, tokenizer.eos_token) == (chain.PAD_TOKEN, chain.EOS_TOKEN)
        for row in task.eval:
            text = row["prompt"] + row["answer"]
            ids = tokenizer(text + chain.EOS_TOKEN)["input_ids"]
            assert len(ids) == len(text) + 1
            assert ids[-1] == tokenizer.eos_token_id
            assert tokenizer.decode(ids, skip_special_tokens=True) == text
            n_answer = len(tokenizer(row["answer"] + chain.EOS_TOKEN)["input_ids"])
            assert n_answer == task.spec.max_completion_tokens
        padded = tokenizer(["1*2?", "1*2*3?"], padding=True)["input_ids"]
        assert padded[0][:2] == [tokenizer.pad_token_id] * 2


def test_tokenizer_refuses_foreign_text(task):
    pytest.importorskip("transformers")
    with pytest.raises(Exception, match="UNK"):
        chain.make_tokenizer(task.spec)("x")


FAMILY = {"name": "a", "operator": "*", "n_digits": 5, "share": 1.0, "teacher_accuracy": 0.5}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"operator": "7"}, "operator is '7'; give one character"),
        ({"operator": "**"}, r"operator is '\*\*'; give one character"),
        ({"operator": "="}, "operator is '='; give one character"),
        ({"operator": " "}, "operator is ' '; give one character"),
        ({"n_digits": 11}, "n_digits is 11; give an integer from 2 to 10"),
        ({"share": 0.0}, r"share is 0.0; give a number in \(0, 1\]"),
        ({"teacher_accuracy": 1.0}, "teacher_accuracy is 1.0; give a number strictly between"),
    ],
)
def test_bad_families_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        chain.Family(**FAMILY | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"families": ()}, "families is empty; give at least one"),
        ({"families": SMALL.families[:1]}, "shares sum to 0.8; scale them to sum to 1"),
        (
            {
                "families": (
                    SMALL.families[0],
                    dataclasses.replace(SMALL.families[1], operator="*"),
                )
            },
            "families have the operators .* give each family its own operator",
        ),
        ({"n_operands": 1}, "n_operands is 1; give an integer of at least 2"),
        ({"n_train": 1}, "n_train is 1, which leaves family 'caret' .* raise n_train"),
        ({"n_train": 0}, "n_train is 0, which leaves family"),
        ({"n_train": 400}, "n_train is 400 .* family 'star' would need 330 .* lower one"),
        ({"n_eval_per_family": 0}, "n_eval_per_family is 0; give an integer of at least 1"),
        ({"accuracy_concentration": 0}, "accuracy_concentration is 0; give a positive number"),
    ],
)
def test_bad_specs_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMALL, **change)


def test_bad_calls_are_refused(task):
    with pytest.raises(ValueError, match="rng is of type int; give numpy"):
        chain.make_task(SMALL, 0)
    with pytest.raises(ValueError, match="n is 0; give an integer of at least 1"):
        chain.teach(task, np.random.default_rng(0), 0)
    with pytest.raises(ValueError, match="answer has 1 entries for 2 completions; give one per"):
        chain.reward(["1", "2"], ["1"])
    with pytest.raises(ValueError, match=r"completion is of type list; .* give the decoded str"):
        chain.reward([[{"role": "assistant", "content": "1"}]], ["1"])
