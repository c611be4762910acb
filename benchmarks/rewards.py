"""The math reward beside math-verify: judged pairs, verdicts per second, and where they differ.

    python benchmarks/rewards.py

Two tables of judged pairs lie in tests/fixtures/rewards: pairs.csv, by which the reward's rules
were found, and fresh.csv, written after them. math-verify reads the key out of a box, and the
completion in its own way; the thin wrapper is `by_wrapper`.
The answer keys are those of the data sets' samples in tests/fixtures/math, and numbers; each is
answered in several spellings, right and wrong. math-verify runs in this process, without limits.
"""

import argparse
import logging
import re
import time
from importlib.metadata import version
from pathlib import Path

import pandas as pd
from math_verify import parse, verify

from gdro_lab.tasks.math_data import named_source, read_problems
from gdro_lab.tasks.math_reward import MathReward
from gdro_lab.tasks.math_sets import MATH_SPECS

FIXTURES = Path(__file__).parents[1] / "tests" / "fixtures"
SPELLINGS = (
    "{}",
    r"\text{{{}}}",
    r"\mathbf{{{}}}",
    r"\color{{blue}}{{{}}}",
    r"x = {}",
    r"{}\text{{ cm}}",
    r"{} \text{{ million}}",
    r"{} \text{{ tenths}}",
    r"{} \approx {}1",
    "{}1",
    r"-{}",
    r"{{{}}}",
)


def fixture_keys() -> list[str]:
    """Answer keys of the samples, without those of multiple choice."""
    keys = []
    for name, spec in MATH_SPECS.items():
        if not spec.schemas[0].choices:
            problems, _ = read_problems(named_source(name, FIXTURES / f"math/{name}.jsonl"))
            keys += [problem.answer for problem in problems]
    return list(dict.fromkeys(keys))


def by_math_verify(key: str, completion: str) -> bool:
    """The verdict of math-verify alone."""
    wanted = parse(f"\\boxed{{{key}}}", parsing_timeout=None)
    given = parse(completion, parsing_timeout=None)
    return bool(verify(wanted, given, timeout_seconds=None))


def by_wrapper(key: str, completion: str) -> bool:
    """math-verify on the last box alone, behind texts that are the same and letters."""
    _, box, behind = completion.rpartition("\\boxed{")
    said = behind[: _closing(behind)] if box else completion
    texts = [re.sub(r"\\(?:text|mathrm|textbf)\b|[\s{}$]", "", text) for text in (key, said)]
    if texts[0].casefold() == texts[1].casefold():
        return True
    if re.fullmatch("[A-J]", key):
        return bool(re.fullmatch(rf"\(?{key}\)?(?![a-zA-Z]).*", texts[1]))
    return by_math_verify(key, f"\\boxed{{{said}}}")


def _closing(text: str) -> int:
    """Where the brace closes that was open before the text."""
    depth = 0
    for place, sign in enumerate(text):
        depth += (sign == "{") - (sign == "}")
        if depth < 0:
            return place
    return len(text)


def judge(pairs: pd.DataFrame) -> pd.DataFrame:
    """The pairs with a column of verdicts for each of the three."""
    pairs = pairs.assign(right=pairs.verdict == "right", ours=False)
    for reader, rows in pairs.groupby("reader"):
        rewards = MathReward(completion=reader)(rows.answer.tolist(), rows.key.tolist())
        pairs.loc[rows.index, "ours"] = [reward == 1 for reward in rewards]
    both = list(zip(pairs.key, pairs.answer, strict=True))
    pairs["math-verify"] = [by_math_verify(*pair) for pair in both]
    pairs["wrapper"] = [by_wrapper(*pair) for pair in both]
    return pairs


def print_errors(name: str, pairs: pd.DataFrame) -> None:
    """A row: wrong answers accepted and right ones rejected, by each of the three."""
    errors = [
        f"{(~pairs.right & pairs[judge]).sum()} / {(pairs.right & ~pairs[judge]).sum()}"
        for judge in ("ours", "math-verify", "wrapper")
    ]
    print(f"| {name} | {(~pairs.right).sum()} | {pairs.right.sum()} | {' | '.join(errors)} |")


def print_judged_pairs() -> None:
    """Of each kind of pairs, and of the fresh ones, what each of the three gets wrong."""
    pairs = pd.read_csv(FIXTURES / "rewards/pairs.csv", dtype=str, keep_default_na=False)
    fresh = pd.read_csv(FIXTURES / "rewards/fresh.csv", dtype=str, keep_default_na=False)
    pairs, fresh = judge(pairs), judge(fresh.assign(reader="boxed"))
    print("| kind | wrong | right | ours | math-verify | thin wrapper |")
    print("|---|--:|--:|--:|--:|--:|")
    for kind, rows in pairs.groupby("kind"):
        print_errors(str(kind), rows)
    print_errors("**all**", pairs)
    print_errors("*reported*", pairs[pairs.source == "reported"])
    print_errors("*later*", pairs[pairs.source == "later"])
    print_errors("**fresh**", fresh)
    print("\nFresh pairs that ours gets wrong:")
    print(fresh[fresh.ours != fresh.right][["key", "answer", "verdict"]].to_string(), end="\n\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--numbers", type=int, default=100, help="how many keys are numbers")
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    print(f"math-verify {version('math-verify')}\n")
    print_judged_pairs()
    print("| keys | verdicts | ours, per second | math-verify, per second | agree |")
    print("|---|--:|--:|--:|--:|")
    numbers = [str(7 * n) for n in range(1, args.numbers + 1)]
    for name, keys in {"fixtures": fixture_keys(), "integers": numbers}.items():
        bare = [key.strip("$") for key in keys]
        pairs = [
            (key, f"\\boxed{{{form.format(text, text)}}}")
            for key, text in zip(keys, bare, strict=True)
            for form in SPELLINGS
        ]
        began = time.perf_counter()
        rewards = MathReward()([answer for _, answer in pairs], [key for key, _ in pairs])
        middle = time.perf_counter()
        theirs = [by_math_verify(*pair) for pair in pairs]
        rates = [len(pairs) / (middle - began), len(pairs) / (time.perf_counter() - middle)]
        same = [bool(ours) == their for ours, their in zip(rewards, theirs, strict=True)]
        agree = sum(same) / len(pairs)
        print(f"| {name} | {len(pairs)} | {rates[0]:,.0f} | {rates[1]:,.0f} | {agree:.1%} |")


if __name__ == "__main__":
    main()
