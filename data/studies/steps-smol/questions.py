"""Write the questions of the world `steps` in words, with their solutions line by line.

    python data/studies/steps-smol/questions.py    # runs/steps-questions.jsonl

Families have their shares in the world, at least `LEAST` questions each. No question is there
twice, in any order of its numbers.
"""

import json
import re
from pathlib import Path

import numpy as np

from gdro_lab.tasks.steps import KINDS, identity, last_number
from gdro_lab.tasks.world import read_world

TOTAL = 6000
LEAST = 320
LEFT_OUT = {"remainder"}  # the base answers .8% of them, fewer than by guessing
NAMES = {"A": "Ana", "B": "Ben", "C": "Cleo", "D": "Dan"}
VERBS = {"g": "gives away", "l": "loses", "f": "finds", "b": "buys"}
STORY = re.compile(r"([A-D])(\d+)x(\d+)([glfb])(\d+)\?")


def in_words(family, question):
    """`47+35?` as `What is 47 + 35?`."""
    if family == "story":
        letter, boxes, pens, verb, change = STORY.fullmatch(question).groups()
        name = NAMES[letter]
        return (
            f"{name} has {boxes} boxes with {pens} pens each and {VERBS[verb]} {change} pens. "
            f"How many pens does {name} have now?"
        )
    if family == "remainder":
        dividend, divisor = question.rstrip("?").split("%")
        return f"What is the remainder of {dividend} divided by {divisor}?"
    spaced = re.sub(r"([-+*=])", r" \1 ", question)
    return f"Find x: {spaced}" if family == "equation" else f"What is {spaced}"


def rows(rng):
    for family in read_world("steps").spec.families:
        if family.name in LEFT_OUT:
            continue
        count = max(round(TOTAL * family.share), LEAST)
        found = {}
        while len(found) < count:
            problem = KINDS[family.name](rng)
            solution = problem.solution()
            lines = re.sub(r"([-+*/=])", r" \1 ", solution).replace(";", "\n")
            row = {"question": in_words(family.name, problem.question), "solution": lines}
            row |= {"answer": last_number(solution), "family": family.name}
            found.setdefault(identity(family.name, problem), row)
        yield from found.values()


if __name__ == "__main__":
    target = Path("runs/steps-questions.jsonl")
    target.parent.mkdir(exist_ok=True)
    lines = [json.dumps(row) + "\n" for row in rows(np.random.default_rng(68))]
    target.write_text("".join(lines), encoding="utf-8")
    print(f"{len(lines):,} questions in {target}")
