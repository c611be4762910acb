"""The process that math answers are verified in: one JSON line in, one JSON line out.

Run as a script by :class:`gdro.tasks.verify.VerifierPool`, never imported: symbolic mathematics on
a model's text can hang or eat all memory (9^{9^{9^{9}}} does both), and only a process of its own
can be killed. It needs math-verify and nothing of gdro or torch, so it starts in about a second.

A request is ``[gold, answer]``; the reply is an outcome. With ``answer`` null the gold alone is
tried: ``"gold"`` or ``"bad_gold"``. Else ``"right"``, ``"wrong"``, ``"unparsed"`` (the answer is
no mathematics), ``"error"`` (a comparison failed and none succeeded) or ``"bad_gold"``.
"""

import itertools
import json
import logging
import signal
import sys

from math_verify import parse, verify

PROBE = "\\boxed{7}"
TINY, TINY_TOLERANCE = 1e-4, 0.01


def outcome(gold, answer):
    """Verify one answer; see the module's docstring. Both are texts that hold what to parse."""
    golds = parse(gold, parsing_timeout=None)
    if all(isinstance(expression, str) for expression in golds):
        return "bad_gold"
    if answer is None:
        outcome(gold, PROBE)  # should no comparison with it ever end, that comes to light here
        return "gold" if outcome(gold, gold) == "right" else "bad_gold"
    answers = parse(answer, parsing_timeout=None)
    failed = False
    # pair by pair: math-verify's own loop takes a failed comparison for an unequal one in silence
    for right, given in itertools.product(golds, answers):
        try:
            equal = verify(right, given, timeout_seconds=None, raise_on_error=True)
            if equal and not differ_though_tiny(right, given):
                return "right"
        except Exception:  # whatever sympy raises on a model's text; counted by the parent
            failed = True
    if all(isinstance(expression, str) for expression in answers):
        return "unparsed"
    return "error" if failed else "wrong"


def differ_though_tiny(right, given):
    """Whether a number below ``TINY`` is missed by more than a hundredth of itself.

    math-verify compares to a number of decimals, so that 1.6e-19 and 1.7e-19 are alike to it.
    """
    try:
        right, given = complex(right.evalf()), complex(given.evalf())
    except (AttributeError, TypeError, ValueError):  # no plain numbers
        return False
    return 0 < abs(right) < TINY and abs(right - given) > TINY_TOLERANCE * abs(right)


def limit_memory(num_bytes):
    """Turn a runaway computation into a MemoryError, where the system can."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))


def main(seconds, memory_bytes):
    """Answer until the input ends. ``seconds``: after which a request ends this process."""
    logging.disable(logging.CRITICAL)
    limit_memory(memory_bytes)
    replies, sys.stdout = sys.stdout, sys.stderr  # nothing else may write between the replies
    # the first use of a parser imports and builds it, which is not the first answer's fault
    outcome("\\boxed{\\frac{x}{2}}", "\\boxed{0.5 x}")
    print(json.dumps("ready"), file=replies, flush=True)
    for line in sys.stdin:
        # the parent kills earlier; should it be dead itself, the system ends a hung orphan
        if hasattr(signal, "alarm"):
            signal.alarm(seconds)
        print(json.dumps(outcome(*json.loads(line))), file=replies, flush=True)
        if hasattr(signal, "alarm"):
            signal.alarm(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
