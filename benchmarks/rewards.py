"""The math reward beside math-verify: judged pairs, verdicts per second, and where they differ.

    python benchmarks/rewards.py

The judged pairs are those of tests/fixtures/rewards/pairs.csv; math-verify reads the key out of a
box, and the completion in its own way.
The answer keys are those of the data sets' samples in tests/fixtures/math, and numbers; each is
answered in several spellings, right and wrong. math-verify runs in this process, without limits.
"""

import argparse
import json
import logging
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
from math_verify import parse, verify

from gdro_lab.tasks.math_data import named_source, read_problems
from gdro_lab.tasks.math_reward import MathReward
from gdro_lab.tasks.math_sets import MATH_SPECS

FIXTURES = Path(__file__).parents[1] / "tests" / "fixtures" / "math"
PAIRS = Path(__file__).parents[1] / "tests" / "fixtures" / "rewards" / "pairs.csv"
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
            problems, _ = read_problems(named_source(name, [FIXTURES / f"{name}.jsonl"]))
            keys += [problem.answer for problem in problems]
    return list(dict.fromkeys(keys))


def by_math_verify(key: str, answer: str) -> bool:
    wanted, given = (parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (key, answer))
    return bool(verify(wanted, given, timeout_seconds=None))


def print_judged_pairs() -> None:
    """Of each kind of pairs, the wrong answers that are accepted and the right ones rejected."""
    pairs = pd.read_csv(PAIRS, dtype=str, keep_default_na=False)
    pairs["right"] = pairs.verdict == "right"
    pairs["keys"] = [json.loads(key) if key.startswith('["') else [key] for key in pairs.key]
    pairs["ours"] = False
    for reader, rows in pairs.groupby("reader"):
        rewards = MathReward(completion=reader)(rows.answer.tolist(), rows["keys"].tolist())
        pairs.loc[rows.index, "ours"] = np.equal(rewards, 1)
    pairs["theirs"] = [
        any(verify(parse(f"\\boxed{{{key}}}"), given) for key in keys)
        for keys, given in zip(pairs["keys"], map(parse, pairs.answer), strict=True)
    ]
    reported = pairs[pairs.source == "reported"].assign(kind="*reported*")
    everything = pd.concat([pairs, pairs.assign(kind="**all**"), reported])
    print("| kind | wrong | right | ours | math-verify |")
    print("|---|--:|--:|--:|--:|")
    groups = everything.groupby("kind")
    for kind in sorted(groups.groups, key=lambda kind: (kind.startswith("*"), kind)):
        judged = groups.get_group(kind)
        errors = [
            f"{(~judged.right & accepted).sum()} / {(judged.right & ~accepted).sum()}"
            for accepted in (judged.ours, judged.theirs)
        ]
        print(f"| {kind} | {(~judged.right).sum()} | {judged.right.sum()} | {' | '.join(errors)} |")
    print()


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
    different = []
    for name, keys in {"fixtures": fixture_keys(), "integers": numbers}.items():
        bare = [key.strip("$") for key in keys]
        pairs = [
            (key, form.format(text, text))
            for key, text in zip(keys, bare, strict=True)
            for form in SPELLINGS
        ]
        began = time.perf_counter()
        rewards = MathReward()([f"\\boxed{{{b}}}" for _, b in pairs], [key for key, _ in pairs])
        middle = time.perf_counter()
        theirs = [by_math_verify(*pair) for pair in pairs]
        rates = [len(pairs) / (middle - began), len(pairs) / (time.perf_counter() - middle)]
        other = [
            f"{key} | {answer}: ours {ours:.0f}"
            for (key, answer), ours, their in zip(pairs, rewards, theirs, strict=True)
            if bool(ours) != their
        ]
        different += other[:20]
        agree = 1 - len(other) / len(pairs)
        print(f"| {name} | {len(pairs)} | {rates[0]:,.0f} | {rates[1]:,.0f} | {agree:.1%} |")
    print("\nThe first that differ:", *different, sep="\n")


if __name__ == "__main__":
    main()
