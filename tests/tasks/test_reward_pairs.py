"""The table of judged pairs: what the math reward says of each, and which ones it gets wrong."""

import csv
from pathlib import Path

import pytest

from gdro_lab.tasks.answers import read_key
from gdro_lab.tasks.math_reward import MathReward

TABLE = Path(__file__).parents[1] / "fixtures" / "rewards" / "pairs.csv"
with TABLE.open(newline="") as file:
    PAIRS = list(csv.DictReader(file))
KINDS = sorted({pair["kind"] for pair in PAIRS})


@pytest.fixture(scope="module")
def verdicts():
    """The verdict on each pair, in the order of the table: a batch for each reader."""
    found = {}
    for reader in {pair["reader"] for pair in PAIRS}:
        rows = [row for row, pair in enumerate(PAIRS) if pair["reader"] == reader]
        rewards = MathReward(completion=reader)(
            [PAIRS[row]["answer"] for row in rows], [PAIRS[row]["key"] for row in rows]
        )
        found |= zip(rows, rewards, strict=True)
    return ["right" if found[row] else "wrong" for row in range(len(PAIRS))]


@pytest.mark.parametrize("kind", KINDS)
def test_each_pair_is_judged_as_the_table_says(verdicts, kind):
    """A pair with a known limit is judged the other way."""
    differing = [
        pair
        for pair, verdict in zip(PAIRS, verdicts, strict=True)
        if pair["kind"] == kind and (verdict == pair["verdict"]) != (pair["limit"] == "")
    ]
    assert differing == []


NUMBERS = {  # in a text, and in a column that must hold a number
    r"The answer is: \frac{3}{4}": ("3/4", None),
    r"The answer is: \sqrt{2}": (None, None),
    r"1-\frac{2}{\pi}": (None, None),
    "[5, 6]": (None, None),
    "1.250,50 €": ("1.250,50", "1.250,50"),
    "1e-7": ("1e-7", "1e-7"),
    "2/6": ("2/6", "2/6"),
    "5%": ("5%", "5%"),
    "50 percent": ("50", "50%"),
    "5 apples": ("5", "5"),
    "½": ("1/2", "1/2"),
    "1½ cups": ("1 1/2", None),
    "9 (apples)": ("9", "9"),
    "9 apples and 3 pears": ("3", None),
    "It is -3.": ("-3", None),
    "Answer - 5": ("5", None),
    "- $5": ("-5", "-5"),
    "5-3": (None, None),
    "2^4": (None, None),
    "4 million": (None, None),
    "3万": (None, None),
    "1.5 crore": (None, None),
    "2 Millionen": (None, None),
    "3 Stück": ("3", None),
    "0.(3)": ("1/3", "1/3"),
    "5!": ("5", None),
    ">=5": ("5", None),
    "5 squared": (None, None),
    "18cm2": ("18", "18"),
    "CO2": (None, None),
    "2 pi": (None, None),
    "6:30": (None, None),
    "4:3": (None, None),
    "5 and a half": ("5", None),
    "12*3 = $36": ("36", None),
    "$1,234.50": ("1234.5", "1234.5"),
    "five": (None, None),
    "Ответ: 18 рублей": ("18", None),
    "18 años": ("18", None),
    "答案是18。": ("18", None),
    "18元": ("18", None),
    "18\n\nQ: A man walks": ("18", None),
    "18 cm^2": ("18", "18"),
    "18 m/s": ("18", "18"),
    "18°C": ("18", "18"),
    "`18`": ("18", "18"),
    "": (None, None),
}


@pytest.mark.parametrize("text", NUMBERS)
def test_a_key_is_a_whole_number_or_none(text):
    assert (read_key(text, "last_number"), read_key(text, "number")) == NUMBERS[text]


def test_a_key_in_tags_or_in_a_box_is_opened():
    assert read_key(r"so <answer>\boxed{1,200}</answer>", "tags") == "1200"
    assert read_key(r"#### \boxed{4}", "hash") == "4"
    assert read_key(r"\boxed{4}", "whole") == "4"
    assert read_key("<answer></answer>", "tags") is None
    assert read_key(r"so $-\boxed{5}$", "boxed") is None
    assert read_key("Answer: 4\n**Answer:** 1,200", "answer_line") == "1200"


def test_a_key_that_its_own_reader_never_returns_is_found():
    keys = ["42", r"\frac{3}{4}", r"\sqrt{2}", "B", "Bob Scott"]
    assert MathReward(completion="boxed").accepts_itself(keys) == [True] * 5
    by_number = MathReward(completion="last_number").accepts_itself(keys)
    assert by_number == [True, True, False, False, False]
    assert MathReward(completion="hash").accepts_itself(["1\n2", "1"]) == [False, True]
