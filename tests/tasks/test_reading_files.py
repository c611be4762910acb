"""Files of every kind: what is in them arrives as it was written, or one sentence refuses them."""

import bz2
import datetime
import decimal
import gzip
import json
import lzma
import os

import datasets
import pyarrow
import pytest
from pyarrow import parquet

from gdro_lab.tasks import MathChoice
from gdro_lab.tasks import math_data as tasks
from gdro_lab.tasks.math_sets import Schema
from gdro_lab.tasks.sources import find_place, read_raw_rows

ROWS = [
    {"question": "What is 3+4?", "answer": "7"},
    {"question": "Wie viel ist 007·1, als „Code“?", "answer": "007"},
    {"question": "When?", "answer": "2020-01-01"},
]
LINES = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS)
PRETTY = json.dumps(ROWS, indent=2)
CELLS = [["question", "answer"], *([row["question"], row["answer"]] for row in ROWS)]


def table(delimiter, end="\n", quote='"'):
    return end.join(delimiter.join(f"{quote}{cell}{quote}" for cell in row) for row in CELLS)


def read(path, schema=None, **options):
    schema = schema or Schema(("question",), "answer", "whole")
    return tasks.read_problems(tasks.own_source(str(path), schema, **options))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("own.jsonl", LINES),
        ("own.ndjson", LINES + "\n\n"),
        ("own.json", LINES),
        ("OWN.JSONL", LINES),
        ("crlf.jsonl", LINES.replace("\n", "\r\n")),
        ("cr.jsonl", LINES.replace("\n", "\r")),
        ("bom.jsonl", b"\xef\xbb\xbf" + LINES.encode()),
        ("wide.jsonl", LINES.encode("utf-16")),
        ("own.json", PRETTY),
        ("array.jsonl", PRETTY),
        ("named.json", json.dumps({"examples": ROWS})),
        ("named.json", json.dumps({"version": 1.1, "data": ROWS, "tags": ["a"]})),
        ("by_id.json", json.dumps({f"id-{number}": row for number, row in enumerate(ROWS)})),
        ("columns.json", json.dumps({name: [row[name] for row in ROWS] for name in ROWS[0]})),
        ("own.jsonl.gz", gzip.compress(LINES.encode())),
        ("own.json.bz2", bz2.compress(LINES.encode())),
        ("own.jsonl.xz", lzma.compress(LINES.encode())),
        ("own.csv.gz", gzip.compress(table(",").encode())),
        ("own.csv", table(",")),
        ("own.csv", table(";")),
        ("own.csv", table("|")),
        ("own.csv", table("\t")),
        ("own.tsv", table("\t")),
        ("own.tsv", table("\t", quote="")),
        ("own.csv", table(";", quote="")),
        ("excel.csv", table(";", "\r\n").encode("utf-8-sig")),
        ("mac.csv", table(",", "\r")),
        ("wide.csv", table("\t").encode("utf-16")),
        ("blank.csv", "\n" + table(",") + "\n\n\n"),
        ("spaced.csv", table(", ")),
    ],
)
def test_every_kind_of_file_has_the_same_rows(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    problems, dropped = read(path, name="own")
    assert dropped == []
    found = [(problem.text, problem.answer) for problem in problems]
    assert found == [(row["question"], row["answer"]) for row in ROWS]
    assert [problem.label for problem in problems] == [f"own, row {place}" for place in range(3)]
    assert list(tmp_path.iterdir()) == [path]  # and nothing was written beside it


@pytest.mark.parametrize(
    "key",
    [
        *("007", "2020-01-01", "2020-01-01 10:00:00", "NA", "null", "true", "1e-7", "+5", "1_000"),
        *("2.50", "1,450", "12345678901234567890123456789", "0x10", "inf", "-", "½", " ", "1/2"),
    ],
)
@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "tsv", "parquet", "folder"])
def test_a_text_arrives_as_it_was_written(tmp_path, kind, key):
    """datasets and pandas make dates, numbers and gaps of some of these."""
    rows = [{"question": "Which?", "answer": key}, {"question": "And?", "answer": key}]
    path = tmp_path / f"own.{kind}"
    if kind == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif kind in ("csv", "tsv", "folder"):
        sign = "\t" if kind == "tsv" else ","
        lines = [["question", "answer"], *([row["question"], row["answer"]] for row in rows)]
        if kind == "folder":
            path.mkdir()
        file = path / "train.csv" if kind == "folder" else path
        file.write_text("\n".join(sign.join(f'"{cell}"' for cell in line) for line in lines))
    else:
        path.write_text(json.dumps(rows))
    if key == " ":
        with pytest.raises(ValueError, match="answer"):
            read(path)
    else:
        assert {problem.answer for problem in read(path)[0]} == {key}


@pytest.mark.parametrize(
    "number",
    ["7", "7.0", "2.50", "1e-7", "1E5", "-0.1", "123456789012345678901234567890", "1" * 5000],
)
def test_a_number_in_json_arrives_as_it_was_written(tmp_path, number):
    lines = f'{{"question": "One?", "answer": {number}}}\n{{"question": "Two?", "answer": "x"}}\n'
    (tmp_path / "own.jsonl").write_text(lines + '{"question": "Three?", "answer": 7.5}')
    assert [problem.answer for problem in read(tmp_path / "own.jsonl")[0]] == [number, "x", "7.5"]


@pytest.mark.parametrize(
    ("kind", "values", "keys"),
    [
        (pyarrow.int64(), [7, None, 2**60], ["7", str(2**60)]),  # no 7.0 where one is missing
        (pyarrow.float32(), [0.1, 7.0, None], ["0.1", "7.0"]),
        (
            pyarrow.float64(),
            [0.1, float("nan"), 1e-7, 2.0**50],
            ["0.1", "1e-07", "1125899906842624.0"],
        ),
        (pyarrow.decimal128(10, 2), [decimal.Decimal("2.50")], ["2.50"]),
        (pyarrow.large_string(), ["007"], ["007"]),
        (pyarrow.dictionary(pyarrow.int8(), pyarrow.string()), ["a", "b"], ["a", "b"]),
    ],
)
def test_numbers_of_parquet(tmp_path, kind, values, keys):
    questions = pyarrow.array([f"{place}?" for place in range(len(values))])
    made = pyarrow.table({"question": questions, "answer": pyarrow.array(values, kind)})
    parquet.write_table(made, tmp_path / "own.parquet")
    problems, dropped = read(tmp_path / "own.parquet")
    assert [problem.answer for problem in problems] == keys
    assert len(dropped) == len(values) - len(keys)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"style": "rule", "ground_truth": "9"}, "answer.style"),
        (True, "bool"),
        (["7", "8"], "several"),
        ([["7"]], "list"),
        (b"7", "bytes"),
        (datetime.date(2020, 1, 1), "date"),
        (datetime.datetime(2020, 1, 1), "datetime"),
    ],
)
@pytest.mark.parametrize("column", ["question", "answer"])
def test_what_is_neither_text_nor_number_is_refused_with_its_row(tmp_path, column, value, kind):
    good = {"question": "1+1?", "answer": "2"}
    if isinstance(value, bytes | datetime.date):
        rows = [good | {column: value}]
        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "own.parquet")
        path, row = tmp_path / "own.parquet", "row 0"
    else:
        path, row = tmp_path / "own.jsonl", "row 1"
        path.write_text("\n".join(map(json.dumps, [good, good | {column: value}])))
    if column == "question":
        kind = {"several": "chat", "list": "chat", "answer.style": "question.style"}.get(kind, kind)
    with pytest.raises(ValueError, match=f"own, {row}: .*{column}.*{kind}") as caught:
        read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("own.txt", b"1+1=2", r"must end in \.jsonl.*own\.txt"),
        ("own.xlsx", b"PK", r"must end in \.jsonl.*own\.xlsx"),
        ("own.jsonl.zip", b"PK", r"must end in \.jsonl.*own\.jsonl\.zip"),
        ("own.jsonl", b'{"q": "1+1?", "a": "2"}\n', r"'question', 'answer'.*'q', 'a'.*columns"),
        ("own.jsonl", b'{"question": "1+1?", "answer": ""}\n', "no usable row.*row 0"),
        ("own.jsonl", b"", "no usable row.*no rows"),
        ("own.jsonl", b"question: 1+1?\n", "no usable row.*row 0.*JSON"),
        ("own.jsonl", b"[" * 100_000, "nested too deeply"),
        ("own.json", b"[" * 100_000, "nested too deeply"),
        ("own.json", b'{"question": "1+1?"}', "needs the columns"),
        ("own.json", b"[", "JSON"),
        ("own.json", b"", "JSON"),
        ("own.json", b"7", "no usable row.*object"),
        ("own.json", b'[{"question": "1+1?", "answer": 2},\n{"question": 1 "}]', "JSON.*line 2"),
        ("own.json", b'{"dev": [{"question": 1}], "test": [{"question": 1}]}', "dev.*test"),
        ("own.csv", b"", "no rows"),
        ("own.csv", b"question,answer\n", "no rows"),
        ("own.csv", b"question;answer\n1+1?,2\n", "no usable row"),
        ("own.tsv", b'question\tanswer\n"1+1?"\t"2"\n"3" + 4?\t"7"\n', "cannot be read"),
        ("own.csv", b"question,answer\n1,000 + 2?,1002\n", "cells"),
        ("own.csv", b"question,answer,answer\n1?,2,3\n", "twice"),
        ("own.csv", b"question,answer\n\xff,1\n", "UTF-8"),
        ("latin.csv", "question,answer\nWie groß?,1\n".encode("latin-1"), "UTF-8"),
        ("own.csv", b'question,answer\n"1+1?,2\n3+3?,6\n', "unexpected end"),
        ("own.csv", b'question,answer\n"' + b"a" * 200_000, "cannot be read"),
        ("own.parquet", b"PAR", "own.parquet.*cannot be read"),
        ("own.jsonl.gz", b"\x1f\x8bno", "cannot be read"),
        ("own.jsonl.gz", gzip.compress(LINES.encode())[:-9], "cannot be read"),
        ("own.jsonl.xz", lzma.compress(LINES.encode())[:-9], "cannot be read"),
        ("own.jsonl", b'{"question": "1+1?", "answer": 2, "answer": 3}', "twice.*answer"),
        ("own.jsonl", b'{"question": "\\ud801", "answer": "1"}', "half of a character"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        read(tmp_path / name)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700
    str(caught.value).encode()  # it can be printed


@pytest.mark.parametrize("fields", [{"split": "test"}, {"config": "small"}])
def test_a_file_has_no_splits(tmp_path, fields):
    (tmp_path / "own.jsonl").write_text(LINES)
    with pytest.raises(ValueError, match="neither config nor split"):
        read(tmp_path / "own.jsonl", **fields)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "own.jsonl")
    with pytest.raises(ValueError, match="regular file"):
        read(tmp_path / "own.jsonl")


@pytest.mark.parametrize("name", ["own.tsv", "own.csv", "own.json"])
def test_columns_of_a_table_without_a_header_are_named_by_their_places(tmp_path, name):
    rows = [["3+4?", "7", "easy"], ["He said „1“, so?", "1", "hard"]]
    sign = "\t" if name == "own.tsv" else ";"
    text = "\n".join(map(sign.join, rows))
    (tmp_path / name).write_text(json.dumps(rows) if name == "own.json" else text)
    places = {"problem": 0, "answer": 1, "group": 2}
    choice = MathChoice(
        kind="math", train=str(tmp_path / name), columns=places, evaluate=["someone/sums"]
    )
    (source,) = choice.find_sources(choice.training_choices)
    problems, dropped = tasks.read_problems(source)
    found = [[problem.text, problem.answer, problem.family] for problem in problems]
    assert (found, dropped) == (rows, [])


def test_a_comma_may_separate_decimals(tmp_path):
    rows = "question;answer\nA?;4,33\nB?;1.250,50\nC?;1.000\nD?;2.5\n"
    (tmp_path / "own.csv").write_text(rows)
    schema = Schema(("question",), "answer", "number", decimal=",")
    problems, _ = read(tmp_path / "own.csv", schema)
    assert [problem.answer for problem in problems] == ["4.33", "1250.5", "1000", "2.5"]
    (tmp_path / "own.json").write_text('[{"question": "A?", "answer": 4.33}]')
    assert read(tmp_path / "own.json", schema)[0][0].answer == "4.33"


def test_commas_of_a_question_are_no_delimiter(tmp_path):
    text = "In 2020, 7, 8 and 9 were won. Sum?;24\nIn 2021, 5 and 1. Sum?;6\n"
    (tmp_path / "own.csv").write_text(text)
    schema = Schema(("0",), "1", "number", has_header=False)
    assert [problem.answer for problem in read(tmp_path / "own.csv", schema)[0]] == ["24", "6"]


@pytest.mark.parametrize("number", ["0.1", "1e-05", "134217728.0", "0.12345679"])
@pytest.mark.parametrize("place", ["answer", "answer.key", "answer.0", "saved"])
def test_a_number_in_float32_is_written_as_it_was(tmp_path, place, number):
    answer = {"answer.key": {"key": float(number)}, "answer.0": [float(number)]}
    kinds = {
        "answer.key": pyarrow.struct({"key": pyarrow.float32()}),
        "answer.0": pyarrow.list_(pyarrow.float32(), 1),
    }
    rows = {
        "question": ["A?", "B?"],
        "answer": pyarrow.array(
            [answer.get(place, float(number)), None], kinds.get(place, pyarrow.float32())
        ),
    }
    path = tmp_path / "own.parquet"
    if place == "saved":
        path = tmp_path / "saved"
        datasets.Dataset(pyarrow.table(rows)).save_to_disk(path)
    else:
        parquet.write_table(pyarrow.table(rows), path)
    schema = Schema(("question",), "answer" if place == "saved" else place, "whole")
    assert [problem.answer for problem in read(path, schema)[0]] == [number]


@pytest.mark.parametrize("place", ["saved", "own.parquet"])
def test_a_column_of_mixed_types_holds_values_not_json(tmp_path, place):
    features = {"question": datasets.Value("string"), "answer": datasets.Json()}
    answers = [r"\frac{1}{2}", 7, {"key": "b"}, ["1"], None]
    made = datasets.Dataset.from_dict(
        {"question": list("ABCDE"), "answer": answers}, datasets.Features(features)
    )
    if place == "saved":
        made.save_to_disk(tmp_path / place)
    else:
        made.to_parquet(tmp_path / place)
    rows = read_raw_rows(find_place(str(tmp_path / place)))
    assert [row.columns["answer"] for row in rows] == [r"\frac{1}{2}", "7", *answers[2:]]


def test_a_column_that_parquet_has_twice_is_refused(tmp_path):
    columns = [pyarrow.array(["A?"]), pyarrow.array(["1"]), pyarrow.array(["2"])]
    table = pyarrow.Table.from_arrays(columns, ["question", "answer", "answer"])
    parquet.write_table(table, tmp_path / "own.parquet")
    with pytest.raises(ValueError, match="duplicate"):
        read(tmp_path / "own.parquet", Schema(("question",), "answer", "whole"))


@pytest.mark.parametrize("name", ["more.csv", "more.jsonl"])
def test_a_file_of_a_folder_that_no_split_has_is_named(tmp_path, name):
    (tmp_path / ".ipynb_checkpoints").mkdir()  # Jupyter's copies are none
    for file in ("train.jsonl", ".ipynb_checkpoints/train-checkpoint.jsonl"):
        (tmp_path / file).write_text('{"question": "1+1?", "answer": 2}\n')
    assert len(read(tmp_path)[0]) == 1
    (tmp_path / name).write_text('{"question": "1+1?", "answer": 2}\n')
    with pytest.raises(ValueError, match=name):
        read(tmp_path)


@pytest.mark.parametrize(
    ("split", "keys"),
    [("train", "0123"), ("test", "45"), ("train+test", "012345"), ("train[:50%]+test[1:]", "015")],
)
def test_splits_of_a_folder(tmp_path, split, keys):
    """A folder as the hub has it: splits by the names of files, or as its README says."""
    rows = [{"question": f"{number}?", "answer": number} for number in range(6)]
    for name, part in {"train-0": rows[:2], "train-1": rows[2:4], "test": rows[4:]}.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, part)))
    problems, _ = read(tmp_path, split=split)
    assert "".join(problem.answer for problem in problems) == keys
    with pytest.raises(ValueError, match=r"test.*train.*'dev'"):
        read(tmp_path, split="dev")
    named = "configs:\n- {config_name: small, data_files: train-0.jsonl}"
    (tmp_path / "README.md").write_text(f"---\n{named}\n---\n")
    assert len(read(tmp_path, config="small")[0]) == 2


def test_reading_leaves_no_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "own"
    folder.mkdir()
    datasets.Dataset.from_list(ROWS).to_parquet(folder / "train.parquet")
    assert len(read(folder)[0]) == len(read(folder / "train.parquet")[0]) == len(ROWS)
    assert not (tmp_path / "cache").exists()
