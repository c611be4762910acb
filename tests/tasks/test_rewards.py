"""The math reward: boxes, chats, choices, counts, and hostile answers."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time

import psutil
import pytest
from conftest import PATIENCE

from gdro.tasks.math.rewards import MathReward, chosen_letter, completion_text, last_boxed

HANGING = "9^{9^{9^{9}}}"  # sympy computes it in C code, until the memory is gone
LONG = "9" * 5000  # more digits than Python turns into an integer


def said(content):
    return {"role": "assistant", "content": content}


def test_a_letter_is_read_or_not():
    boxes = (
        "B",
        "(B)",
        "\\text{B}",
        "\\textit{B}",
        "\\textbf{(B)}",
        "$B$",
        "B.",
        "B) Neon",
        "(B) A cat",
        "B: 12",
    )
    for box in boxes:
        assert chosen_letter(box) == "B", box
    for box in ("Bananas", "A or B", "b", "", "3", "A: B", "B, C", "(B) or (C)", "B) C", "B. and A."):
        assert chosen_letter(box) is None, box


def test_choices_are_scored_and_counted(monkeypatch):
    monkeypatch.setattr(subprocess, "run", None)  # no process is needed
    reward = MathReward(signed=True)
    given = ["so \\boxed{B}", "\\boxed{C}", "It is B.", "\\boxed{Neon}"]
    assert reward(given, ["B"] * 4) == [1.0, -1.0, -1.0, -1.0]
    assert +reward.counts == {"correct": 1, "wrong": 1, "no_box": 1, "unparsed": 1}


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("\\boxed{1} and \\boxed{2}", "2"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{\\{1,2\\}}", "\\{1,2\\}"),
        ("\\boxed {3}.", "3"),
        ("\\fbox{3}", "3"),
        ("\\boxed{\\boxed{3}}", "3"),
        ("\\boxed{\\boxed{3} or \\boxed{4}}", "\\boxed{3} or \\boxed{4}"),
        ("{ \\boxed{3}", "3"),
        ("\\boxed{3} but \\boxed{4", "3"),
        ("\\boxed{3} in \\boxed{}", "3"),
        ("3", None),
        ("\\boxed{}", None),
        ("\\boxed{3", None),
        ("\\\\boxed{3}", None),
    ],
)
def test_the_last_whole_box_counts(text, content):
    assert last_boxed(text) == content


@pytest.mark.parametrize("text", ["\\boxed{" * 50_000, "\\boxed{" * 50_000 + "}" * 50_000, "{}" * 99_999])
def test_a_text_that_repeats_itself_is_read_in_one_pass(text):
    started = time.process_time()
    assert last_boxed(text) is None or len(text) == 400_000
    assert time.process_time() - started < 2


def test_values_and_counts():
    reward = MathReward(signed=True)
    given = ["\\boxed{4}", "\\boxed{5}", "4", "\\boxed{)(}", [{"content": "\\boxed{4}"}]]
    assert reward(given, ["4"] * 5) == [1.0, -1.0, -1.0, -1.0, 1.0]
    assert +reward.counts == {"correct": 2, "wrong": 1, "no_box": 1, "unparsed": 1}


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        ("\\boxed{4}", "\\boxed{4}"),
        ([{"role": "assistant", "content": "\\boxed{4}"}], "\\boxed{4}"),
        ([said([{"type": "text", "text": "\\boxed"}, {"text": "{4}"}])], "\\boxed{4}"),
        ([said([{"type": "image", "image": None}, "so \\boxed{4}"])], "so \\boxed{4}"),
        ([said("1"), said("2")], "2"),
        ([said("1"), {"role": "tool", "content": "\\boxed{4}"}], "1"),
        ([said("1"), {"role": "assistant", "tool_calls": [{"type": "function"}]}], "1"),
        ([said("1"), said(None)], "1"),
        ([said(None)], ""),
        ([said([])], ""),
        ([{"role": "assistant"}], ""),
        ([{}], ""),
        ([], ""),
        (None, ""),
    ],
)
def test_a_chat_is_judged_by_the_text_there_is(completion, text):
    assert completion_text(completion) == text
    assert MathReward()([completion], ["4"]) == [float("\\boxed{4}" in text)]


def test_a_bad_answer_key_is_an_error():
    reward = MathReward()
    wanted = r"answer must be mathematics that sympy can read, got '.*; leave such rows out"
    for bad in ("-", "1e" + LONG):
        with pytest.raises(ValueError, match=wanted):
            reward(["\\boxed{4}"] * 2, ["4", bad])
    for empty in ("", " ", None):
        with pytest.raises(ValueError, match="answer must be a text, got"):
            reward(["\\boxed{4}"], [empty])
    with pytest.raises(
        ValueError, match="answer must have an entry for each of the 2 completions, got 1; pass"
    ):
        reward(["\\boxed{4}"] * 2, ["4"])


def processor_seconds():
    """Of all processes that this one started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_what_never_ends_is_killed_beside_the_rest():
    """Limits and this test count processor time, so that a busy machine changes nothing."""
    reward, before = MathReward(time_limit=2), processor_seconds()
    given = [*(f"{n}^{{9^{{9^{{9}}}}}}" for n in range(2, 10)), "4^{32}", "2^{63}"]
    assert reward([f"\\boxed{{{box}}}" for box in given], ["2^{64}"] * 10) == [0.0] * 8 + [1.0, 0.0]
    assert +reward.counts == {"correct": 1, "wrong": 1, "timeout": 8}
    assert processor_seconds() - before < 8 * 2  # they share their time
    left = [process.cmdline() for process in psutil.Process().children(recursive=True)]
    assert not any("verify.py" in argument for command in left for argument in command)


def test_slow_answers_take_nothing_from_the_others():
    reward = MathReward(time_limit=0.5)
    given = [f"\\boxed{{{HANGING}}}"] + [f"\\boxed{{{n}^{{9^{{9^{{9}}}}}}}}" for n in range(20, 28)]
    given.append("\\boxed{\\sqrt{12}}")
    assert reward(given, ["2\\sqrt{3}"] * len(given))[-1] == 1.0
    assert +reward.counts == {"correct": 1, "timeout": len(given) - 1}


def test_questions_instead_of_answers_cost_no_process(monkeypatch):
    monkeypatch.setattr(subprocess, "run", None)
    given = ["\\int_0^1 \\sin(x^{99})dx", "99999999!", HANGING, "\\sum_{n=1}^{99} n^n", "\\binom{10}{3}"]
    assert MathReward()([f"\\boxed{{{box}}}" for box in given], ["7"] * 5) == [0.0] * 5


CODE = f"""if True:
    from gdro.tasks.math.rewards import MathReward
    print(MathReward(time_limit=600).verify([("2^{{64}}", {HANGING!r})]))
"""


@pytest.mark.parametrize("victim", ["worker", "server", "program"])
def test_what_is_killed_leaves_no_process(victim):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", CODE], **pipes) as program:
        used, family = 0.0, []
        while used < 0.5:  # until a worker is at it for more than its first, short time
            assert program.poll() is None
            time.sleep(0.1)
            with contextlib.suppress(psutil.NoSuchProcess):  # that worker has ended
                family = psutil.Process(program.pid).children(recursive=True)
                used = sum(family[1].cpu_times()[:2]) if len(family) > 1 else 0.0
        server, worker = family
        os.kill({"worker": worker.pid, "server": server.pid, "program": program.pid}[victim], signal.SIGKILL)
        printed, errors = program.communicate()
    if victim == "worker":
        assert "['crash']" in printed
    elif victim == "server":
        assert "died with <Signals.SIGKILL" in errors
        assert "verification was ended from outside; free memory and try again" in errors
    assert psutil.wait_procs(family, timeout=PATIENCE)[1] == []


@pytest.mark.parametrize("limit", [0, float("inf")])
def test_a_time_limit_is_needed(limit):
    with pytest.raises(ValueError, match=r"time_limit=…\) must be"):
        MathReward(time_limit=limit)
