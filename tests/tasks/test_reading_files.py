"""Files of every kind: what is in them arrives as it was written, or one sentence refuses them."""

import datetime
import gzip
import json

import datasets
import pyarrow
import pytest
from pyarrow import parquet

from gdro_lab.tasks import math_data as tasks
from gdro_lab.tasks.math_sets import Schema
from gdro_lab.tasks.sources import find_place

ROWS = [
    {"question": "What is 3+4?", "answer": "7"},
    {"question": "Wie viel ist 007·1,\n als „Code“?", "answer": "007"},
    {"question": "When?", "answer": "2020-01-01"},
]
LINES = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS)
CELLS = [["question", "answer"], *([row["question"], row["answer"]] for row in ROWS)]
NUMBERS = ["007", "2020-01-01", "true", "1e-7", "+5", "1_000", "2.50", "1" * 29, "inf", "½", "1/2"]


def table(delimiter, end="\n"):
    return end.join(delimiter.join(f'"{cell}"' for cell in row) for row in CELLS)


def read(path, schema=None, name="own"):
    schema = schema or Schema(("question",), "answer", "whole")
    return tasks.read_problems(tasks.Source(name, find_place(str(path)), (schema,)))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("own.jsonl", LINES),
        ("own.json", LINES),
        ("own.json", json.dumps(ROWS, indent=2)),
        ("named.json", json.dumps({"version": 1.1, "data": ROWS, "tags": ["a"]})),
        ("own.csv.gz", gzip.compress(table(",").encode(), mtime=0)),
        ("own.csv", table(",")),
        ("own.csv", table(";")),
        ("own.tsv", table("\t")),
        ("excel.csv", table(";", "\r\n").encode("utf-8-sig")),
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


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "tsv", "parquet", "folder"])
def test_a_key_arrives_as_it_was_written(tmp_path, kind):
    """Where datasets and pandas would make dates, numbers and gaps of them."""
    rows = [{"question": f"{place}?", "answer": key} for place, key in enumerate(NUMBERS)]
    path = tmp_path / f"own.{kind}"
    if kind == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif kind in ("csv", "tsv", "folder"):
        sign = "\t" if kind == "tsv" else ","
        if kind == "folder":
            path.mkdir()
        file = path / "train.csv" if kind == "folder" else path
        lines = ["question,answer", *(f"{row['question']},{row['answer']}" for row in rows)]
        file.write_text("\n".join(lines).replace(",", sign))
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    assert [problem.answer for problem in read(path)[0]] == NUMBERS
    assert list(tmp_path.iterdir()) == [path]  # and nothing was written beside it


@pytest.mark.parametrize("number", ["7.0", "2.50", "1e-7", "1E5", "-0.1", "1" * 5000])
def test_a_number_in_json_arrives_as_it_was_written(tmp_path, number):
    (tmp_path / "own.jsonl").write_text(f'{{"question": "One?", "answer": {number}}}')
    assert [problem.answer for problem in read(tmp_path / "own.jsonl")[0]] == [number]


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("column", ["answer", "answer.key", "answer.0", "saved"])
def test_a_float_of_few_bits_is_written_as_it_was(tmp_path, column, bits):
    numbers = [0.1, 1e-05, 1024.0, None]
    kind = {16: pyarrow.float16(), 32: pyarrow.float32(), 64: pyarrow.float64()}[bits]
    kinds = {"answer.key": pyarrow.struct({"key": kind}), "answer.0": pyarrow.list_(kind)}
    wrapped = {"answer.key": [{"key": n} for n in numbers], "answer.0": [[n] for n in numbers]}
    values = pyarrow.array(wrapped.get(column, numbers), kinds.get(column, kind))
    made = pyarrow.table({"question": ["A?", "B?", "C?", "D?"], "answer": values})
    path = tmp_path / "own.parquet"
    if column == "saved":
        path = tmp_path / "saved"
        datasets.Dataset(made).save_to_disk(path)
    else:
        parquet.write_table(made, path)
    schema = Schema(("question",), "answer" if column == "saved" else column)
    assert [problem.answer for problem in read(path, schema)[0]] == ["0.1", "1e-05", "1024.0"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("own.csv", "question,answer,answer\nA?,1,2\n"),
        ("own.jsonl", '{"question": "A?", "answer": 1, "answer": 2}'),
    ],
)
def test_a_column_that_is_there_twice_is_refused(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match="answer"):
        read(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "lines", "broken"),
    [
        ("own.jsonl", ["", "{", '{"question": "A?", "answer": 1}', "[1]"], [2, 4]),
        ("own.jsonl", ['{"question": "A?", "answer": 1}', '{"question": "B?", "ans'], [2]),
        ("own.csv", ["question,answer", "1,000 + 2?,1002", "A?,1", "B?"], [2, 4]),
    ],
)
def test_a_broken_line_costs_itself_alone_and_is_named(tmp_path, name, lines, broken):
    (tmp_path / name).write_text("\n".join(lines))
    problems, dropped = read(tmp_path / name)
    assert [problem.answer for problem in problems] == ["1"]
    assert len(dropped) == len(broken)
    assert all(f"line {line} " in fault for line, fault in zip(broken, dropped, strict=True))


@pytest.mark.parametrize("value", [{"a": "9"}, True, ["7", "8"], b"7", datetime.date(2020, 1, 1)])
@pytest.mark.parametrize("column", ["question", "answer"])
def test_what_is_neither_text_nor_number_is_refused_with_its_row(tmp_path, column, value):
    rows = [{"question": "1+1?", "answer": "2"} | {column: value}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "own.parquet")
    with pytest.raises(ValueError, match=f"own, row 0: .*{column}"):
        read(tmp_path / "own.parquet")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("own.txt", b"1+1=2"),
        ("own.jsonl", b""),
        ("own.json", b'[{"question": "1+1?", "answer": 2},\n{"question": 1 "}]'),
        ("own.csv", b'question,answer\n"1+1?,2\n3+3?,6\n'),
        ("own.csv", b"question,answer\n\xff,1\n"),
        ("own.parquet", b"PAR"),
        ("own.jsonl.gz", gzip.compress(LINES.encode(), mtime=0)[:-9]),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match="own") as caught:
        read(tmp_path / name)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700
    str(caught.value).encode()  # it can be printed
