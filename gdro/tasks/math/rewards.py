"""The reward for answers in a box: mathematics by its value, multiple choice by its letter.

It is a callable in the shape of TRL's ``reward_funcs``. Nothing is scored in silence: it keeps a count of
its outcomes, and an answer key that cannot be read is an error. `gdro.tasks.math.answers` has the rules.
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
from gdro.tasks.math import answers

SCRIPT = Path(__file__).with_name("verify.py")
LETTERS = "ABCDEFGHIJ"
# how a completion can turn out; all but "correct" are wrong
OUTCOMES = ("correct", "wrong", "no_box", "unparsed", "error", "timeout", "crash")
# an escaped brace is a sign of a set and groups nothing
BRACES = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*\{)|\\.|[{}]", re.DOTALL)
NESTED = re.compile(r"^(?:\\(?:boxed|fbox)\s*\{)+([^{}]*)\}+$")
# a letter and perhaps what it stands for, but not a second letter
CHOICE = re.compile(r"\(?([A-J])(?:[.:)]+(?!\W*(?:and|or)?\W*[A-J]\b(?!\s+[a-z])).*)?", re.DOTALL)
TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf)\s*\{([^{}]*)\}")


class MathReward:
    """1 for a completion whose last ``\\boxed{…}`` equals the answer.

    An answer of one letter A–J is a choice and compared with the letter in the box; all others are compared
    by the rules of `gdro.tasks.math.answers`. A completion without a box is wrong and costs no verification.

    Args:
        signed: a wrong completion gets −1 instead of 0.
        time_limit: seconds of processor time for the algebra of one answer; one that takes longer is wrong.
            Of a batch, 0.1 s are for each answer, and twice the limit for all that need more together.

    Attributes:
        counts: completions by outcome, over all calls.
    """

    __name__ = "math_reward"  # TRL names its metrics after it

    def __init__(self, *, signed: bool = False, time_limit: float = 5.0) -> None:
        if importlib.util.find_spec("latex2sympy2_extended") is None:
            raise ImportError("latex2sympy2_extended is not installed; pip install 'gdro[math]'")
        name = "MathReward(time_limit=…)"
        self.time_limit = check_number(name, time_limit, 0, open_low=True, remedy="give seconds")
        self.signed = signed
        self.counts = Counter(dict.fromkeys(OUTCOMES, 0))

    def __call__(self, completions: Sequence[Any], answer: Sequence[str], **kwargs: Any) -> list[float]:
        """Score R completions: 1.0 for a correct one, else 0.0, or −1.0 if ``signed``.

        Args:
            completions: texts, or chats (lists of messages), of which the last with a text is read.
            answer: the data set's column; an empty or unparseable one is a ValueError.
            **kwargs: TRL's other arguments; ``uid`` is used in messages.
        """
        uids = kwargs.get("uid") or [None] * len(answer)
        if len(answer) != len(completions):
            wanted = f"have an entry for each of the {len(completions)} completions"
            raise ValueError(f"answer must {wanted}, got {len(answer)}; pass the data set's column")
        outcomes, pairs = ["no_box"] * len(answer), {}
        for row, (completion, gold) in enumerate(zip(completions, answer, strict=True)):
            if not isinstance(gold, str) or not gold.strip():
                raise ValueError(
                    f"answer must be a text, got {gold!r} (uid {uids[row]!r}); leave such rows out"
                )
            box = last_boxed(completion_text(completion))
            if box is not None and len(gold) == 1 and gold in LETTERS:
                outcomes[row] = {gold: "correct", None: "unparsed"}.get(chosen_letter(box), "wrong")
            elif box is not None:
                pairs[row] = gold, box
        for row, outcome in zip(pairs, self.verify(list(pairs.values())), strict=True):
            if outcome == "bad_gold":
                got = f"{answer[row]!r} (uid {uids[row]!r})"
                raise ValueError(
                    f"answer must be mathematics that sympy can read, got {got}; "
                    "leave such rows out, as load_math does"
                )
            outcomes[row] = outcome
        self.counts.update(outcomes)
        wrong = -1.0 if self.signed else 0.0
        return [1.0 if outcome == "correct" else wrong for outcome in outcomes]

    def verify(self, pairs: Sequence[tuple[str, str | None]]) -> list[str]:
        """Outcome of each (gold, answer) in LaTeX; equal pairs are verified once.

        It is one of `OUTCOMES` or "bad_gold", and "unparsed" where the answer is no mathematics. With None
        for an answer the gold itself is tried, and "correct" if it can be used.
        """
        bare = [(last_boxed(gold) or gold, answer) for gold, answer in pairs]
        found = {pair: _at_once(*pair) for pair in bare}
        if algebra := [pair for pair, outcome in found.items() if outcome is None]:
            # -P: that folder holds a math.py that must not stand in for Python's own
            command = [sys.executable, "-P", "-W", "ignore", str(SCRIPT), str(self.time_limit)]
            options: dict[str, Any] = {"input": json.dumps(algebra), "text": True, "start_new_session": True}
            try:
                run = subprocess.run(command, stdout=subprocess.PIPE, check=True, **options)
            except subprocess.CalledProcessError as error:
                raise RuntimeError(
                    "verification was ended from outside; free memory and try again"
                ) from error
            found |= zip(algebra, json.loads(run.stdout), strict=True)
        return [found[pair] or "error" for pair in bare]


class _Algebra(Exception):
    """An answer that cannot be compared without sympy."""


def _needs_algebra(*_: Any) -> bool:
    raise _Algebra


def _at_once(gold: str, answer: str | None) -> str | None:
    """The outcome where digits and words decide; None where algebra must."""
    try:
        wanted = answers.read(gold)
    except answers.Unreadable:
        return "bad_gold"
    if wanted.algebra():
        return None
    try:
        given = wanted if answer is None else answers.read(answer)
        return "correct" if answers.same(wanted, given, _needs_algebra) else "wrong"
    except answers.Unreadable:
        return "unparsed"
    except _Algebra:
        return None


def completion_text(completion: Any) -> str:
    """The text to judge: a text, or of a chat the last message that has one.

    A message's content may be missing, None, or a list of parts, of which those of type text are joined.
    """
    if isinstance(completion, str):
        return completion
    for message in reversed(completion or []):
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list | tuple):
            parts = [part.get("text") if isinstance(part, dict) else part for part in content]
            content = "".join(part for part in parts if isinstance(part, str))
        if isinstance(content, str) and content.strip() and message.get("role", "assistant") == "assistant":
            return content
    return ""


def last_boxed(text: str) -> str | None:
    """Content of the last whole ``\\boxed{…}`` that is not empty, braces balanced; None without one."""
    # one pass, as a text that repeats itself can open thousands of boxes and close none
    open_braces: list[int | None] = []  # where a box's content starts; None for any other brace
    found = slice(0)
    for match in BRACES.finditer(text):
        if match["box"] or match[0] == "{":
            open_braces.append(match.end() if match["box"] else None)
        elif match[0] == "}" and open_braces and (start := open_braces.pop()) is not None:
            inside = slice(start, match.start())
            if inside.stop - start > answers.LONGEST or text[inside].strip():
                found = inside  # a box around others closes last, and counts
    return NESTED.sub(r"\1", text[found].strip()) or None


def chosen_letter(box: str) -> str | None:
    """The choice that a box names, or None."""
    match = CHOICE.fullmatch(TEXT_COMMAND.sub(r"\1", box).strip(" $\n\t"))
    return match[1] if match else None
