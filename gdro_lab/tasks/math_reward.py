"""The math reward: 1 for a completion whose last ``\\boxed{…}`` says the same as the answer key.

A key that is a letter A–J is a multiple choice. A key that is an integer or a plain decimal is
compared with the number in the box, exactly. All other keys are judged by math-verify, in
processes that are killed when an answer takes too long. docs/rewards.md says what none of these
can judge.
"""

import importlib.util
import multiprocessing
import re
import resource
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

LETTERS = "ABCDEFGHIJ"
# how a completion can turn out; all but "correct" are wrong
OUTCOMES = ("correct", "wrong", "no_box", "timeout", "error")
WORKERS = 8  # slow answers overlap
MEMORY_BYTES = 2 * 2**30  # that a worker may add; a runaway computation becomes a MemoryError

# an escaped brace is the sign of a set and groups nothing
BRACES = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*\{)|\\.|[{}]", re.DOTALL)
NESTED = re.compile(r"^(?:\\(?:boxed|fbox)\s*\{)+([^{}]*)\}+$")
# a letter and perhaps what it stands for, but not a second letter
CHOICE = re.compile(r"\(?([A-J])(?:[.:)]+(?!\W*(?:and|or)?\W*[A-J]\b(?!\s+[a-z])).*)?", re.DOTALL)

# commands that change the look of a text and not what it says
COLOR = re.compile(r"\\(?:text)?color\s*\{[^{}]*\}")
STYLE = re.compile(
    r"\\(?:text|mathrm|mathbf|mathit|mathsf|mathbb|textbf|textit|textrm|textsf|emph|bm|boldsymbol"
    r"|underline|mbox|displaystyle|textstyle|left|right|bf|rm|large|quad|qquad)(?![A-Za-z])|\\[!()\[\]]|\\?\$"
    r"|(?:\\[,;:]|~)(?!\d)"
)
GROUP = re.compile(r"(?<![\^_A-Za-z}])\{([^{},]*)\}(?!\{)")  # braces that are no argument
FRACTION = re.compile(r"\\[dtc]?frac\s*(?:\{([^{}]*)\}|(\d))\s*(?:\{([^{}]*)\}|(\d))")

DIGITS = r"(?:\d{1,3}(?:(?:,|\{,\}|\\,|\\ |[ ~])\d{3})+(?!\d)|\d+)"
DECIMAL = rf"(?:{DIGITS}(?:\.\d*)?|\.\d+)"
PLAIN = re.compile(rf"[-+−]?\s*{DECIMAL}", re.ASCII)
# such as x =, f(2) =, a_5 = or m + n =
NAME = r"(?:(?:[A-Za-z]|\\angle )(?:[A-Za-z'+ -]|_(?:\w|\{\w+\})|\([\w ]*\))*=\s*)?"
UNIT = (
    r"(?:(?:square|sq\.?|cubic)\s*)?(?:(?:[kcm]|kilo|centi|milli)?met(?:er|re)s?|[kcmd]?m|in|inch(?:es)?"
    r"|feet|foot|ft|yards?|yd|miles?|mi|units?|[km]?g|(?:kilo|milli)?grams?|pounds?|lbs?|ounces?|oz"
    r"|m?[lL]|(?:milli)?lit(?:er|re)s?|degrees?|dollars?|hours?|h|minutes?|min|seconds?|s|days?"
    r"|weeks?|months?|years?|mph|points?|ways?|people)(?:\s*\^\s*\{?[23]\}?)?"
)
UNITS = rf"(?:{UNIT}(?:\s*(?:/|per)\s*{UNIT})?|\\?%|°|\^\s*\{{?\s*(?:\\circ|°)\s*\}}?|\\degree)"
NUMBER = re.compile(
    rf"{NAME}(?P<sign>[-+−]?)\s*(?:"
    rf"(?:(?P<whole>{DIGITS})\s+)?(?P<top>-?{DIGITS})\s*/\s*(?P<bottom>{DIGITS})"
    rf"|(?P<decimal>{DECIMAL})(?:\s*(?:\\times|\\cdot|×|·)\s*10\s*\^\s*\{{?(?P<power>-?\d{{1,3}})\}}?)?"
    rf")\s*(?P<units>{UNITS})?",
    re.ASCII,
)
LONGEST = 200  # characters of a box that are read as a number


class MathReward:
    """1 for a completion whose last ``\\boxed{…}`` says the same as the answer key.

    Args:
        signed: a wrong completion gets −1 instead of 0.
        time_limit: seconds of processor time that math-verify has for an answer. An answer that
            takes longer is wrong.

    Attributes:
        counts: completions by outcome, see `OUTCOMES`, over all calls.
    """

    __name__ = "math_reward"  # TRL names its metrics after it

    def __init__(self, *, signed: bool = False, time_limit: float = 5.0) -> None:
        if missing := [name for name in ("math_verify", "pebble") if not _installed(name)]:
            raise ImportError(f"{missing[0]} is not installed; pip install -e '.[math]'")
        if not 0 < time_limit < float("inf"):
            raise ValueError(f"time_limit must be a finite number above 0, got {time_limit!r}")
        self.time_limit = time_limit
        self.signed = signed
        self.counts = Counter(dict.fromkeys(OUTCOMES, 0))

    def __call__(
        self, completions: Sequence[Any], answer: Sequence[str], **kwargs: Any
    ) -> list[float]:
        """Score R completions: 1.0 for a correct one, else 0.0, or −1.0 if ``signed``.

        Args:
            completions: texts, or chats (lists of messages), of which the last with a text is read.
            answer: the answer keys, a column of the data set; an empty one is a ValueError.
            **kwargs: TRL's other arguments; ``uid`` is used in messages.
        """
        if len(answer) != len(completions):
            raise ValueError(f"answer must have {len(completions)} entries, got {len(answer)}")
        uids = kwargs.get("uid") or [None] * len(answer)
        outcomes, pairs = ["no_box"] * len(answer), dict[int, tuple[str, str]]()
        for row, (completion, key) in enumerate(zip(completions, answer, strict=True)):
            if not isinstance(key, str) or not key.strip():
                raise ValueError(f"answer must be a text, got {key!r} (uid {uids[row]!r})")
            if (box := last_boxed(completion_text(completion))) is not None:
                pairs[row] = key, box
        for row, outcome in zip(pairs, self.judge(list(pairs.values())), strict=True):
            outcomes[row] = outcome
        self.counts.update(outcomes)
        wrong = -1.0 if self.signed else 0.0
        return [1.0 if outcome == "correct" else wrong for outcome in outcomes]

    def judge(self, pairs: Sequence[tuple[str, str]]) -> list[str]:
        """Outcome of each (answer key, content of the box); equal pairs are judged once."""
        found = {pair: judge_at_once(*pair) for pair in pairs}
        if rest := [pair for pair, outcome in found.items() if outcome is None]:
            found |= zip(rest, self._judge_in_processes(rest), strict=True)
        return [found[pair] or "error" for pair in pairs]

    def _judge_in_processes(self, pairs: Sequence[tuple[str, str]]) -> list[str]:
        """What math-verify says. On a model's text it can run forever or take all memory."""
        import math_verify
        import pebble

        # Its grammar is loaded here, once: workers inherit it, and their time is the answer's.
        math_verify.parse("\\boxed{1+x}", parsing_timeout=None)

        # A fork starts at once, and needs no guard of the main module as a spawned process does.
        context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
        size = min(WORKERS, len(pairs))
        with pebble.ProcessPool(size, initializer=_start_worker, context=context) as pool:
            limit = self.time_limit
            # The worker's own timer counts processor time, so that a busy machine changes no
            # verdict. Pebble's counts the time of the clock, and ends what only waits.
            futures = [
                pool.schedule(_same, (*pair, limit), timeout=20 * limit + 60) for pair in pairs
            ]
            return [_outcome(future) for future in futures]


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _outcome(future: Any) -> str:
    import pebble

    try:
        return "correct" if future.result() else "wrong"
    except TimeoutError:
        return "timeout"
    except pebble.ProcessExpired as error:
        return "timeout" if error.exitcode == -signal.SIGPROF else "error"
    except (ArithmeticError, ValueError, TypeError, MemoryError, RecursionError):
        return "error"


def _start_worker() -> None:
    import logging

    logging.disable(logging.CRITICAL)  # math-verify logs what it cannot read
    if (status := Path("/proc/self/statm")).exists():
        size = int(status.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY_BYTES, resource.RLIM_INFINITY))


def _same(key: str, box: str, seconds: float) -> bool:
    """math-verify's verdict, in a worker; the system ends that after so many seconds."""
    from math_verify import parse, verify

    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        wanted, given = (parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (key, box))
        return bool(verify(wanted, given, timeout_seconds=None))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def judge_at_once(key: str, box: str) -> str | None:
    """The outcome for a letter, a number or the key's own text; None for math-verify to judge."""
    key, box = (last_boxed(key) or key).strip(), box.strip()
    if len(key) == 1 and key in LETTERS:
        return "correct" if chosen_letter(box) == key else "wrong"
    if len(key) <= LONGEST and PLAIN.fullmatch(cleaned(key)):
        return "correct" if set(read_number(key)) & set(read_number(box)) else "wrong"
    return "correct" if cleaned(key) == cleaned(box) else None


def read_number(text: str) -> list[Fraction]:
    """The value of a number in digits, perhaps with a name and a unit; [] for anything else.

    Numbers are integers, decimals, fractions, mixed numbers and 2 × 10³; 25% is 25 and 1/4.
    """
    match = NUMBER.fullmatch(cleaned(text)) if len(text) <= LONGEST else None
    if match is None:
        return []
    if match["decimal"]:
        value = Fraction(_digits(match["decimal"])) * Fraction(10) ** int(match["power"] or 0)
    elif (bottom := int(_digits(match["bottom"]))) == 0:
        return []
    else:
        value = int(_digits(match["whole"] or "0")) + Fraction(int(_digits(match["top"])), bottom)
    value *= -1 if match["sign"] in ("-", "−") else 1
    return [value, value / 100] if "%" in (match["units"] or "") else [value]


def _digits(text: str) -> str:
    return re.sub(r"[^\d.-]", "", text)


def cleaned(text: str) -> str:
    """The text without commands of style, and with fractions as 1/2."""
    if len(text) > LONGEST:
        return text
    text, before = COLOR.sub(" ", text.replace("\\!", "")), ""
    text = STYLE.sub(" ", text)
    while text != before:  # from the inside out
        before, text = text, GROUP.sub(r" \1 ", FRACTION.sub(_as_quotient, text))
    return re.sub(r"\s+", " ", text).strip().removesuffix(".").strip()


def _as_quotient(match: re.Match) -> str:
    top, bottom = match[1] or match[2] or "", match[3] or match[4] or ""
    return f" {top.strip()}/{bottom.strip()} "


def completion_text(completion: Any) -> str:
    """The text to judge: a text, or of a chat the last message of the assistant that has one.

    A message's content may be missing, None, or a list of parts, of which the texts are joined.
    """
    if isinstance(completion, str):
        return completion
    for message in reversed(completion or []):
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list | tuple):
            parts = [part.get("text") if isinstance(part, dict) else part for part in content]
            content = "".join(part for part in parts if isinstance(part, str))
        is_answer = isinstance(content, str) and content.strip()
        if is_answer and message.get("role", "assistant") == "assistant":
            return content
    return ""


def last_boxed(text: str) -> str | None:
    """Content of the last whole ``\\boxed{…}`` that is not empty; None without one."""
    # one pass, as a text that repeats itself can open thousands of boxes and close none
    open_braces: list[int | None] = []  # where a box's content starts; None for any other brace
    found = slice(0)
    for match in BRACES.finditer(text):
        if match["box"] or match[0] == "{":
            open_braces.append(match.end() if match["box"] else None)
        elif match[0] == "}" and open_braces and (start := open_braces.pop()) is not None:
            inside = slice(start, match.start())
            if inside.stop - start > LONGEST or text[inside].strip():
                found = inside  # a box around others closes last, and counts
    return NESTED.sub(r"\1", text[found].strip()) or None


def chosen_letter(box: str) -> str | None:
    """The choice that a box names, or None."""
    match = CHOICE.fullmatch(cleaned(box))
    return match[1] if match else None
