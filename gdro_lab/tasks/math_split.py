"""Training and held-out problems: without repeats, set apart by family, drawn.

Which problems are drawn depends on the seed and on each problem alone, not on the order of a file:
problems are ordered by a hash of the seed and their uid.
"""

import hashlib
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from gdro.checks import short
from gdro_lab.tasks.math_data import Problem

# signs of mathematics stay: 3+4 is not 3-4, 5! is not 5, 2.5 is not 2:5, and f'(2) not f(2)
DELIMITER = re.compile(r"\\[()\[\]]|\$|[\u200b-\u200d\ufeff]")  # around formulas, or of no width
PRIME = re.compile(r"(?<=\b[a-z])(?:'+(?=\()|''+)")
QUOTE = re.compile(r"[`\"'‘’“”]")
SEPARATOR = re.compile(r"\s*([,;:])\s*")
PUNCTUATION = re.compile(r"(?<!\S)[.,;:?]+|[.,;:?]+(?!\S)")


def normalize(text: str) -> str:
    """A text without case, spaces and punctuation, by which repeats are found."""
    text = DELIMITER.sub("", unicodedata.normalize("NFKC", text).casefold())
    text = QUOTE.sub(" ", PRIME.sub(lambda match: "\u2032" * len(match[0]), text))
    return " ".join(PUNCTUATION.sub(" ", SEPARATOR.sub(r"\1", text)).split())


def drop_contradicted(
    problems: Sequence[Problem], is_same: Callable[[str, str], bool]
) -> tuple[list[Problem], list[str]]:
    """The problems whose text no other has with another key, and what was left out.

    is_same: whether two keys say the same.
    """
    twins: dict[str, list[Problem]] = defaultdict(list)
    for problem in problems:
        said = [f"{role}: {content}" for role, content in problem.chat] or [problem.text]
        twins[normalize("\n".join(said))].append(problem)
    dropped = {}
    for first, *others in twins.values():
        if any(
            twin.answer != first.answer and not is_same(first.answer, twin.answer)
            for twin in others
        ):
            keys = sorted({twin.answer for twin in (first, *others)})
            for twin in (first, *others):
                dropped[twin.uid] = f"{twin.label}: its problem has several answers, {short(keys)}"
    return [one for one in problems if one.uid not in dropped], list(dropped.values())


def drop_twins(
    problems: Iterable[Problem], evaluated: Iterable[Problem] | None = None
) -> tuple[list[Problem], list[str]]:
    """The problems whose text no evaluated one and no earlier one has, and what was left out."""
    what = "repeats" if evaluated is None else "is evaluated as"
    first = {normalize(problem.text): problem for problem in evaluated or ()}
    kept = []
    dropped = []
    for problem in problems:
        twin = first.setdefault(normalize(problem.text), problem)
        if twin is problem:
            kept.append(problem)
        else:
            dropped.append(f"{problem.uid}: it {what} {twin.uid}")
    return kept, dropped


def set_apart(
    problems: Sequence[Problem], count: int, seed: int
) -> tuple[list[Problem], list[Problem]]:
    """Set `count` problems of each family apart.

    Returns:
        the problems to train on and those held out, each in the order of `problems`.

    Raises:
        ValueError: if that leaves a family no problem to train on.
    """
    families: dict[str, list[Problem]] = defaultdict(list)
    for problem in problems:
        families[problem.family].append(problem)
    chosen: set[str] = set()
    for family, members in families.items():
        if count >= len(members):
            raise ValueError(
                f"task.held_out must be below the {len(members)} problems of family {family!r}, "
                f"got {count}"
            )
        chosen |= _first(members, count, f"held out/{seed}")
    train = [problem for problem in problems if problem.uid not in chosen]
    held_out = [problem for problem in problems if problem.uid in chosen]
    return train, held_out


def draw_problems(problems: Sequence[Problem], size: int, seed: int) -> list[Problem]:
    """Draw `size` problems, in the order of `problems`; another seed gives another draw.

    Raises:
        ValueError: if there are too few problems.
    """
    if size > len(problems):
        raise ValueError(f"task.train_size asks for {size} problems of {len(problems)}")
    chosen = _first(problems, size, f"train/{seed}")
    return [problem for problem in problems if problem.uid in chosen]


def _first(problems: Iterable[Problem], count: int, salt: str) -> set[str]:
    """The uids of the first `count` problems in an order by hash."""

    def order(uid: str) -> bytes:
        return hashlib.blake2b(f"{salt}/{uid}".encode(), digest_size=16).digest()

    return set(sorted((problem.uid for problem in problems), key=order)[:count])
