"""The table of judged pairs: what the math reward says of each, and which ones it gets wrong."""

import csv
import json
from pathlib import Path

import pytest

from gdro_lab.tasks.answers import read_key
from gdro_lab.tasks.math_reward import MathReward

TABLE = Path(__file__).parents[1] / "fixtures" / "rewards" / "pairs.csv"
with TABLE.open(newline="") as file:
    PAIRS = list(csv.DictReader(file))
KINDS = sorted({pair["kind"] for pair in PAIRS})


def keys_of(pair):
    """The key of a pair, or the keys of which any is enough."""
    return json.loads(pair["key"]) if pair["key"].startswith('["') else pair["key"]


@pytest.fixture(scope="module")
def verdicts():
    """The verdict on each pair, in the order of the table: a batch for each reader."""
    found = {}
    for reader in {pair["reader"] for pair in PAIRS}:
        rows = [row for row, pair in enumerate(PAIRS) if pair["reader"] == reader]
        rewards = MathReward(completion=reader)(
            [PAIRS[row]["answer"] for row in rows], [keys_of(PAIRS[row]) for row in rows]
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
    "50 percent": ("50%", "50%"),
    "5 apples": ("5", "5"),
    "½": ("1/2", "1/2"),
    "1½ cups": ("1 1/2", "1 1/2"),
    "9 (apples)": ("9", "9"),
    "9 apples and 3 pears": ("3", None),
    "It is -3.": ("-3", None),
    "Answer - 5": ("5", None),
    "- $5": ("-5", "-5"),
    "5-3": (None, None),
    "2^4": (None, None),
    "4 million": (None, None),
    "2 pi": (None, None),
    "6:30": (None, None),
    "4:3": (None, None),
    "5 and a half": ("5", None),
    "on day 5 200 came": (None, None),
    "12*3 = $36": ("36", "36"),
    "$1,234.50": ("1234.5", "1234.5"),
    "five": (None, None),
    "Ответ: 18 рублей": ("18", None),
    "18 años": ("18", "18"),
    "答案是18。": ("18", None),
    "18元": ("18", "18"),
    "18\n\nQ: A man walks": ("18", "18"),
    "18 cm^2": ("18", "18"),
    "18 m/s": ("18", "18"),
    "18°C": ("18", "18"),
    "<answer>18</answer>": ("18", None),
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


def test_of_several_keys_any_or_all_are_asked_for():
    keys = [["12", "dozen"]] * 3
    given = [r"\boxed{12}", r"\boxed{Dozen}", r"\boxed{13}"]
    assert MathReward()(given, keys) == [1.0, 1.0, 0.0]
    both = [r"\boxed{dozen, 12}", r"\boxed{12}", r"\boxed{12, dozen, 3}"]
    assert MathReward(several="all")(both, keys) == [1.0, 0.0, 0.0]
    assert MathReward(several="all", compare="text")(both, keys) == [1.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="answer"):
        MathReward()([r"\boxed{1}"], [[]])


def test_a_tolerance_is_relative_to_the_key():
    reward = MathReward(tolerance=0.01)
    given = {"1": ["1.01", "1.011", r"\frac{99}{100}"], r"2\sqrt{3}": ["3.46", "3.4", r"\sqrt{13}"]}
    given |= {"0": ["0.0", "0.001"], "-1e-9": ["-1.005e-9", "0"], "50%": ["0.501", "50.4"]}
    pairs = [(key, answer) for key, answers in given.items() for answer in answers]
    right = {"1.01", r"\frac{99}{100}", "3.46", "0.0", "-1.005e-9", "0.501", "50.4"}
    outcomes = dict(zip(pairs, reward.judge(pairs), strict=True))
    assert {answer for (_, answer), outcome in outcomes.items() if outcome == "correct"} == right


def test_text_is_compared_without_mathematics():
    reward = MathReward(compare="text")
    given = ["Bob Scott", " bob  scott.", r"\text{Bob Scott}", "Scott Bob", "1/2", "0.5"]
    keys = ["Bob Scott"] * 4 + ["1/2"] * 2
    assert reward([rf"\boxed{{{text}}}" for text in given], keys) == [1.0, 1.0, 1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    "setting", [{"several": "some"}, {"tolerance": -0.1}, {"tolerance": 1.0}, {"compare": "words"}]
)
def test_a_setting_that_does_not_exist_is_refused(setting):
    with pytest.raises(ValueError, match=next(iter(setting))):
        MathReward(**setting)


def test_a_key_that_its_own_reader_never_returns_is_found():
    keys = ["42", r"\frac{3}{4}", r"\sqrt{2}", "B", "Bob Scott", ["4 million", "4"]]
    assert MathReward(completion="boxed").accepts_itself(keys) == [True] * 6
    by_number = MathReward(completion="last_number").accepts_itself(keys)
    assert by_number == [True, True, False, False, False, False]
    assert MathReward(completion="hash").accepts_itself(["1\n2", "1"]) == [False, True]
