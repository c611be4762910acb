"""The reward for answers in a box: mathematics by math-verify, multiple choice by its letter.

It is a callable in the shape of TRL's ``reward_funcs``. Nothing is scored in silence: it keeps a count of
its outcomes, and an answer key that cannot be parsed is an error.
"""

import importlib.util
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gdro.core.checks import check_number

SCRIPT = Path(__file__).with_name("verify.py")
LETTERS = "ABCDEFGHIJ"
# how a completion can turn out; all but "correct" are wrong
OUTCOMES = ("correct", "wrong", "no_box", "unparsed", "error", "timeout", "crash")
# an escaped brace is a sign of a set and groups nothing
BRACES = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*\{)|\\.|[{}]", re.DOTALL)
CHOICE = re.compile(r"\(?([A-J])\)?\s*(?:[.:)].*)?", re.DOTALL)
SCIENTIFIC = re.compile(r"([+-]?\d+(?:\.\d+)?)[eE]([+-]?\d{1,4})")
TEXT_COMMAND = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}")
PERCENT_SIGNS = ("\\%", "%", "\\text{percent}", "\\text{ percent}", "percent")


class MathReward:
    """1 for a completion whose last ``\\boxed{…}`` equals the answer.

    An answer of one letter A–J is a choice and compared with the letter in the box; all others are compared
    by math-verify. A completion without a box is wrong and costs no verification.

    Args:
        signed: a wrong completion gets −1 instead of 0.
        time_limit: seconds of wall clock for one answer; one that takes longer is wrong.

    Attributes:
        counts: completions by outcome, over all calls.
    """

    __name__ = "math_reward"  # TRL names its metrics after it

    def __init__(self, *, signed: bool = False, time_limit: float = 5.0) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise ImportError("math-verify is not installed; pip install 'gdro[math]'")
        self.time_limit = check_number("time_limit", time_limit, 0, open_low=True)
        self.signed = signed
        self.counts = Counter(dict.fromkeys(OUTCOMES, 0))

    def __call__(self, completions: Sequence[Any], answer: Sequence[str], **kwargs: Any) -> list[float]:
        """Score R completions: 1.0 for a correct one, else 0.0, or −1.0 if ``signed``.

        Args:
            completions: texts, or chats (lists of messages), of which the last is read.
            answer: the data set's column; an empty or unparseable one is a ValueError.
            **kwargs: TRL's other arguments; ``uid`` is used in messages.
        """
        uids = kwargs.get("uid") or [None] * len(answer)
        outcomes, pairs = ["no_box"] * len(answer), {}
        for row, (completion, gold) in enumerate(zip(completions, answer, strict=True)):
            if not isinstance(gold, str) or not gold.strip():
                raise ValueError(
                    f"answer must be a text, got {gold!r} (uid {uids[row]!r}); leave such rows out"
                )
            box = last_boxed(completion if isinstance(completion, str) else completion[-1]["content"])
            if box is not None and len(gold) == 1 and gold in LETTERS:
                outcomes[row] = {gold: "correct", None: "unparsed"}.get(chosen_letter(box), "wrong")
            elif box is not None:
                pairs[row] = boxed(gold), boxed(box if "%" in gold else percent_as_fraction(box))
        for row, outcome in zip(pairs, self.verify(list(pairs.values())), strict=True):
            if outcome == "bad_gold":
                wanted = "mathematics that math-verify can parse"
                got = f"{answer[row]!r} (uid {uids[row]!r}); load_math drops such rows"
                raise ValueError(f"answer must be {wanted}, got {got}")
            outcomes[row] = outcome
        self.counts.update(outcomes)
        wrong = -1.0 if self.signed else 0.0
        return [1.0 if outcome == "correct" else wrong for outcome in outcomes]

    def verify(self, pairs: Sequence[tuple[str, str | None]]) -> list[str]:
        """Outcome of each (gold, answer), texts for math-verify to parse; equal pairs are sent once.

        It is one of `OUTCOMES` or "bad_gold", and "unparsed" where the answer is no mathematics. With None
        for an answer the gold itself is tried, and "correct" if it can be used.
        """
        if not pairs:
            return []
        distinct = list(dict.fromkeys(pairs))
        # -P: that folder holds a math.py that must not stand in for Python's own
        command = [sys.executable, "-P", "-W", "ignore", str(SCRIPT), str(self.time_limit)]
        options: dict[str, Any] = {"input": json.dumps(distinct), "text": True, "start_new_session": True}
        run = subprocess.run(command, stdout=subprocess.PIPE, check=True, **options)
        outcomes = dict(zip(distinct, json.loads(run.stdout), strict=True))
        return [outcomes[pair] for pair in pairs]


def last_boxed(text: str) -> str | None:
    """Content of the last whole ``\\boxed{…}`` that is not empty, braces balanced; None without one."""
    # one pass, as a text that repeats itself can open thousands of boxes and close none
    open_braces: list[int | None] = []  # where a box's content starts; None for any other brace
    last_start, content = -1, None
    for match in BRACES.finditer(text):
        if match[0] == "}" and open_braces:
            start = open_braces.pop()
            inside = "" if start is None else text[start : match.start()].strip()
            if start is not None and start > last_start and inside:
                last_start, content = start, inside
        elif match["box"]:
            open_braces.append(match.end())
        elif match[0] == "{":
            open_braces.append(None)
    return content


def boxed(answer: str) -> str:
    """An answer as math-verify reads it best: in one box, without dollar signs, in LaTeX.

    4.5e33 becomes 4.5 × 10^{33} (its e would be read as Euler's number), -1./3 becomes -1/3 and
    np.arcsin \\arcsin.
    """
    bare = re.sub(r"(?<!\\)\$", "", last_boxed(answer) or answer).strip()
    bare = re.sub(r"\bnp\.(?=[a-z])", r"\\", re.sub(r"(?<=\d)\.(?=/)", "", bare))
    if number := SCIENTIFIC.fullmatch(bare):
        bare = f"{number[1]} \\times 10^{{{int(number[2])}}}"
    return f"\\boxed{{{bare}}}"


def percent_as_fraction(box: str) -> str:
    """7\\% as 7/100: math-verify takes it for 7 as well, which only a percentage should equal."""
    for sign in PERCENT_SIGNS:  # a regular expression would take quadratic time
        if box.endswith(sign):
            left, equals, number = box.removesuffix(sign).rpartition("=")
            return f"{left}{equals}\\frac{{{number.strip()}}}{{100}}"
    return box


def chosen_letter(box: str) -> str | None:
    """The choice that a box names, or None."""
    match = CHOICE.fullmatch(TEXT_COMMAND.sub(r"\1", box).strip(" $\n\t"))
    return match[1] if match else None
