"""The math reward: which box is read, numbers, choices, counts, and answers that never end."""

import os
import signal

import psutil
import pytest

from gdro_lab.tasks.answers import last_boxed
from gdro_lab.tasks.math_reward import MathReward, judge_at_once

LONG = "9" * 5000  # more digits than Python turns into an integer


def said(content):
    return {"role": "assistant", "content": content}


@pytest.mark.parametrize("text", [LONG, "1e" + LONG, "8e" + "0" * 9999, "(" * 999], ids=len)
def test_numbers_that_python_cannot_hold_are_wrong(text):
    assert judge_at_once("8", text) == "wrong"


@pytest.mark.parametrize("text", ["x_a" * 60, "1," * 90, "a+(" * 60, r"\frac" * 40, "{" * 200])
def test_no_text_is_read_without_end(text):
    """A reading that goes back and forth would take longer than any limit."""
    assert judge_at_once("7", text) == "wrong"
    assert last_boxed("\\boxed{" * 50_000 + text) is None


def test_outcomes_are_counted_and_wrong_is_minus_one_if_signed():
    reward = MathReward(signed=True)
    assert reward([r"so \boxed{B}", r"\boxed{C}", "It is B."], ["B"] * 3) == [1.0, -1.0, -1.0]
    given = [r"\boxed{4}", r"\boxed{)(}", "4", [said(r"\boxed{4}")]]
    assert reward(given, ["4"] * 4) == [1.0, -1.0, -1.0, 1.0]
    assert +reward.counts == {"correct": 3, "wrong": 2, "no_answer": 2}


@pytest.mark.parametrize(
    ("completion", "right", "wrong"),
    [
        ("hash", "40+2=42\n#### 42", ["42", "#### 41", "#### 42 or 43", "42\n####", "####\n"]),
        ("hash", "#### 41\nNo:\n#### $42.", [r"\boxed{42}", "#### 42\n#### 7"]),
        ("last_number", "It is 42.", ["42 or 43", "4 2", "-42", "4.2", "none", "", "42 = 6 * 7"]),
        ("answer_line", "Answer: 3\nFinal Answer: **42**", ["42", "Answer:", "The answer is 42"]),
        (
            "answer_line",
            "so\n**Answer:** $42$.\n",
            ["Answer: 42\nAnswer: 3", "Answer: $-\\boxed{42}$"],
        ),
        ("answer_line", "answer： 42", ["answer 42"]),
    ],
)
def test_the_answer_is_read_where_the_profile_says(completion, right, wrong):
    reward = MathReward(completion=completion)
    assert reward([right, *wrong], ["42"] * (1 + len(wrong))) == [1.0] + [0.0] * len(wrong)
    assert reward([[said(right)]], ["42.0"]) == [1.0]
    with pytest.raises(ValueError, match="completion"):
        MathReward(completion="aloud")


@pytest.mark.parametrize(
    ("text", "content"), [(r"\boxed {3}.", "3"), (r"\fbox{3}", "3"), (r"\\boxed{3}", None)]
)
def test_the_last_whole_box_counts(text, content):
    assert last_boxed(text) == content


def test_what_never_ends_is_killed_beside_the_rest():
    before = psutil.Process().children(recursive=True)
    reward = MathReward(time_limit=2)  # seconds of processor time; √12 takes a tenth of one
    given = [*(f"{n}^{{9^{{9^{{9}}}}}}" for n in (2, 3)), r"\sqrt{12}"]
    rewards = reward([rf"\boxed{{{answer}}}" for answer in given], [r"2\sqrt{3}"] * 3)
    assert rewards == [0.0] * 2 + [1.0]
    assert reward.counts["timeout"] + reward.counts["error"] == 2  # the memory may end first
    assert reward.counts["timeout"] > 0
    assert set(psutil.Process().children(recursive=True)) <= set(before)


def crash(key, box, seconds):
    if box == "x^9":
        os.kill(os.getpid(), signal.SIGKILL)
    return True


def test_a_worker_that_crashes_costs_its_own_answer_alone(monkeypatch):
    monkeypatch.setattr("gdro_lab.tasks.math_reward._same", crash)
    reward = MathReward()
    assert reward([r"\boxed{x^9}", r"\boxed{x}"], ["y", "y"]) == [0.0, 1.0]
    assert +reward.counts == {"correct": 1, "error": 1}


def test_the_last_text_of_the_assistant_counts_also_in_parts():
    parts = [{"type": "text", "text": "so "}, {"type": "text", "text": r"\boxed{4}"}]
    with_a_tool = [said(r"\boxed{4}"), {"role": "tool", "content": r"\boxed{5}"}, said("")]
    assert MathReward()([[said(parts)], with_a_tool], ["4", "4"]) == [1.0, 1.0]
