"""Judge the table of answers with our reward and with others, and time ours.

    python benchmarks/rewards.py                    # ours, math-verify, TRL
    python benchmarks/rewards.py --verl verl-0.9.1  # and the graders of an unpacked wheel of verl

tests/fixtures/answers.csv has the pairs with their verdicts. The tables are printed in Markdown, as
docs/rewards.md has them. verl's `prime_math` also needs pylatexenc.
"""

import argparse
import csv
import resource
import signal
import sys
import time
import types
from collections.abc import Callable
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from importlib.metadata import version
from io import StringIO
from pathlib import Path

from tqdm import tqdm

from gdro.tasks.math.rewards import MathReward, last_boxed

TABLE = Path(__file__).parents[1] / "tests" / "fixtures" / "answers.csv"
SECONDS = 10  # for another's verdict; longer counts as wrong
Grader = Callable[[str, str], bool]  # of an answer key and a completion


def by_math_verify(gold: str, completion: str) -> bool:
    from math_verify import parse, verify

    return bool(verify(parse(f"\\boxed{{{gold}}}"), parse(completion)))


def by_trl(gold: str, completion: str) -> bool:
    from trl.rewards import accuracy_reward

    return accuracy_reward([[{"content": completion}]], [f"\\boxed{{{gold}}}"]) == [1.0]


def graders_of_verl(wheel: Path) -> dict[str, Grader]:
    """verl's graders for MATH, DAPO and Numina, without importing the rest of verl."""
    sys.path.append(str(wheel))
    for name in ("verl", "verl.utils", "verl.utils.reward_score"):
        package = types.ModuleType(name)
        package.__path__ = [str(wheel / name.replace(".", "/"))]
        sys.modules[name] = package
    math_reward, math_dapo, prime_math = (
        import_module(f"verl.utils.reward_score.{name}")
        for name in ("math_reward", "math_dapo", "prime_math")
    )
    return {
        "verl math_reward": lambda gold, text: math_reward.compute_score(text, gold) == 1.0,
        # DAPO's completions end in "Answer: …"
        "verl math_dapo": lambda gold, text: bool(
            math_dapo.compute_score(f"Answer: {last_boxed(text)}", gold)["acc"]
        ),
        "verl prime_math": lambda gold, text: bool(prime_math.compute_score(text, gold)[0]),
    }


@contextmanager
def at_most(seconds: int):
    """Raise a TimeoutError after some seconds, if Python code is running then."""

    def stop(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def verdict(grader: Grader, gold: str, completion: str) -> bool:
    """Another's verdict; an exception is a refusal."""
    try:
        with at_most(SECONDS), redirect_stdout(StringIO()):
            return grader(gold, completion)
    except Exception:
        return False


def print_table(rows: list[dict[str, str]], verdicts: dict[str, list[bool]]) -> None:
    """By kind and grader: wrong answers accepted / right answers rejected."""
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    groups = [(kind, [i for i, row in enumerate(rows) if row["kind"] == kind]) for kind in kinds]
    parts = [(part, [i for i, row in enumerate(rows) if row["part"] == part]) for part in ("held out",)]
    print("| kind | wrong | right |", " | ".join(verdicts), "|")
    print("|---|--:|--:|" + "--:|" * len(verdicts))
    for kind, places in [*groups, *parts, ("**all**", list(range(len(rows))))]:
        right = [i for i in places if rows[i]["verdict"] == "right"]
        wrong = [i for i in places if rows[i]["verdict"] == "wrong"]
        cells = [
            f"{sum(found[i] for i in wrong)} / {sum(not found[i] for i in right)}"
            for found in verdicts.values()
        ]
        print(f"| {kind} | {len(wrong)} | {len(right)} |", " | ".join(cells), "|")
    right_at_all = [row["verdict"] == "right" for row in rows]
    agreed = [
        sum(a == b for a, b in zip(found, right_at_all, strict=True)) / len(rows)
        for found in verdicts.values()
    ]
    print("| accuracy | | |", " | ".join(f"{share:.1%}" for share in agreed), "|\n")


def batches() -> dict[str, list[tuple[str, str]]]:
    """(gold, answer) of 1,000 completions with integers, of 1,000 with algebra, and of 128 that never end."""
    integers = [(str(n), str(n + n % 3)) for n in range(1000)]
    algebra = []
    for n in range(2, 252):
        algebra += [(rf"\frac{{{n}}}{{7}}", f"{2 * n}/14"), (rf"{n}\sqrt{{3}}", rf"\sqrt{{{3 * n * n}}}")]
        algebra += [(f"(x-{n})(x+{n})", f"x^2-{n * n}"), (f"[{n},{n + 1}\\pi)", f"[{n},{n + 1}\\pi]")]
    endless = [("2^{64}", f"{n}^{{9^{{9^{{9}}}}}}") for n in range(2, 130)]
    return {"1,000 integers": integers, "1,000 with algebra": algebra, "128 that never end": endless}


def print_times() -> None:
    print("| batch | seconds | of processor time | outcomes |\n|---|--:|--:|---|")
    for name, pairs in batches().items():
        reward, used = MathReward(), resource.getrusage(resource.RUSAGE_CHILDREN)
        own, started = time.process_time(), time.monotonic()
        reward([f"\\boxed{{{answer}}}" for _, answer in pairs], [gold for gold, _ in pairs])
        wall, now = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = time.process_time() - own + now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in (+reward.counts).items())
        print(f"| {name} | {wall:.1f} | {cpu:.1f} | {outcomes} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--verl", type=Path, help="folder of an unpacked wheel of verl")
    parser.add_argument(
        "--misses", action="store_true", help="list what ours judges otherwise than the table"
    )
    given = parser.parse_args()
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    completions = [f"The answer is $\\boxed{{{row['answer']}}}$." for row in rows]
    verdicts = {"ours": [value == 1.0 for value in MathReward()(completions, [row["gold"] for row in rows])]}
    others: dict[str, Grader] = {"math-verify": by_math_verify, "TRL": by_trl}
    if given.verl:
        others |= graders_of_verl(given.verl.resolve())
    for name, grader in others.items():
        pairs = zip(rows, completions, strict=True)
        verdicts[name] = [
            verdict(grader, row["gold"], text) for row, text in tqdm(pairs, desc=name, total=len(rows))
        ]
    packages = ("math-verify", "latex2sympy2_extended", "sympy", "trl")
    print("Python", sys.version.split()[0], *(f"{name} {version(name)}" for name in packages), "\n")
    print_table(rows, verdicts)
    if given.misses:
        missed = [
            row
            for row, found in zip(rows, verdicts["ours"], strict=True)
            if found != (row["verdict"] == "right")
        ]
        print(*missed, sep="\n")
    print_times()


if __name__ == "__main__":
    main()
