"""Verdicts on answers: the table, and what no table can list."""

import csv
from collections import Counter
from pathlib import Path

import pytest

from gdro.tasks.math.answers import Unreadable, operations, read
from gdro.tasks.math.rewards import MathReward

TABLE = Path(__file__).parents[1] / "fixtures" / "answers.csv"
LONG = "9" * 5000  # more digits than Python turns into an integer
# the rules compare units, but convert none
KNOWN_MISSES = {(r"5\text{ m}", r"500\text{ cm}"), (r"\$0.50", r"50\text{ cents}")}


@pytest.fixture(scope="module")
def rows():
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def verdicts(cases):
    """Whether each (gold, answer) is judged right."""
    given = [rf"\boxed{{{answer}}}" for _, answer in cases]
    return [value == 1.0 for value in MathReward()(given, [gold for gold, _ in cases])]


def test_the_table_is_large_and_in_order(rows):
    assert len(rows) >= 400
    assert len({(row["gold"], row["answer"]) for row in rows}) == len(rows)
    assert {row["verdict"] for row in rows} == {"right", "wrong"}
    assert {row["part"] for row in rows} == {"before", "after", "held out"}
    assert Counter(row["part"] for row in rows)["held out"] >= 120
    assert all(row["why"] for row in rows)
    kinds = [row["kind"] for row in rows]
    assert kinds == sorted(kinds, key=kinds.index)  # grouped


def test_verdicts_of_the_table(rows):
    cases = [(row["gold"], row["answer"]) for row in rows]
    found = dict(zip(cases, verdicts(cases), strict=True))
    right = {case for case, row in zip(cases, rows, strict=True) if row["verdict"] == "right"}
    assert {case for case, accepted in found.items() if accepted} - right == set()
    assert {case for case in right if not found[case]} == KNOWN_MISSES


def test_what_is_too_long_is_no_answer():
    given = ["1e" + LONG, LONG, f"10^{{{LONG}}}", LONG + "\\%", "8e" + "0" * 9999]
    assert verdicts([("8", answer) for answer in given]) == [False] * len(given)
    assert verdicts([("x", answer) for answer in given]) == [False] * len(given)


@pytest.mark.parametrize("text", ["", " ", ")(", "((1)", r"\{1", "3 \\to 4", r"\frac{1}{0}", "(" * 999, LONG])
def test_what_cannot_be_read_is_refused(text):
    with pytest.raises(Unreadable):
        read(text)


def test_an_answer_is_read_into_its_parts():
    interval = read(r"2 \le x < 3")
    assert (interval.kind, interval.name) == ("[)", "x")
    assert [part.value for part in interval.value] == [2, 3]
    assert read(r"\{3, 1\}").kind == "set"
    assert read("1, 3").kind == "list"
    assert (read(r"5\text{ square meters}").unit, read("5 m^2").kind) == ("m^2", "algebra")
    assert read("x=3=y").relations == "=="
    assert read(r"\begin{pmatrix}1&2\\3&4\end{pmatrix}").value[1].kind == "row"


def test_a_family_of_functions_is_one_operation():
    assert operations(r"\sin x+\cos x") == operations(r"\tan x") == {"sin"}
    assert operations(r"\ln 2") == operations(r"\log_2 3") == {"log"}
    assert operations(r"\frac{\pi}{2}+\sqrt{3}") <= {"pi", "sqrt"}
    assert operations("n!") == {"!"}
