"""The math reward: which box is read, numbers, choices, counts, and answers that never end."""

import os
import signal

import psutil
import pytest

from gdro_lab.tasks.math_reward import MathReward, judge_at_once, last_boxed

LONG = "9" * 5000  # more digits than Python turns into an integer


def said(content):
    return {"role": "assistant", "content": content}


RIGHT = {
    "42": [
        *("42", "42.", "+42", "042", "42.0", "$42$", r"\$42", "84/2", r"\frac{84}{2}", "x=42"),
        *(r"\text{42}", r"\mathbf{42}", r"\underline{42}", r"\textcolor{red}{42}"),
        *(r"\color{blue}{42}", r"{\color{blue} 42}", r"\displaystyle 42"),
        *(r"42^{\circ}", r"42^\circ", r"\angle ABC = 42^\circ", "f(2) = 42", "=42"),
        *("m+n=42", "20+22=42", "m + n = 20+22 = 42.", r"x = 6\cdot 7 = 42", r"\frac{m}{n}=42"),
        *(r"42\text{ units}", r"42 \text{ square units}", r"42\text{ cm}.", r"A = 42\text{ m}"),
        *(r"4.2 \times 10^1", "42 dollars", "**42**", "４２", "42°"),
    ],
    "1200": ["1,200", "1{,}200", r"1\,200", r"1,\!200", "1 200"],
    "1,200": ["1200"],
    "0.25": [".25", r"\frac14", r"\dfrac{1}{4}"],
    "-1.5": ["-1.5", "−1.5", r"-\frac{3}{2}", r"\frac{-3}{2}"],
    "5": ["x1 = 5", "x_1 = 5"],
    "841": ["29^2 = 841", "AB^2 = 841"],
    "019": ["19"],
    "2.19e6": ["2190000", r"2.19 \times 10^6", "2.19e6", r"x = 2.19 \times 10^6"],
    "1e-05": ["0.00001", "10^{-5}", r"\frac{1}{100000}"],
    r"\text{east}": ["east", r"\mathrm{east}"],
    "6:30 PM": ["6:30 PM"],
}
WRONG = {  # a word behind a number is a unit only where \text{} says so, and never one of number
    "42": ["42 cm", r"42\%", r"\text{ units}", r"42\text{ cm} 43"],
    "10": ["10 tenths", "10!", r"\binom{5}{2}", r"1\frac{0}{0}", r"10\text{ tenths}"],
    "2": [
        *("2 million", "2 million dollars", "2x", "2i", r"2\pi", r"\{2\}"),
        *(rf"2\text{{ {word}}}" for word in ("million", "thousand", "hundred units", "dozen")),
        *(rf"2\text{{ {word}}}" for word in ("percent", "per cent", "halves", "base eight")),
    ],
    "5": [
        *("5 point two", "5 perhaps six", "5 or 6", r"\pm 5", r"\frac{5}{0}", "5, 6", "5x = 5x"),
        *(r"5\text{ point two}", r"5\text{ or }6", r"6\text{ or }5", r"5 \text{ perhaps six}"),
    ],
    "12": ["12 base eight", "12_8", "1,2", "1 2", r"1\frac12", "3+9", r"\sqrt{144}"],
    "7": [
        *("-7", "8=7", "3=x=7", "5x=7", "x>=7", r"3 \to 7", "٧", r"7 \approx 7.01", "x=7=8"),
        *("a=8, b=7", "x=5 y=7", r"x=5\text{ or }x=7", r"x=5 \quad y=7", "n=5; m=7", "x != 7"),
        *(r"x \neq 7 = 7", r"x \approx 6.9 = 7", r"x \le 6 = 7", r"x \not= 7", "-7=7", "2x = 7"),
    ],
    "8": [LONG, "1e" + LONG, "8e" + "0" * 9999, "(" * 999],
    "34": [r"3\,4"],
    "2.19e6": ["2.2e6", "2190001", r"2.19 \times 10^5", "-2.19e6"],
    "3": [r"\frac{x}{2}=3", "x/2 = 3", r"\frac{1}{x} = 3", r"2\cdot x=3", "-x=3", r"2\pi r=3"],
    "0.33": [r"\frac13"],
    "2023": [r"2023 \approx 2024"],
    "2024": [r"2023 \approx 2024"],
    "205000": [r"2.04 \times 10^5"],
}


@pytest.mark.parametrize("key", RIGHT | WRONG)
def test_the_same_number_or_text_is_right_and_no_other_and_no_further_word(key):
    wanted = dict.fromkeys(RIGHT.get(key, []), "correct")
    wanted |= dict.fromkeys(WRONG.get(key, []), "wrong")
    outcomes = MathReward().judge([(key, answer) for answer in wanted])
    assert dict(zip(wanted, outcomes, strict=True)) == wanted


@pytest.mark.parametrize("text", ["x_a" * 60, "1," * 90, "a+(" * 60, r"\frac" * 40, "{" * 200])
def test_no_text_is_read_without_end(text):
    """A reading that goes back and forth would take longer than any limit."""
    assert judge_at_once("7", text) == "wrong"
    assert last_boxed("\\boxed{" * 50_000 + text) is None


def test_math_verify_judges_all_other_keys():
    cases = {
        (r"2\sqrt{3}", r"\sqrt{12}"): 1.0,
        (r"2\sqrt{3}", r"\sqrt{13}"): 0.0,
        (r"\frac{3}{7}", r"{3 \over 7}"): 1.0,
        (r"\frac{x+1}{2}", r"(x+1)/2"): 1.0,
        (r"\frac{x+1}{2}", "x+1/2"): 0.0,  # without its braces a fraction says something else
        ("x+1/2", r"\frac{x+1}{2}"): 0.0,
        (r"\frac{5-2}{3}", "5-2/3"): 0.0,
        ("[2,3)", "[2,3]"): 0.0,
        ("x^2-9", "(x-3)(x+3)"): 1.0,
        (r"\{1,2\}", ")("): 0.0,
    }
    given = [rf"so \boxed{{{answer}}}" for _, answer in cases]
    assert MathReward()(given, [key for key, _ in cases]) == list(cases.values())


def test_a_letter_is_read_or_not():
    choices = ["B", "b", "(B)", r"\text{B}", r"\textbf{(B)}", "$B$", "B.", "B) Neon", "(B) A cat"]
    assert {judge_at_once("B", box) for box in choices} == {"correct"}
    for box in ("Bananas", "A or B", "c", "", "3", "A: B", "B, C", "(B) or (C)", "B. and A."):
        assert judge_at_once("B", box) == "wrong", box


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
        ("last_number", "so 50-8 = $42", ["5-42-1", "(-42)", "42/5"]),
        ("last_number", "84/2", ["84/4"]),
        ("whole", " 42\n", ["It is 42.", "#### 42", " "]),
        ("tags", "<answer> 42 </answer>", ["42", "<answer>41</answer>", "<answer>42"]),
    ],
)
def test_the_answer_is_read_where_the_profile_says(completion, right, wrong):
    reward = MathReward(completion=completion)
    assert reward([right, *wrong], ["42"] * (1 + len(wrong))) == [1.0] + [0.0] * len(wrong)
    assert reward([[said(right)]], ["42.0"]) == [1.0]
    with pytest.raises(ValueError, match="completion"):
        MathReward(completion="aloud")


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{1} and \boxed{2}", "1, 2"),
        (r"\boxed{1}. So \boxed{2}", "2"),
        (r"\boxed{2} or $\boxed{2}$", "2"),
        (r"\boxed{\boxed{\frac{1}{2}}}", r"\frac{1}{2}"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed {3}.", "3"),
        (r"\fbox{3}", "3"),
        (r"\boxed{\boxed{3}}", "3"),
        (r"\boxed{3} but \boxed{4", None),
        (r"\boxed{3} in \boxed{}", None),
        ("3", None),
        (r"\boxed{}", None),
        (r"\boxed{3", None),
        (r"\\boxed{3}", None),
    ],
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


def crash(key, box, tolerance, seconds):
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
