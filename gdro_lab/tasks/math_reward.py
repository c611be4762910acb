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
    Reader,
    completion_text,
    read_answer,
)
from gdro_lab.tasks.judging import Judge, NeedsSymbolsError
from gdro_lab.tasks.symbolic import same_expressions

# how a completion can turn out; all but "correct" are wrong
OUTCOMES = ("correct", "wrong", "no_answer", "timeout", "error")
WORKERS = 8  # slow answers overlap
MEMORY_BYTES = 2 * 2**30  # that a worker may add; a runaway computation becomes a MemoryError
Key = Annotated[str, Field(pattern=r"\S")]


class MathReward:
    """1 for a completion whose answer says the same as the answer key.

    Args:
        signed: a wrong completion gets −1 instead of 0.
        completion: where the answer is in a completion.
        time_limit: seconds of processor time that an answer may take; longer is wrong.

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
    ) -> None:
        self.signed = signed
        self.completion = check("completion", completion, Reader)
        self.time_limit = check("time_limit", time_limit, gt=0)
        self.counts = Counter(dict.fromkeys(OUTCOMES, 0))

    def __call__(
        self, completions: Sequence[Any], answer: Sequence[str], **kwargs: Any
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

    def accepts_itself(self, answer: Sequence[str]) -> list[bool]:
        """Whether each key, written as completions write it, is read and judged as right."""
        form = FORMS[self.completion]
        texts = [form.replace("ANSWER", key) for key in answer]
        return [outcome == "correct" for outcome in self._outcomes(texts, answer)]

    def judge(self, pairs: Sequence[tuple[str, str]]) -> list[str]:
        """Outcome of each answer key with an answer; equal pairs count once."""
        found = {pair: judge_at_once(*pair) for pair in pairs}
        if rest := [pair for pair, outcome in found.items() if outcome is None]:
            found |= zip(rest, self._judge_in_processes(rest), strict=True)
        return [found[pair] or "error" for pair in pairs]

    def _outcomes(self, texts: Sequence[str], answer: Sequence[str]) -> list[str]:
        check("answer", list(answer), list[Key])
        outcomes = ["no_answer"] * len(answer)
        pairs: dict[int, tuple[str, str]] = {}
        for row, (text, keys) in enumerate(zip(texts, answer, strict=True)):
            said = read_answer(text, self.completion)
            if said is not None:
                pairs[row] = (keys, said)
        for row, outcome in zip(pairs, self.judge(list(pairs.values())), strict=True):
            outcomes[row] = outcome
        return outcomes

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
                pool.schedule(_same, (*pair, limit), timeout=20 * limit + 60) for pair in pairs
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


def _same(key: str, answer: str, seconds: float) -> bool:
    """The verdict, in a worker that the system ends after so many seconds of its processor."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return Judge(same_expressions).accepts(key, answer)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def judge_at_once(key: str, answer: str) -> str | None:
    """The outcome where no expressions are to be compared; else None."""
    try:
        return "correct" if Judge().accepts(key, answer) else "wrong"
    except NeedsSymbolsError:
        return None
