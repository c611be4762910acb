"""The math data sets: schemas, uids, choices, bad rows."""

import json
import re
from pathlib import Path

import datasets
import pytest
from tiny_models import byte_tokenizer

from gdro_lab.tasks import MathChoice, load_split
from gdro_lab.tasks import math_data as tasks

FIXTURES = Path(__file__).parents[1] / "fixtures" / "math"


def fixture(name):
    return FIXTURES / f"{name}.jsonl"


def fixture_rows(name):
    return [json.loads(line) for line in fixture(name).read_text(encoding="utf-8").splitlines()]


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


ANSWERS = {
    "dapo": ["19", "8", "4", "8", "15", "7"],
    "math500": ["\\frac{3}{4}", "[2,3)", "2i", "120"],
    "aime2024": ["019", "401", "032"],
    "aime2025": ["36", "36", "36"],
    "amc": ["25", "11", "5.0"],
    "minerva": ["4", "\\sqrt{\\frac{k}{m}}", "\\frac{\\ln 2}{2}", "1.6 \\times 10^{-19}"],
    "olympiad": ["$3,-3$", "$729$", "$\\frac{12}{\\pi}$", "$2^{n-1}$"],
}


@pytest.fixture(scope="module")
def read():
    """name → (rows, dropped) of each data set."""
    return {name: tasks.load_math(name, fixture(name), style="text") for name in tasks.MATH_SPECS}


def test_answers_and_problems_are_found_in_every_data_set(read):
    assert sorted(path.stem for path in FIXTURES.glob("*.jsonl")) == sorted(tasks.MATH_SPECS)
    assert sorted([*ANSWERS, "gpqa"]) == sorted(tasks.MATH_SPECS)
    for name, answers in ANSWERS.items():
        rows, dropped = read[name]
        assert [row["answer"] for row in rows] == answers
        assert dropped == []
        assert all(row["uid"].startswith(f"{name}/") and row["dataset"] == name for row in rows)
        assert len({row["uid"] for row in rows}) == len(rows)
        problem = fixture_rows(name)[0][tasks.MATH_SPECS[name].problem]
        assert rows[0]["prompt"] == f"{problem}\n\n{tasks.MATH_REQUEST}"


def test_a_uid_names_the_problem_wherever_it_is(tmp_path, read):
    backward = write_jsonl(tmp_path / "backward.jsonl", fixture_rows("minerva")[::-1])
    theirs, _ = tasks.load_math("minerva", backward)
    ours = [row["uid"] for row in read["minerva"][0]]
    assert ours == [row["uid"] for row in theirs][::-1]
    assert ours[0] == "minerva/6dfcf0bcb0c26b939e2bb38c"  # in every process, version and year


def test_choices_are_shuffled_by_uid_alone(tmp_path, read):
    rows, (shown, _) = fixture_rows("gpqa"), read["gpqa"]
    for row, seen in zip(rows, shown, strict=True):
        assert f"{seen['answer']}) {row['Correct Answer'].strip()}\n" in seen["prompt"]
        assert all(f") {row[f'Incorrect Answer {i}']}\n" in seen["prompt"] for i in (1, 2, 3))
        assert seen["prompt"].endswith(tasks.CHOICE_REQUEST)
    last = write_jsonl(tmp_path / "last.jsonl", rows[-1:])
    assert tasks.load_math("gpqa", last, style="text")[0][0] == shown[-1]
    many = [rows[0] | {"Question": f"Question {number}?"} for number in range(40)]
    shuffled, _ = tasks.load_math("gpqa", write_jsonl(tmp_path / "many.jsonl", many))
    assert {row["answer"] for row in shuffled} == set("ABCD")


def broken(name, row, **change):
    rows = fixture_rows(name)
    rows[row] |= change
    return rows


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("amc", broken("amc", 1, question=" "), "row 1"),
        ("amc", broken("amc", 2, answer=float("nan")), "row 2"),
        ("amc", fixture_rows("amc") + fixture_rows("amc")[:1], "row 3"),
        ("amc", [{"problem": "1+1?", "id": 1}], "'answer'"),
        ("olympiad", broken("olympiad", 0, final_answer=[]), "answer"),
        ("gpqa", broken("gpqa", 0, **{"Incorrect Answer 2": None}), "choices"),
    ],
)
def test_bad_rows_are_left_out_and_handed_over(monkeypatch, name, rows, message):
    source, good = [], fixture_rows(name)
    monkeypatch.setattr(tasks, "_open_source", lambda *_: source)
    source[:] = [*rows, good[0] | {tasks.MATH_SPECS[name].problem: "One that is good."}]
    kept, dropped = tasks.load_math(name)
    assert (len(kept), len(dropped)) == (len(rows), 1)
    assert re.search(message, dropped[0])
    source[:] = [row for row in rows if row not in good]
    with pytest.raises(ValueError, match=name):
        tasks.load_math(name)


def test_a_split_reads_what_is_asked_for(monkeypatch):
    """Training does not touch evaluation sets, which may be gated; scores keep all rows."""
    paths = {name: str(fixture(name)) for name in ("dapo", "minerva")}
    fields = {"kind": "math", "train": "dapo", "evaluate": ["minerva", "gpqa"], "paths": paths}
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = None
    files = datasets.load_dataset
    no_hub = lambda kind, *_, **given: files(kind, **given) if "data_files" in given else 1 / 0  # noqa: E731
    monkeypatch.setattr(datasets, "load_dataset", no_hub)
    train = load_split(MathChoice(**fields, max_prompt_tokens=140), tokenizer, held_out=False)
    assert max(len(row["prompt"]) for row in train.rows) <= train.max_prompt_tokens <= 140
    assert len(train.rows) + len(train.dropped) == len(fixture_rows("dapo"))
    assert "a prompt of 1" in train.dropped[0]
    assert train.reward.signed
    with pytest.raises(ZeroDivisionError):  # gpqa, from the hub
        load_split(MathChoice(**fields), tokenizer, held_out=True)
    paths["gpqa"] = str(fixture("gpqa"))
    held_out = load_split(MathChoice(**fields), tokenizer, held_out=True)
    assert {row["family"] for row in held_out.rows} == {"minerva", "gpqa"}
    given = [f"\\boxed{{{row['answer']}}}" for row in held_out.rows]
    assert held_out.reward(given, [row["answer"] for row in held_out.rows]) == [1.0] * len(given)
    report = held_out.report()
    assert (report["rows"], report["dropped"]) == (len(given), [])
    assert report["outcomes"]["correct"] == len(given)
    with pytest.raises(ValueError, match=r"task\.max_prompt_tokens"):
        load_split(MathChoice(**fields, max_prompt_tokens=1), tokenizer, held_out=False)
