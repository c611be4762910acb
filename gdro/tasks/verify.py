"""Algebra in answers, in processes of its own: the other half of `gdro.tasks.rewards`.

What sympy does with a model's text can run forever or take all memory, also inside C code, where no Python
code can end it. So this file runs as a script, without gdro: it forks workers, and pebble kills one whose
answer takes too long. Standard input has pairs ``[gold, answer]`` as JSON, standard output their outcomes.
"""

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

WORKERS = 8  # they share memory, and slow answers overlap
MEMORY_BYTES = 2 * 2**30  # of one worker; a runaway computation becomes a MemoryError
QUICK_SECONDS = 0.2  # of processor time, as all here: a verdict must not depend on how busy a machine is
SLOW_ANSWERS = 4  # may take their whole time; more of them share it
# by the number that a worker reports; nothing is reported yet at 0
VERDICTS = ("", "correct", "wrong", "unparsed", "error", "bad_gold", "timeout", "crash")
DIGITS, NEARLY = 30, 1e-20  # two values that agree so closely are equal
# of all variables, at which two expressions are compared
POINTS = ((1.37, 2.61, 0.83, 3.19), (0.29, 0.71, 5.87, 1.13), (-1.61, -0.43, 2.23, -3.7), (7.9, -5.3, -0.91, 4.1))
WARM_UP = ("\\frac{x}{2}", "0.5x", "2\\sqrt{3}", "\\sqrt{12}", "(x-1)(x+1)", "x^2-1", "2\\pi", "\\sin 2x", "2^{n}")


@lru_cache(maxsize=64)
def expression(latex: str) -> Any:
    """What sympy makes of an answer's algebra; decimals are exact fractions."""
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
    from sympy import Float, I, Rational, Symbol

    for sign, command in import_module("answers").BACK.items():
        latex = latex.replace(sign, command)
    config = ConversionConfig(lowercase_symbols=False)
    parsed = latex2sympy(latex, convert_degrees=True, conversion_config=config)
    parsed = parsed.xreplace({number: Rational(str(number)) for number in parsed.atoms(Float)})
    return parsed.doit().subs(Symbol("i"), I)


def values(*expressions: Any) -> list[list[Any]]:
    """Of each expression its value at each point; those points are left out at which the first is not real."""
    symbols = sorted(set().union(*(one.free_symbols for one in expressions)), key=str)
    points: list[list[Any]] = []
    for point in POINTS if symbols else [()]:
        numbers = [point[place % 4] + place // 4 for place in range(len(symbols))]
        at = dict(zip(symbols, numbers, strict=True))
        points.append([one.evalf(DIGITS, subs=at) for one in expressions])
    points = [point for point in points if all(value.is_number and value.is_finite for value in point)]
    return [point for point in points if point[0].is_real] or points


def near(one: Any, other: Any, error: float = 0) -> bool:
    return abs(one - other) <= max(error, NEARLY) * max(abs(one), abs(other)) + 1e-100


def equal(gold: Any, given: Any, error: float = 0) -> bool:
    """Whether two expressions, or the relations (left, sign, right), are equal: by their values at points."""
    if isinstance(gold, tuple):
        if gold[1].translate(FLIP) != given[1].translate(FLIP):
            return False
        sides = [(left, right) if sign in "=<≤" else (right, left) for left, sign, right in (gold, given)]
        differences = [expression(left) - expression(right) for left, right in sides]
        ratios = [one / other for one, other in values(*differences) if other != 0]
        positive = gold[1] == "=" or all(ratio > 0 for ratio in ratios)
        return bool(ratios) and positive and all(near(ratio, ratios[0]) for ratio in ratios)
    wanted, got = (expression(str(one)) for one in (gold, given))
    if wanted == got:
        return True
    found = values(wanted, got)
    return bool(found) and all(near(one, other, error) for one, other in found)


FLIP = str.maketrans(">≥", "<≤")


def outcome(gold: str, answer: str | None) -> str:
    """Verify one answer, in a worker; see `MathReward.verify`."""
    answers = import_module("answers")
    try:
        wanted = answers.read(gold)
        check(wanted)
    except Exception:  # whatever sympy raises on such a text
        return "bad_gold"
    if answer is None:
        return "correct"
    try:
        given = answers.read(answer)
    except answers.Unreadable:
        return "unparsed"
    try:
        return "correct" if answers.same(wanted, given, equal) else "wrong"
    except Exception:
        return "unparsed" if unreadable(given) else "error"


def check(answer: Any) -> None:
    """Raise what sympy raises on the algebra in an answer, or never end where its value cannot be had."""
    if answer.kind == "algebra":
        values(expression(answer.value))
    elif answer.kind == "chain":
        for side in answer.value[0]:
            check(side)
    elif isinstance(answer.value, tuple):
        for part in answer.value:
            for item in part if answer.kind == "matrix" else [part]:
                if answer.kind != "based":
                    check(item)


def unreadable(answer: Any) -> bool:
    try:
        check(answer)
    except Exception:
        return True
    return False


def verify_all(pairs: list[list], seconds: float) -> list[str]:
    """Outcomes by forked workers.

    Every answer first has a short time, so that slow answers take nothing from the others. Those that need
    longer then share the time of `SLOW_ANSWERS`, each at most `seconds`; what is not done is a "timeout".
    """
    codes = mmap.mmap(-1, max(1, len(pairs)))  # shared with the workers
    slow = range(len(pairs))
    for share in (QUICK_SECONDS, SLOW_ANSWERS * seconds):
        limit = min(seconds, share if share == QUICK_SECONDS else share / max(1, len(slow)))
        if limit >= QUICK_SECONDS or share == QUICK_SECONDS:
            run_workers(pairs, slow, limit, codes)
        slow = [place for place in slow if codes[place] == VERDICTS.index("timeout")]
    return [VERDICTS[code] for code in codes[: len(pairs)]]


def run_workers(pairs: list[list], places: Sequence[int], seconds: float, codes: mmap.mmap) -> None:
    """Put the outcome at each place into `codes`. The first answer that a worker leaves without ended it."""
    todo, running = list(places), dict[int, list[int]]()
    for place in places:
        codes[place] = 0
    while todo or running:
        while todo and len(running) < WORKERS:
            size = max(1, len(todo) // (2 * WORKERS))
            mine, todo = todo[:size], todo[size:]
            if not (pid := os.fork()):
                try:
                    for place in mine:
                        signal.setitimer(signal.ITIMER_PROF, seconds)  # ends the process, whatever it does
                        codes[place] = VERDICTS.index(outcome(*pairs[place]))
                finally:
                    os._exit(0)
            running[pid] = mine
        pid, status = os.wait()
        if rest := [place for place in running.pop(pid) if not codes[place]]:
            killed_by_alarm = os.waitstatus_to_exitcode(status) == -signal.SIGPROF
            codes[rest[0]] = VERDICTS.index("timeout" if killed_by_alarm else "crash")
            todo += rest[1:]


def main() -> None:
    """Read pairs, write outcomes."""
    parent = os.getppid()
    pairs, seconds = json.load(sys.stdin), float(sys.argv[1])
    sys.path.append(str(Path(__file__).parent))  # last, as it holds a math.py
    reply = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing else may write into the reply
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGALRM, lambda *_: os.getppid() == parent or os.killpg(0, signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, 0.5, 0.5)  # no process outlives the one that waits for the outcomes
    # the first use of a rule imports and builds it: what workers inherit, they need not
    for gold in WARM_UP:
        outcome(gold, WARM_UP[0])
    json.dump(verify_all(pairs, seconds), reply)
    signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    main()
