r"""The math reward: 1 for a completion whose answer says the same as the answer key.

The answer is read from the last `\boxed{…}`, or as `MathReward` is told, and judged by
`gdro_lab.tasks.judging`: at once, or where expressions are to be compared in processes that are
killed when an answer takes too long. docs/rewards.md has the rules, and what they cannot tell.
"""

import logging
import multiprocessing
import resource
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import pebble
from pydantic import Field

from gdro.checks import check
from gdro_lab.tasks.answers import (
    FORMS,
    Compare,
    Reader,
    Several,
    completion_text,
    last_boxed,
    read_answer,
)
from gdro_lab.tasks.judging import Judge, NeedsSymbolsError
from gdro_lab.tasks.numerals import clean
from gdro_lab.tasks.symbolic import same_expressions

# how a completion can turn out; all but "correct" are wrong
OUTCOMES = ("correct", "wrong", "no_answer", "timeout", "error")
WORKERS = 8  # slow answers overlap
MEMORY_BYTES = 2 * 2**30  # that a worker may add; a runaway computation becomes a MemoryError
Key = Annotated[str, Field(pattern=r"\S")]
Keys = Key | Annotated[list[Key], Field(min_length=1)]


class MathReward:
    """1 for a completion whose answer says the same as the answer key.

    Args:
        signed: a wrong completion gets −1 instead of 0.
        completion: where the answer is in a completion.
        time_limit: seconds of processor time that an answer may take; longer is wrong.
        several: what a list of keys asks for, "any" of them or "all".
        tolerance: how far a number may be from its key, relative to the key; 0 compares exactly.
        compare: "math", or "text" for keys that are words, without mathematics.

    Attributes:
        counts: completions by outcome, see `OUTCOMES`, over all calls.
    """

    __name__ = "math_reward"  # TRL names its metrics after it

    def __init__(
        self,
        *,
        signed: bool = False,
        completion: Reader = "boxed",
        time_limit: float = 5.0,
        several: Several = "any",
        tolerance: float = 0.0,
        compare: Compare = "math",
    ) -> None:
        self.signed = signed
        self.completion = check("completion", completion, Reader)
        self.time_limit = check("time_limit", time_limit, gt=0)
        self.several = check("several", several, Several)
        self.tolerance = check("tolerance", tolerance, ge=0, lt=1)
        self.compare = check("compare", compare, Compare)
        self.counts = Counter(dict.fromkeys(OUTCOMES, 0))

    def __call__(
        self, completions: Sequence[Any], answer: Sequence[str | list[str]], **kwargs: Any
    ) -> list[float]:
        """Score R completions: 1.0 for a correct one, else 0.0, or −1.0 if `signed`.

        Args:
            completions: texts, or chats (lists of messages), of which the last with a text is read.
            answer: the answer keys, a column of the data set; an empty one is a ValueError.
            **kwargs: TRL's other arguments, which are not used.
        """
        texts = [completion_text(completion) for completion in completions]
        outcomes = self._outcomes(texts, answer)
        self.counts.update(outcomes)
        wrong = -1.0 if self.signed else 0.0
        return [1.0 if outcome == "correct" else wrong for outcome in outcomes]

    def accepts_itself(self, answer: Sequence[str | list[str]]) -> list[bool]:
        """Whether each key, written as completions write it, is read and judged as right."""
        form = FORMS[self.completion]
        texts = [form.replace("ANSWER", self._several_keys(keys)[0]) for keys in answer]
        return [outcome == "correct" for outcome in self._outcomes(texts, answer)]

    def judge(self, pairs: Sequence[tuple[str | list[str], str]]) -> list[str]:
        """Outcome of each answer key, or list of keys, with an answer; equal pairs count once."""
        singles = [(key, answer) for keys, answer in pairs for key in self._several_keys(keys)]
        found = {pair: self._judge_at_once(*pair) for pair in singles}
        if rest := [pair for pair, outcome in found.items() if outcome is None]:
            found |= zip(rest, self._judge_in_processes(rest), strict=True)
        outcomes = []
        for keys, answer in pairs:
            several = [found[key, answer] or "error" for key in self._several_keys(keys)]
            outcomes.append("correct" if "correct" in several else several[0])
        return outcomes

    def _outcomes(self, texts: Sequence[str], answer: Sequence[str | list[str]]) -> list[str]:
        check("answer", list(answer), list[Keys])
        outcomes = ["no_answer"] * len(answer)
        pairs: dict[int, tuple[str | list[str], str]] = {}
        for row, (text, keys) in enumerate(zip(texts, answer, strict=True)):
            said = read_answer(text, self.completion)
            if said is not None:
                pairs[row] = (keys, said)
        for row, outcome in zip(pairs, self.judge(list(pairs.values())), strict=True):
            outcomes[row] = outcome
        return outcomes

    def _several_keys(self, keys: str | list[str]) -> list[str]:
        """The keys of which one is enough."""
        if isinstance(keys, str):
            return [keys]
        return list(keys) if self.several == "any" else [", ".join(keys)]

    def _judge_at_once(self, key: str, answer: str) -> str | None:
        if self.compare == "math":
            return judge_at_once(key, answer, self.tolerance)
        texts = [last_boxed(text) or text for text in (key, answer)]
        items = [text.split(",") if self.several == "all" else [text] for text in texts]
        wanted, given = (sorted(map(plain_words, texts)) for texts in items)
        return "correct" if wanted == given else "wrong"

    def _judge_in_processes(self, pairs: Sequence[tuple[str, str]]) -> list[str]:
        """Judge expressions; on a model's text that can run forever or take all memory."""
        # Its grammar is loaded here, once: workers inherit it, and their time is the answer's.
        same_expressions("1+x", "x")
        # A fork starts at once, and needs no guard of the main module as a spawned process does.
        context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
        size = min(WORKERS, len(pairs))
        limit = self.time_limit
        with pebble.ProcessPool(size, initializer=_start_worker, context=context) as pool:
            # The worker's own timer counts processor time, so that a busy machine changes no
            # verdict. Pebble's counts the time of the clock, and ends what only waits.
            futures = [
                pool.schedule(_same, (*pair, self.tolerance, limit), timeout=20 * limit + 60)
                for pair in pairs
            ]
            return [_outcome(future) for future in futures]


def _outcome(future: Any) -> str:
    try:
        return "correct" if future.result() else "wrong"
    except TimeoutError:
        return "timeout"
    except pebble.ProcessExpired as error:
        return "timeout" if error.exitcode == -signal.SIGPROF else "error"
    except Exception:  # sympy raises anything on a model's text
        return "error"


def _start_worker() -> None:
    logging.disable(logging.CRITICAL)  # math-verify logs what it cannot read
    if (status := Path("/proc/self/statm")).exists():
        size = int(status.read_text().split()[0]) * resource.getpagesize()
        _, most = resource.getrlimit(resource.RLIMIT_AS)  # which only root may raise
        limit = size + MEMORY_BYTES
        if most != resource.RLIM_INFINITY:
            limit = min(limit, most)
        resource.setrlimit(resource.RLIMIT_AS, (limit, most))


def _same(key: str, answer: str, tolerance: float, seconds: float) -> bool:
    """The verdict, in a worker that the system ends after so many seconds of its processor."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return Judge(same_expressions, tolerance).accepts(key, answer)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def judge_at_once(key: str, answer: str, tolerance: float = 0.0) -> str | None:
    """The outcome where no expressions are to be compared; else None."""
    try:
        return "correct" if Judge(tolerance=tolerance).accepts(key, answer) else "wrong"
    except NeedsSymbolsError:
        return None


def plain_words(text: str) -> str:
    """A text without case, style, and marks around it, and with single spaces."""
    return " ".join(clean(text).casefold().split()).strip("'\"*.,;:!? ")
