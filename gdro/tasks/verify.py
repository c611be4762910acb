"""Verification of mathematical answers, in a process of its own: the other half of `gdro.tasks.rewards`.

What math-verify does with a model's text can run forever or take all memory, also inside C code, where no
Python code can end it. So this file runs as a script, without gdro: it loads math-verify and forks workers,
which an alarm of the system ends when one answer takes too long. Standard input has pairs ``[gold, answer]``
as JSON, standard output their outcomes.
"""

import contextlib
import itertools
import json
import logging
import mmap
import os
import resource
import signal
import sys
from typing import Any

WORKERS = 8  # they share memory, and slow answers overlap
MEMORY_BYTES = 2 * 2**30  # of one worker; a runaway computation becomes a MemoryError
TINY, TINY_TOLERANCE = 1e-4, 0.01
# by the number that a worker reports; nothing is reported yet at 0
VERDICTS = ("", "correct", "wrong", "unparsed", "error", "bad_gold", "timeout", "crash")
WARM_UP = ("\\frac{x}{2}", "0.5 x", "2\\sqrt{3}", "\\sqrt{12}", "(x-1)(x+1)", "x^2", "[2,3)", "\\{2,3\\}")


def outcome(gold: str, answer: str | None) -> str:
    """Verify one answer, in a worker; see `MathReward.verify`."""
    from math_verify import parse, verify

    golds = []
    with contextlib.suppress(Exception):  # whatever sympy raises on such a text
        golds = parse(gold, parsing_timeout=None)
    if all(isinstance(expression, str) for expression in golds):
        return "bad_gold"
    if answer is None:
        outcome(gold, "\\boxed{7}")  # should no comparison with it ever end, that comes to light here
        answer = gold
    answers, failed = parse(answer, parsing_timeout=None), False
    # pair by pair: math-verify's own loop takes a failed comparison for an unequal one in silence
    for wanted, given in itertools.product(golds, answers):
        try:
            equal = verify(wanted, given, timeout_seconds=None, raise_on_error=True)
            if equal and not _is_refuted(wanted, given):
                return "correct"
        except Exception:
            failed = True
    if all(isinstance(expression, str) for expression in answers):
        return "unparsed"
    return "error" if failed else "wrong"


def _is_refuted(wanted: Any, given: Any) -> bool:
    """What math-verify lets pass: an equation between unequal numbers, a miss by over 1% below `TINY`."""
    from sympy import Eq, false

    equations = given.atoms(Eq) if hasattr(given, "atoms") else ()
    if any(not equation.free_symbols and equation.doit() == false for equation in equations):
        return True
    try:
        wanted, given = complex(wanted.evalf()), complex(given.evalf())
    except (AttributeError, TypeError, ValueError):  # no plain numbers
        return False
    return 0 < abs(wanted) < TINY and abs(wanted - given) > TINY_TOLERANCE * abs(wanted)


def verify_all(pairs: list[list], seconds: float) -> list[str]:
    """Outcomes by forked workers. The first answer that one leaves without an outcome ended it."""
    codes = mmap.mmap(-1, max(1, len(pairs)))  # shared with the workers
    todo, running, parent = list(range(len(pairs))), dict[int, list[int]](), os.getppid()
    while todo or running:
        while todo and len(running) < WORKERS:
            size = max(1, len(todo) // (2 * WORKERS))
            places, todo = todo[:size], todo[size:]
            if not (pid := os.fork()):
                try:
                    for place in places:
                        signal.setitimer(signal.ITIMER_REAL, seconds)  # ends the process, whatever it does
                        codes[place] = VERDICTS.index(outcome(*pairs[place]))
                finally:
                    os._exit(0)
            running[pid] = places
        pid, status = os.wait()
        if rest := [place for place in running.pop(pid) if not codes[place]]:
            killed_by_alarm = os.waitstatus_to_exitcode(status) == -signal.SIGALRM
            codes[rest[0]] = VERDICTS.index("timeout" if killed_by_alarm else "crash")
            todo += rest[1:]
        if os.getppid() != parent:  # nobody waits for the outcomes any more
            os.killpg(0, signal.SIGKILL)
    return [VERDICTS[code] for code in codes[: len(pairs)]]


def main() -> None:
    """Read pairs, write outcomes. No threads here, so that forks are safe."""
    pairs, seconds = json.load(sys.stdin), float(sys.argv[1])
    reply = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing else may write into the reply
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    # the first use of a rule imports and builds it: what workers inherit, they need not
    for gold, answer in itertools.pairwise(WARM_UP):
        outcome(f"\\boxed{{{gold}}}", f"\\boxed{{{answer}}}")
    json.dump(verify_all(pairs, seconds), reply)


if __name__ == "__main__":
    main()
