"""Algebra in answers, in processes of its own: the other half of `gdro.tasks.math.rewards`.

What sympy does with a model's text can run forever or take all memory, also inside C code, where no Python
code can end it. So this file runs as a script, without gdro: it forks workers, which an alarm of the system
ends when one answer takes too long. Standard input has pairs ``[gold, answer]`` as JSON, standard output
their outcomes.
"""

import ctypes
import json
import logging
import mmap
import os
import resource
import signal
import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))  # last, as it holds a math.py
answers = import_module("answers")

WORKERS = 8  # they share memory, and slow answers overlap
MEMORY_BYTES = 2 * 2**30  # of one worker; a runaway computation becomes a MemoryError
# processor time, as that of all limits here: a verdict must not depend on how busy a machine is
QUICK_SECONDS = 0.1
SLOW_ANSWERS = 2  # may take their whole time; more of them share it
# by the number that a worker reports; nothing is reported yet at 0
VERDICTS = ("", "correct", "wrong", "unparsed", "error", "bad_gold", "timeout", "crash")
TIMEOUT, CRASH = VERDICTS.index("timeout"), VERDICTS.index("crash")
DIGITS, NEARLY = 30, 1e-20  # two values that agree so closely are equal
# hundredths: values of the variables at the points where two expressions are compared
POINTS = ((137, 261, 83, 319), (29, 71, 587, 113), (-161, -43, 223, -370), (790, -530, -91, 410))
WARM_UP = r"\frac{x}{2}; 0.5x; \sqrt{12}; (x-1)(x+1); x^2-1; 2\pi; \sin 2x; 2^{n}; (1,\pi]".split("; ")  # noqa: SIM905


@lru_cache(maxsize=64)
def expression(latex: str) -> Any:
    """What sympy makes of an answer's algebra, with decimals as exact fractions."""
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
    from sympy import Float, I, Rational, Symbol

    for sign, command in answers.BACK.items():
        latex = latex.replace(sign, command)
    config = ConversionConfig(lowercase_symbols=False)
    parsed = latex2sympy(latex, convert_degrees=True, conversion_config=config)
    parsed = parsed.xreplace({number: Rational(str(number)) for number in parsed.atoms(Float)})
    return parsed.doit().subs(Symbol("i"), I)


def values(*expressions: Any) -> list[list[Any]]:
    """Values of the expressions at each point, without the points at which the first is not real."""
    from sympy import Rational

    symbols = sorted(set().union(*(one.free_symbols for one in expressions)), key=str)
    found: list[list[Any]] = []
    for point in POINTS if symbols else POINTS[:1]:
        at = {symbol: Rational(point[place % 4] + place, 100) for place, symbol in enumerate(symbols)}
        found.append([one.subs(at).evalf(DIGITS) for one in expressions])
    found = [point for point in found if all(value.is_number and value.is_finite for value in point)]
    return [point for point in found if point[0].is_real] or found


def near(one: Any, other: Any, error: float = 0.0) -> bool:
    """Whether two values differ by a relative error at most, and by what rounding explains."""
    return abs(one - other) <= max(error, NEARLY) * max(abs(one), abs(other)) + 1e-100


def equal(gold: Any, given: Any, error: float = 0.0) -> bool:
    """Whether two texts have the same value wherever it is tried, as algebra that is not equal never has.

    Two relations (left, sign, right) are equal if the differences of their sides are in one ratio.
    """
    if not isinstance(gold, tuple):
        wanted, got = expression(str(gold)), expression(str(given))
        found = [] if wanted == got else values(wanted, got)
        return wanted == got or (bool(found) and all(near(one, other, error) for one, other in found))
    less = [(right, left) if sign in ">≥" else (left, right) for left, sign, right in (gold, given)]
    differences = [expression(left) - expression(right) for left, right in less]
    ratios = [one / other for one, other in values(*differences) if other != 0]
    same_signs = len({sign.translate({ord(">"): "<", ord("≥"): "≤"}) for _, sign, _ in (gold, given)}) == 1
    positive = gold[1] == "=" or all(ratio > 0 for ratio in ratios)
    return bool(ratios) and same_signs and positive and all(near(ratio, ratios[0]) for ratio in ratios)


def outcome(gold: str, answer: str | None) -> str:
    """Verify one answer, in a worker; see `MathReward.verify`."""
    try:
        wanted = answers.read(gold)
        for latex in wanted.algebra():
            values(expression(latex))  # should that never end, it comes to light here
    except Exception:  # whatever sympy raises on such a text
        return "bad_gold"
    try:
        given = wanted if answer is None else answers.read(answer)
        return "correct" if answers.same(wanted, given, equal) else "wrong"
    except answers.Unreadable:
        return "unparsed"
    except Exception:
        return "error"


def verify_all(pairs: list[list], seconds: float) -> list[str]:
    """Outcomes of all pairs, an answer taking so many seconds of processor time at most.

    Each first has a short time, so that slow answers take nothing from the others. Those that need longer
    then share the time of `SLOW_ANSWERS`. So a batch of nothing but slow answers ends soon, too.
    """
    codes = mmap.mmap(-1, max(1, len(pairs)))  # shared with the workers
    run_workers(pairs, range(len(pairs)), min(QUICK_SECONDS, seconds), codes)
    slow = [place for place in range(len(pairs)) if codes[place] == TIMEOUT]
    share = min(seconds, SLOW_ANSWERS * seconds / max(1, len(slow)))
    if share > QUICK_SECONDS:
        run_workers(pairs, slow, share, codes)
    return [VERDICTS[code] for code in codes[: len(pairs)]]


def run_workers(pairs: list[list], places: Sequence[int], seconds: float, codes: mmap.mmap) -> None:
    """Fork workers that put the outcome at each place into `codes`.

    A worker takes some of the places in turn. The system ends it when an answer takes too long, whatever it
    does at that time; the first place without an outcome is what ended it, and other workers take the rest.
    """
    todo, running = list(places), dict[int, list[int]]()
    for place in places:
        codes[place] = 0
    while todo or running:
        while todo and len(running) < WORKERS:
            size = max(1, len(todo) // (2 * WORKERS))
            mine, todo = todo[:size], todo[size:]
            if not (pid := os.fork()):
                follow_parent()
                try:
                    for place in mine:
                        signal.setitimer(signal.ITIMER_PROF, seconds)
                        codes[place] = VERDICTS.index(outcome(*pairs[place]))
                finally:
                    os._exit(0)
            running[pid] = mine
        pid, status = os.wait()
        if rest := [place for place in running.pop(pid) if not codes[place]]:
            codes[rest[0]] = TIMEOUT if os.waitstatus_to_exitcode(status) == -signal.SIGPROF else CRASH
            todo += rest[1:]


def follow_parent() -> None:
    """Have Linux kill this process when its parent has died, so that no computation outlives a program."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def main() -> None:
    """Read pairs, write outcomes. No threads here, so that forks are safe."""
    follow_parent()  # the program that waits for the outcomes
    pairs, seconds = json.load(sys.stdin), float(sys.argv[1])
    reply = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing else may write into the reply
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    # the first use of a rule imports and builds it: what workers inherit, they need not
    for text in WARM_UP:
        outcome(text, WARM_UP[0])
    json.dump(verify_all(pairs, seconds), reply)


if __name__ == "__main__":
    main()
