"""Rewards for answers in a box: mathematics by math-verify, multiple choice by its letter.

Both are callables in the shape of TRL's ``reward_funcs``. Nothing is scored in silence: each keeps
a count of its outcomes, and an answer key that cannot be parsed is an error.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from gdro.tasks.verify import VerifierPool

LETTERS = "ABCDEFGHIJ"
# how a completion can turn out; all but "right" are wrong
OUTCOMES = ("right", "wrong", "no_box", "unparsed", "error", "timeout", "crash")
# an escaped brace is a sign of a set and groups nothing
BRACES = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*\{)|\\.|[{}]", re.DOTALL)
CHOICE = re.compile(r"\(?([A-J])\)?\s*(?:[.:)].*)?", re.DOTALL)
SCIENTIFIC = re.compile(r"([+-]?\d+(?:\.\d+)?)[eE]([+-]?\d+)")
TEXT_COMMAND = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}")


class _BoxedReward:
    """What the two rewards share: texts, counts, values. Subclasses give the outcomes."""

    def __init__(self, name: str, signed: bool):
        self.__name__ = name  # TRL names its metrics after it
        self.signed = signed
        self.counts: Counter[str] = Counter()
        self.seconds = 0.0

    def __call__(self, completions: Sequence[Any], answer: Sequence[str], **kwargs: Any):
        """Score completions.

        Args:
            completions: R texts or chats (lists of messages).
            answer: R right answers, the data set's ``answer`` column.
            **kwargs: TRL's other arguments; ``uid`` is used in messages, ``log_metric`` to report
                the share of each outcome but right and wrong that occurred.

        Returns:
            R floats: 1.0 for a right completion, else 0.0, or −1.0 if ``signed``.

        Raises:
            ValueError: for lengths that differ, a completion of another type, and an empty or
                unparseable answer.
        """
        if len(completions) != len(answer):
            raise ValueError(
                f"answer has {len(answer)} entries for {len(completions)} completions; give one "
                "per completion"
            )
        started = time.monotonic()
        texts = [completion_text(completion) for completion in completions]
        outcomes = self._outcomes(texts, list(answer), kwargs.get("uid"))
        self.seconds += time.monotonic() - started
        now = Counter(outcomes)
        self.counts.update(now)
        log_metric = kwargs.get("log_metric")
        if log_metric is not None and outcomes:
            for name in OUTCOMES[2:]:
                log_metric(f"{self.__name__}/{name}", now[name] / len(outcomes))
        wrong = -1.0 if self.signed else 0.0
        return [1.0 if outcome == "right" else wrong for outcome in outcomes]

    def report(self) -> dict[str, float]:
        """How many completions turned out how so far, and the seconds spent."""
        return {name: self.counts[name] for name in OUTCOMES} | {"seconds": self.seconds}

    def close(self) -> None:
        """End what the reward has started."""

    def __enter__(self):
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _outcomes(self, texts: list[str], answers: list[str], uids: Any) -> list[str]:
        raise NotImplementedError


class MathReward(_BoxedReward):
    """1 for a completion whose boxed answer equals the right one, by math-verify.

    The last ``\\boxed{…}`` counts; a completion without one is wrong and costs no verification.

    Args:
        signed: a wrong completion gets −1 instead of 0.
        time_limit: seconds for one answer; longer is wrong, and counted as a timeout.
        workers: processes to verify in; see :class:`VerifierPool`.
        boxed_only: False lets math-verify look for the answer in the whole completion.

    Attributes:
        counts: completions by outcome, over all calls; see ``OUTCOMES``.
        seconds: wall clock spent, over all calls.
        pool: the workers.

    Raises:
        ValueError, ImportError: as :class:`VerifierPool` does.
    """

    def __init__(
        self,
        *,
        signed: bool = False,
        time_limit: float = 5.0,
        workers: int | None = None,
        boxed_only: bool = True,
    ):
        super().__init__("math_reward", signed)
        self.boxed_only = boxed_only
        self.pool = VerifierPool(time_limit, workers)

    def close(self) -> None:
        """End the workers. Closing twice does nothing."""
        self.pool.close()

    def _outcomes(self, texts, answers, uids):
        for row, answer in enumerate(answers):
            if not isinstance(answer, str) or not answer.strip():
                raise ValueError(f"answer of {_place(row, uids)} is {answer!r}; give its text")
        given = {row: self._to_parse(text) for row, text in enumerate(texts)}
        rows = [row for row, text in given.items() if text is not None]
        pairs = [(boxed(answers[row]), given[row]) for row in rows]
        outcomes = ["no_box"] * len(texts)
        for row, outcome in zip(rows, self.pool.verify(pairs), strict=True):
            if outcome == "bad_gold":
                raise ValueError(
                    f"answer of {_place(row, uids)} is {answers[row]!r}, which math-verify cannot "
                    "parse; leave the row out (load_math finds such rows beforehand)"
                )
            outcomes[row] = outcome
        return outcomes

    def _to_parse(self, text: str) -> str | None:
        box = last_boxed(text) if self.boxed_only else text
        return boxed(box) if self.boxed_only and box is not None else box


class ChoiceReward(_BoxedReward):
    """1 for a completion whose boxed letter is the right choice; needs no math-verify.

    ``\\boxed{B}``, ``\\boxed{(B)}``, ``\\boxed{\\text{B}}`` and ``\\boxed{B) its text}`` all say B.

    Args:
        signed: a wrong completion gets −1 instead of 0.

    Attributes:
        counts, seconds: as in :class:`MathReward`; "unparsed" is a box without a letter.
    """

    def __init__(self, *, signed: bool = False):
        super().__init__("choice_reward", signed)

    def _outcomes(self, texts, answers, uids):
        outcomes = []
        for row, (text, answer) in enumerate(zip(texts, answers, strict=True)):
            if not (isinstance(answer, str) and len(answer) == 1 and answer in LETTERS):
                raise ValueError(
                    f"answer of {_place(row, uids)} is {answer!r}; a choice is one letter of "
                    f"{LETTERS[0]}–{LETTERS[-1]}"
                )
            box = last_boxed(text)
            letter = None if box is None else chosen_letter(box)
            if letter is None:
                outcomes.append("no_box" if box is None else "unparsed")
            else:
                outcomes.append("right" if letter == answer else "wrong")
        return outcomes


def completion_text(completion: Any) -> str:
    """The text of a completion: itself, or the content of a chat's last assistant message.

    Raises:
        ValueError: if it is neither a text nor a list of messages.
    """
    if isinstance(completion, str):
        return completion
    if isinstance(completion, Sequence) and all(isinstance(part, dict) for part in completion):
        spoken = [part for part in completion if part.get("role", "assistant") == "assistant"]
        content = spoken[-1].get("content") if spoken else None
        if content is None:  # a turn that only calls a tool says nothing
            return ""
        if isinstance(content, str):
            return content
        return "".join(block.get("text") or "" for block in content)
    raise ValueError(
        f"a completion is of type {type(completion).__name__}; give text, or a list of messages "
        "with role and content"
    )


def last_boxed(text: str) -> str | None:
    """What the last whole ``\\boxed{…}`` of a text holds, braces balanced; None without one.

    Empty boxes do not count: they echo the prompt.
    """
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
    """An answer as math-verify reads it best: in one box, without dollar signs around formulas.

    A number such as 4.5e33 becomes 4.5 × 10^{33}: its e would be read as Euler's number.
    """
    inner = last_boxed(answer)
    bare = answer if inner is None else inner
    bare = re.sub(r"(?<!\\)\$", "", bare).strip()
    number = SCIENTIFIC.fullmatch(bare)
    if number:
        bare = f"{number[1]} \\times 10^{{{int(number[2])}}}"
    return f"\\boxed{{{bare}}}"


def chosen_letter(box: str) -> str | None:
    """The choice that a box names, or None."""
    match = CHOICE.fullmatch(TEXT_COMMAND.sub(r"\1", box).strip(" $\n\t"))
    return match[1] if match else None


def _place(row: int, uids: Any) -> str:
    return f"completion {row}" + ("" if uids is None else f" (uid {uids[row]!r})")
