"""Math problems: named sets, files of every kind, how keys are read, bad rows, splits."""

import json
import re
from collections import Counter

import datasets
import pytest
from helpers import write_lines
from processes import REPOSITORY as ROOT
from pydantic import ValidationError
from tiny_models import byte_tokenizer

from gdro_lab.experiments.profile import load_profile
from gdro_lab.tasks import MathChoice, load_split
from gdro_lab.tasks import math_data as tasks
from gdro_lab.tasks.math_sets import MATH_SPECS

FIXTURES = ROOT / "tests" / "fixtures" / "math"
BOXED = "\n\nPlease reason step by step, and put your final answer within \\boxed{}."
LETTER = (
    "\n\nPlease reason step by step, and put the letter of the correct choice within \\boxed{}."
)
PATHS = {name: str(FIXTURES / f"{name}.jsonl") for name in MATH_SPECS}


def fixture_rows(name):
    lines = (FIXTURES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def load_math(name, path, style="chat", completion="boxed"):
    problems, dropped = tasks.read_problems(tasks.named_source(name, path))
    return [problem.row(style, None, completion) for problem in problems], dropped


def split(evaluated=False, chat=False, **fields):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = tokenizer.chat_template if chat else None
    return load_split(MathChoice(kind="math", **fields), tokenizer, held_out=evaluated)


ANSWERS = {
    "dapo": ["19", "8", "4", "8", "15", "7"],
    "math500": ["\\frac{3}{4}", "[2,3)", "2i", "120"],
    "aime2024": ["019", "401", "032"],
    "aime2025": ["36", "36", "36"],
    "amc": ["25", "11", "5.0"],
    "minerva": ["4", "\\sqrt{\\frac{k}{m}}", "\\frac{\\ln 2}{2}", "1.6 \\times 10^{-19}"],
    "olympiad": ["$3,-3$", "$729$", "$\\frac{12}{\\pi}$", "$2^{n-1}$"],
    "gsm8k": ["36", "1450", "50", "3"],
    "gsm8k-test": ["20", "20"],
}


@pytest.fixture(scope="module")
def read():
    """name → (rows, dropped) of each data set."""
    return {name: load_math(name, PATHS[name], style="text") for name in MATH_SPECS}


def test_answers_and_problems_are_found_in_every_data_set(read):
    assert sorted(path.stem for path in FIXTURES.glob("*.jsonl")) == sorted(MATH_SPECS)
    assert sorted([*ANSWERS, "gpqa"]) == sorted(MATH_SPECS)
    for name, answers in ANSWERS.items():
        rows, dropped = read[name]
        assert [row["answer"] for row in rows] == answers
        assert dropped == []
        assert all(row["uid"].startswith(f"{name}/") and row["dataset"] == name for row in rows)
        assert len({row["uid"] for row in rows}) == len(rows)
        schema = MATH_SPECS[name].schemas[0]
        if schema.prepare is None:
            problem = fixture_rows(name)[0][schema.problem[0]]
            assert rows[0]["prompt"] == problem + BOXED


@pytest.mark.parametrize(
    ("name", "families", "solutions"),
    [
        ("gsm8k", "2 2 4 3", ["12*2=24; 12+24=36", "450*3=1350; 1350+100=1450", ..., None]),
        ("gsm8k-test", "2 3", ["30/6=5; 4*5=20", "3*4=12; 12+5=17; 17+3=20"]),
    ],
)
def test_word_problems_have_families_and_worked_solutions(name, families, solutions):
    rows, _ = load_math(name, PATHS[name], completion="hash")
    assert [row["family"] for row in rows] == [f"{name}-{family}" for family in families.split()]
    for row, solution in zip(rows, solutions, strict=True):
        if solution is not ...:
            worked = solution and f"{solution}\n#### {row['answer']}"
            assert row["solution"] == worked


def test_copies_with_other_columns_are_known(tmp_path):
    row = {"problem": "Give $2+2$.", "solution": "First $\\boxed{4}$. It is \\boxed{\\frac{8}{2}}."}
    rows, _ = load_math("minerva", write_lines(tmp_path / "minerva.jsonl", [row]))
    assert rows[0]["answer"] == "\\frac{8}{2}"


def test_a_uid_names_the_problem_wherever_it_is(tmp_path, read):
    backward = write_lines(tmp_path / "backward.jsonl", fixture_rows("minerva")[::-1])
    theirs, _ = load_math("minerva", backward)
    ours = [row["uid"] for row in read["minerva"][0]]
    assert ours == [row["uid"] for row in theirs][::-1]
    assert ours[0] == "minerva/6dfcf0bcb0c26b939e2bb38c"  # in every process, version and year


def test_choices_are_shuffled_by_uid_alone(tmp_path, read):
    rows = fixture_rows("gpqa")
    shown = read["gpqa"][0]
    for row, seen in zip(rows, shown, strict=True):
        assert f"{seen['answer']}) {row['Correct Answer'].strip()}\n" in seen["prompt"]
        assert all(f") {row[f'Incorrect Answer {i}']}\n" in seen["prompt"] for i in (1, 2, 3))
        assert seen["prompt"].endswith(LETTER)
    last = write_lines(tmp_path / "last.jsonl", rows[-1:])
    assert load_math("gpqa", last, style="text")[0][0] == shown[-1]
    many = [rows[0] | {"Question": f"Question {number}?"} for number in range(40)]
    shuffled, _ = load_math("gpqa", write_lines(tmp_path / "many.jsonl", many))
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
        ("gsm8k", broken("gsm8k", 1, answer="It is 3."), "row 1: .*hash"),
    ],
)
def test_bad_rows_are_left_out_and_named(tmp_path, name, rows, message):
    good = fixture_rows(name)
    more = [row for row in good if row not in rows]
    kept, dropped = load_math(name, write_lines(tmp_path / "rows.jsonl", [*rows, *more]))
    assert (len(kept), len(dropped)) == (len(rows) + len(more) - 1, 1)
    assert re.search(message, dropped[0])
    bad = [row for row in rows if row not in good] or [rows[0] | {"question": ""}]
    with pytest.raises(ValueError, match=name):
        load_math(name, write_lines(tmp_path / "bad.jsonl", bad))


OWN = [
    {"question": "What is 3+4?", "answer": "7", "level": "easy"},
    {"question": "What is 3-4?", "answer": "-1", "level": "hard"},
    {"question": "Wie viel ist 007·1?", "answer": "007", "level": "hard"},
]


def test_the_hub_is_asked_for_what_the_profile_names(monkeypatch):
    asked = []

    def load(*place, **options):
        asked.append((place, options))
        return datasets.Dataset.from_list(OWN)

    monkeypatch.setattr(datasets, "load_dataset", load)
    source = {"source": "someone/sums", "config": "small", "split": "test"}
    read = split(train=source, evaluate=["amc"], paths=PATHS)
    assert {row["dataset"] for row in read.rows} == {"sums"}
    assert asked == [(("someone/sums", "small"), {"split": "test"})]
    found = datasets.Dataset.from_list(fixture_rows("gsm8k-test"))
    monkeypatch.setattr(datasets, "load_dataset", lambda *place, **_: found)
    hashed = {"source": "someone/own", "answer": "hash"}
    read = split(evaluated=True, train="someone/sums", evaluate=["gsm8k-test", hashed])
    assert [row["answer"] for row in read.rows][:2] == ["20", "20"]
    assert {row["family"] for row in read.rows} == {"gsm8k-test-2", "gsm8k-test-3", "own"}


@pytest.mark.parametrize("source", ["gsm8kk", "not/there.jsonl", "a/b/c"])
def test_a_source_that_is_nowhere_is_refused(source):
    with pytest.raises(ValueError, match=source):
        split(train=source, evaluate=["math500"], paths=PATHS)


def test_a_split_reads_what_is_asked_for(monkeypatch):
    """Training does not touch gated evaluation sets; scores keep all rows."""
    paths = {name: PATHS[name] for name in ("dapo", "minerva")}
    fields = {"train": "dapo", "evaluate": ["minerva", "gpqa"], "paths": paths}
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: 1 / 0)
    train = split(**fields, max_prompt_tokens=140)
    assert max(len(row["prompt"]) for row in train.rows) == train.max_prompt_tokens <= 140
    assert len(train.rows) + len(train.dropped) == len(fixture_rows("dapo"))
    assert "a prompt of 1" in train.dropped[0]
    assert train.reward.signed
    with pytest.raises(ValueError, match=r"Idavidrein/gpqa.*zero"):  # from the hub
        split(evaluated=True, **fields)
    paths["gpqa"] = PATHS["gpqa"]
    held_out = split(evaluated=True, **fields)
    assert {row["family"] for row in held_out.rows} == {"minerva", "gpqa"}
    assert held_out.reward.signed  # as in training: success_threshold is of both
    given = [f"\\boxed{{{row['answer']}}}" for row in held_out.rows]
    assert held_out.reward(given, [row["answer"] for row in held_out.rows]) == [1.0] * len(given)
    report = held_out.report()
    assert (report["rows"], report["dropped"]) == (len(given), [])
    assert report["outcomes"]["correct"] == len(given)
    with pytest.raises(ValueError, match=r"task\.max_prompt_tokens"):
        split(**fields, max_prompt_tokens=1)


@pytest.fixture
def sums(tmp_path):
    """A file of 60 problems in three families, of which one is rare."""
    families = ["add"] * 30 + ["sub"] * 20 + ["mul"] * 10
    signs = {"add": "+", "sub": "-", "mul": "*"}
    rows = [
        {"question": f"{i} {signs[family]} {i % 7}?", "answer": i, "family": family}
        for i, family in enumerate(families)
    ]
    return write_lines(tmp_path / "sums.jsonl", rows)


def own(path, **fields):
    columns = {"problem": "question", "answer": "answer", "group": "family"}
    return {"train": str(path), "columns": columns} | fields


def uids(split):
    return {row["uid"] for row in split.rows}


def test_problems_are_set_apart_by_family(tmp_path, sums):
    fields = own(sums, held_out=4)
    train = split(**fields)
    held_out = split(evaluated=True, **fields)
    assert Counter(row["family"] for row in held_out.rows) == dict.fromkeys(
        ("add", "sub", "mul"), 4
    )
    assert Counter(row["family"] for row in train.rows) == {"add": 26, "sub": 16, "mul": 6}
    assert not uids(train) & uids(held_out)
    # another seed is another draw; the order of the file is none
    assert uids(split(evaluated=True, **fields, seed=1)) != uids(held_out)
    lines = sums.read_text().splitlines()
    (tmp_path / "other").mkdir()
    backward = tmp_path / "other" / "sums.jsonl"
    backward.write_text("\n".join(reversed(lines)))
    assert uids(split(evaluated=True, **own(backward, held_out=4))) == uids(held_out)
    with pytest.raises(ValueError, match=r"held_out.*10 problems.*'mul'"):
        split(**own(sums, held_out=10))


def test_training_problems_are_drawn(sums):
    fields = own(sums, train_size=20, evaluate=["math500"], paths=PATHS)
    drawn = split(**fields)
    assert len(drawn.rows) == 20
    assert uids(split(**fields)) == uids(drawn)
    assert uids(split(**fields, seed=1)) != uids(drawn)
    # a problem that was drawn out of few is drawn out of fewer
    assert uids(split(**fields | {"train_size": 10})) < uids(drawn)
    with pytest.raises(ValueError, match="train_size asks for 61 problems of 60"):
        split(**fields | {"train_size": 61})


def test_what_repeats_or_is_evaluated_is_not_trained_on(tmp_path):
    texts = ["What is  3+4 ?", "what is $3+4$", "What is 3-4?", "What is 1.5+1?", "What is 15+1?"]
    texts += ["f'(2)?", "f''(2)?", "What is 1:5+1?"]
    rows = [{"question": text, "answer": max(1, place)} for place, text in enumerate(texts)]
    train = write_lines(tmp_path / "train.jsonl", rows)
    seen = write_lines(tmp_path / "seen.jsonl", [{"question": "WHAT IS 3-4", "answer": "-1"}])
    fields = {"train": str(train), "evaluate": [str(seen)]}
    kept = split(**fields)
    assert [row["answer"] for row in kept.rows] == ["1", "3", "4", "5", "6", "7"]
    assert ["repeats" in fault for fault in kept.dropped] == [True, False]
    assert "seen/" in kept.dropped[1]
    assert len(split(evaluated=True, **fields).rows) == 1
    copy = write_lines(tmp_path / "copy.jsonl", rows)
    with pytest.raises(ValueError, match=r"task\.train must have problems"):
        split(train=str(train), evaluate=[str(copy)])


def test_a_request_of_ones_own_and_worked_solutions(tmp_path):
    rows = [
        {"question": "What is 3+4?", "answer": "7", "worked": "3+4=7"},
        {"question": "What is 3-4?", "answer": "-1", "worked": "Below 0, so\n#### -1"},
        {"question": "What is 3*4?", "answer": "12"},
    ]
    fields = {
        "train": str(write_lines(tmp_path / "own.jsonl", rows)),
        "columns": {"solution": "worked"},
        "evaluate": ["math500"],
        "paths": PATHS,
        "completion": "hash",
        "request": "Q: {problem}\nEnd with #### and \\boxed{} is not read.",
    }
    train = split(chat=True, **fields)
    prompt = "Q: What is 3+4?\nEnd with #### and \\boxed{} is not read."
    assert train.rows[0]["prompt"] == [{"role": "user", "content": prompt}]
    solutions = ["3+4=7\n#### 7", "Below 0, so\n#### -1", None]
    assert [row["solution"] for row in train.rows] == solutions
    assert train.reward(["3+4=7\n#### 7", "\\boxed{7}"], ["7", "7"]) == [1.0, -1.0]
    assert not any("solution" in row for row in split(**fields | {"columns": {}}).rows)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"train": ["gsm8k", {"source": "x/gsm8k"}]}, "differ in their names"),
        ({"train": "gsm8k", "evaluate": ["gsm8k"], "held_out": 3}, "differ in their names"),
        ({"evaluate": []}, "task.evaluate"),
        ({"columns": {"problem": ["question", "answer"]}, "train": "a/b"}, "columns.problem"),
        ({"paths": {"gsm9k": "x"}}, "gsm9k"),
        ({"request": "Solve it."}, "problem"),
        ({"train": "a/b", "answer": "letter"}, "answer"),
        ({"train": [{"source": "gpqa", "answer": "boxed"}]}, "answer"),
    ],
)
def test_a_choice_that_cannot_be_meant_is_refused(fields, message):
    with pytest.raises(ValidationError, match=message):
        MathChoice(kind="math", **fields)


def test_the_example_profile_has_ten_problems(monkeypatch):
    monkeypatch.chdir(ROOT)
    task = load_profile("examples/ten_problems.yaml").task
    train = load_split(task, byte_tokenizer(), held_out=False)
    held_out = load_split(task, byte_tokenizer(), held_out=True)
    assert (len(train.rows), len(held_out.rows), train.dropped) == (7, 3, [])
    answers = [row["answer"] for row in train.rows]
    assert train.reward([f"It is {answer}." for answer in answers], answers) == [1.0] * 7


def test_a_named_set_with_other_columns_keeps_its_own_way_to_read_a_key():
    columns = {"problem": "question", "answer": "answer"}
    train = [{"source": "gsm8k", "columns": columns}]
    paths = {"gsm8k": PATHS["gsm8k"]}
    rows = split(train=train, evaluate=["amc"], paths=paths | {"amc": PATHS["amc"]}).rows
    assert [row["answer"] for row in rows] == ANSWERS["gsm8k"]


def test_a_source_may_have_columns_and_a_reader_of_its_own(tmp_path):
    german = [{"Frage": "Wie viel ist 3+4?", "Antwort": "7 (Dinge)"}]
    plain = [{"question": "What is 2+2?", "answer": "#### 4"}]
    copy = [{"q": "What is 1+1?", "a": "so \\boxed{2}"}]
    files = {"german": german, "plain": plain, "amc": copy}
    paths = {
        name: str(write_lines(tmp_path / f"{name}.jsonl", rows)) for name, rows in files.items()
    }
    columns = {"problem": "Frage", "answer": "Antwort"}
    named = {"problem": "q", "answer": "a"}
    train = [
        {"source": paths["german"], "columns": columns, "answer": "number"},
        paths["plain"],
        {"source": "amc", "name": "mine", "columns": named, "answer": "boxed"},
    ]
    copies = {"amc": paths["amc"], "math500": PATHS["math500"]}
    rows = split(train=train, answer="hash", evaluate=["math500"], paths=copies).rows
    found = [(row["dataset"], row["answer"]) for row in rows]
    assert found == [("german", "7"), ("plain", "4"), ("mine", "2")]


def test_a_group_of_two_evaluated_sources_is_two_families(tmp_path):
    rows = [{"question": "1+1?", "answer": "2", "level": "1"}]
    files = [str(write_lines(tmp_path / f"{name}.jsonl", rows)) for name in "bc"]
    fields = {"columns": {"group": "level"}, "train": "someone/sums", "evaluate": files}
    found = split(evaluated=True, **fields).rows
    assert [row["family"] for row in found] == ["b-1", "c-1"]
