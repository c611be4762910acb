r"""The math reward: 1 for a completion whose answer says the same as the answer key.

The answer is read from the last `\boxed{…}`, or as `MathReward` is told. A key that is a letter
A–J is a multiple choice. A key that is an integer or a plain decimal is compared with the number in
the answer, exactly. All other keys are judged by math-verify, in processes that are killed when an
answer takes too long. docs/rewards.md says what none of these can judge.
"""

import logging
import multiprocessing
import re
import resource
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import math_verify
import pebble
from latex2sympy2_extended.math_normalization import units_regex_pattern
from pydantic import Field

from gdro.checks import check
from gdro_lab.tasks.answers import LONGEST, Reader, completion_text, last_boxed, read_answer

LETTERS = "ABCDEFGHIJ"
# how a completion can turn out; all but "correct" are wrong
OUTCOMES = ("correct", "wrong", "no_answer", "timeout", "error")
WORKERS = 8  # slow answers overlap
MEMORY_BYTES = 2 * 2**30  # that a worker may add; a runaway computation becomes a MemoryError
Key = Annotated[str, Field(pattern=r"\S")]

# a letter and perhaps what it stands for, but not a second letter
CHOICE = re.compile(r"\(?([A-J])(?:[.:)]+(?!\W*(?:and|or)?\W*[A-J]\b(?!\s+[a-z])).*)?", re.DOTALL)
# what changes the look of a text and not what it says
STYLE = re.compile(
    r"\\(?:text)?color\s*\{[^{}]*\}"
    r"|\\(?:text|mbox|emph|bm|boldsymbol|underline|displaystyle|textstyle|left|right|bf|rm|large"
    r"|math(?:rm|bf|it|sf|bb)|text(?:bf|it|rm|sf))(?![A-Za-z])"
    r"|\\[!()\[\]]|\\?\$|\\q?quad(?![A-Za-z])|(?:\\[,;:]|~)(?!\d)"
)
GROUP = re.compile(r"(?<![\^_A-Za-z}])\{([^{},]*)\}(?!\{)")  # braces that are not arguments
# only of numbers: without brackets (x+1)/2 would become x+1/2
PART = r"\s*(?:\{([-+−]?[\d.,\s]+)\}|(\d))"
FRACTION = re.compile(rf"\\[dt]?frac{PART}{PART}", re.ASCII)
DIGITS = r"(?:\d{1,3}(?:(?:,|\{,\}|\\,|\\ |[ ~])\d{3})+(?!\d)|\d+)"  # perhaps in thousands
PLAIN = rf"(?:{DIGITS}(?:\.\d*)?|\.\d+)"
NUMBER = re.compile(rf"[-+−]?\s*{PLAIN}", re.ASCII)
E_NOTATION = re.compile(rf"[-+−]?{PLAIN}[eE][-+]?\d{{1,3}}", re.ASCII)
SCIENTIFIC = re.compile(  # 7e3, 7\times 10^{3} and 10^3: sign, number and exponent
    rf"([-+−]?)\s*(?:({PLAIN})[eE]|(?:({PLAIN})\s*(?:\\times|\\cdot|\*)\s*)?10\s*\^\s*\{{?)"
    r"\s*([-+−]?\d{1,3})\s*\}?",
    re.ASCII,
)
VALUE = re.compile(  # such as 3, 1/4 or 60^\circ
    rf"([-+−]?)\s*({PLAIN}|-?{DIGITS}\s*/\s*{DIGITS})\s*(?:\^\s*\{{?\s*\\circ\s*\}}?)?",
    re.ASCII,
)
# between two signs of equality: of "x = 5 y = 7" the middle is not arithmetic
ARITHMETIC = re.compile(r"(?:[\d\s.+\-−*/^(){}]|\\cdot|\\times)+", re.ASCII)
TIMES = r"\s*(?:[*/]|\\cdot|\\times)?\s*"
# an unknown with a sign or a factor: its own value is another than the right side
UNSOLVED = (
    rf"^[-−]\s*[A-Za-z]$|^[-+−]?\s*(?:{PLAIN}|\\pi){TIMES}(?:\\pi\s*)?[A-Za-z]$"
    rf"|^[-+−]?\s*[A-Za-z]\s*(?:[*/]|\\cdot|\\times)\s*{PLAIN}$"
    rf"|^[-+−]?\s*\\[dt]?frac\s*\{{\s*(?:[A-Za-z]\s*\}}\s*\{{\s*{PLAIN}"
    rf"|{PLAIN}\s*\}}\s*\{{\s*[A-Za-z])\s*\}}$"
)
# a left side that does not name the value on the right: several answers, another relation than
# equality, or an equation still to be solved
NO_NAME = re.compile(
    rf"[,;<>≤≥≈≠]|[!:]$|\b(?:or|and|not)\b|{UNSOLVED}"
    r"|\\(?:not|neq?|approx|sim|equiv|[lg]eq?|[lg]t|pm|mp|to|l?or|land|wedge|vee|in)(?![A-Za-z])"
)
# math-verify's units, each as a word: "million" and "tenths" are none
UNIT = re.compile(units_regex_pattern)
UNIT_BEHIND = re.compile(r"(.*[^\s])\s*\\text\s*\{([^{}]*)\}\s*\.?", re.DOTALL)


class MathReward:
    """1 for a completion whose answer says the same as the answer key.

    Args:
        signed: a wrong completion gets −1 instead of 0.
        completion: where the answer is in a completion.
        time_limit: seconds of processor time that math-verify has for an answer; longer is wrong.

    Attributes:
        counts: completions by outcome, see `OUTCOMES`, over all calls.
    """

    __name__ = "math_reward"  # TRL names its metrics after it

    def __init__(
        self, *, signed: bool = False, completion: Reader = "boxed", time_limit: float = 5.0
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
        check("answer", list(answer), list[Key])
        outcomes = ["no_answer"] * len(answer)
        pairs: dict[int, tuple[str, str]] = {}
        for row, (completion, key) in enumerate(zip(completions, answer, strict=True)):
            said = read_answer(completion_text(completion), self.completion)
            if said is not None:
                pairs[row] = (key, said)
        for row, outcome in zip(pairs, self.judge(list(pairs.values())), strict=True):
            outcomes[row] = outcome
        self.counts.update(outcomes)
        wrong = -1.0 if self.signed else 0.0
        return [1.0 if outcome == "correct" else wrong for outcome in outcomes]

    def judge(self, pairs: Sequence[tuple[str, str]]) -> list[str]:
        """Outcome of each (answer key, answer); equal pairs are judged once."""
        found = {pair: judge_at_once(*pair) for pair in pairs}
        if rest := [pair for pair, outcome in found.items() if outcome is None]:
            found |= zip(rest, self._judge_in_processes(rest), strict=True)
        return [found[pair] or "error" for pair in pairs]

    def _judge_in_processes(self, pairs: Sequence[tuple[str, str]]) -> list[str]:
        """What math-verify says. On a model's text it can run forever or take all memory."""
        # Its grammar is loaded here, once: workers inherit it, and their time is the answer's.
        math_verify.parse("\\boxed{1+x}", parsing_timeout=None)
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
    except (ArithmeticError, ValueError, TypeError, MemoryError, RecursionError):
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


def _same(key: str, box: str, seconds: float) -> bool:
    """math-verify's verdict, in a worker; the system ends that after so many seconds."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        texts = (f"\\boxed{{{text}}}" for text in (key, box))
        wanted, given = (math_verify.parse(text, parsing_timeout=None) for text in texts)
        return bool(math_verify.verify(wanted, given, timeout_seconds=None))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def judge_at_once(key: str, answer: str) -> str | None:
    """The outcome for a letter, a number or the key's own text; None for math-verify to judge."""
    key = clean(last_boxed(key) or key)
    text = clean(answer)
    if len(key) == 1 and key in LETTERS:
        choice = CHOICE.fullmatch(text)
        return "correct" if choice and choice[1] == key else "wrong"
    if len(key) <= LONGEST and NUMBER.fullmatch(key):
        value = value_of(clean(without_unit(answer)))
        return "correct" if value == number_of(key) else "wrong"
    if E_NOTATION.fullmatch(key):
        value = value_of(clean(without_unit(answer)), in_powers=True)
        return "correct" if value == scientific(key) else "wrong"
    return "correct" if key == text else None


def without_unit(answer: str) -> str:
    """An answer such as `20\\text{ square units}` without the unit behind it."""
    match = UNIT_BEHIND.fullmatch(answer) if len(answer) <= LONGEST else None
    if match is None:
        return answer
    words = match[2].replace("per cent", "percent").split()
    return match[1] if all(UNIT.fullmatch(word) for word in words) else answer


def value_of(text: str, in_powers: bool = False) -> Fraction | None:
    """The value of a cleaned answer: a number, or what an equation such as m+n = 113 ends with.

    With `in_powers` a number with a power of ten is one too.
    """
    sides = [side.strip() for side in text.split("=")]
    numbers = [number_of(side) for side in sides]
    if in_powers:
        numbers = [
            scientific(side) if number is None else number
            for side, number in zip(sides, numbers, strict=True)
        ]
    value = numbers.pop()
    if not numbers or value is None:
        return value
    first, *between = sides[:-1]
    if any(number not in (None, value) for number in numbers):  # 8 = 7
        return None
    if NO_NAME.search(first) or not all(ARITHMETIC.fullmatch(side) for side in between):
        return None
    return value


def number_of(text: str) -> Fraction | None:
    """The value of a cleaned text: an integer, a decimal or a quotient; None for any other."""
    match = VALUE.fullmatch(text) if len(text) <= LONGEST else None
    if match is None:
        return None
    top, _, bottom = re.sub(r"[^\d./-]", "", match[2]).partition("/")
    if bottom and int(bottom) == 0:
        return None
    value = Fraction(top) / int(bottom or 1)
    return -value if match[1] in ("-", "−") else value


def scientific(text: str) -> Fraction | None:
    """The value of a cleaned text with a power of ten, such as 7e3; None for any other."""
    match = SCIENTIFIC.fullmatch(text) if len(text) <= LONGEST else None
    if match is None:
        return None
    digits = re.sub(r"[^\d.]", "", match[2] or match[3] or "1")
    value = Fraction(digits) * Fraction(10) ** int(match[4].replace("−", "-"))
    return -value if match[1] in ("-", "−") else value


def clean(text: str) -> str:
    """The text without commands of style, and with fractions of numbers as 1/2."""
    if len(text) > LONGEST:
        return text.strip()
    text = STYLE.sub(" ", text.replace("\\!", ""))
    before = ""
    while text != before:  # from the inside out
        before = text
        text = GROUP.sub(r" \1 ", FRACTION.sub(r" \1\2/\3\4 ", text))
    return re.sub(r"\s+", " ", text).strip().removesuffix(".").strip()
