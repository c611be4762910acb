"""The problems of a profile whose task is math: read, without repeats, set apart, drawn."""

import hashlib
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gdro.checks import short
from gdro_lab.models import Tokenizer
from gdro_lab.tasks.answers import FORMS, MARKERS, style_of
from gdro_lab.tasks.base import Split, prompt_token_ids
from gdro_lab.tasks.choices import MathChoice
from gdro_lab.tasks.math_data import Problem, Source, check_left_out, read_problems
from gdro_lab.tasks.math_reward import MathReward
from gdro_lab.tasks.numerals import RAISED

# signs of mathematics stay: 3+4 is not 3-4, 5! is not 5, 2.5 is not 2:5, and f'(2) not f(2)
DELIMITER = re.compile(r"\\[()\[\]]|\$|[\u200b-\u200d\ufeff]")  # around formulas, or of no width
PRIME = re.compile(r"(?<=\b[a-z])(?:'+(?=\()|''+)")
QUOTE = re.compile(r"[`\"'‘’“”]")
SEPARATOR = re.compile(r"\s*([,;:])\s*")
PUNCTUATION = re.compile(r"(?<!\S)[.,;:?]+(?!\d)|[.,;:?]+(?!\S)")


def load_math_split(
    choice: MathChoice,
    tokenizer: Tokenizer,
    *,
    held_out: bool,
    template: Mapping[str, Any] | None = None,
) -> Split:
    """Read the problems that a profile trains on, or those that it evaluates.

    Both leave out problems whose keys would be wrong as answers. Training leaves out repeats,
    problems that are evaluated, and prompts longer than `max_prompt_tokens`; then `train_size`
    problems are drawn.

    Raises:
        ValueError: if a source cannot be read or has too few problems.
    """
    sources = choice.find_sources(choice.training_choices)
    # all of them now, not after hours of training
    evaluated = choice.find_sources(choice.evaluated_choices)
    style = style_of(tokenizer)
    if held_out:
        problems, dropped = _evaluation_problems(choice, sources, evaluated)
    else:
        problems, dropped = _training_problems(choice, sources, evaluated)
    rows = [problem.row(style, choice.request, choice.completion) for problem in problems]
    lengths = [
        len(ids) for ids in prompt_token_ids(tokenizer, [row["prompt"] for row in rows], template)
    ]
    reward = MathReward(signed=choice.signed, completion=choice.completion)
    if not held_out:
        chosen, too_long = _fitting(choice, problems, lengths)
        dropped += too_long
        uids = {problem.uid for problem in chosen}
        lengths = [length for row, length in zip(rows, lengths, strict=True) if row["uid"] in uids]
        rows = [row for row in rows if row["uid"] in uids]
    if all(row["solution"] is None for row in rows):
        for row in rows:
            del row["solution"]
    return Split(rows, reward, max(lengths), choice.max_completion_tokens, dropped)


def _training_problems(
    choice: MathChoice, sources: Iterable[Source], evaluated: Iterable[Source]
) -> tuple[list[Problem], list[str]]:
    """The problems that may be trained on, and what was left out."""
    problems, dropped = _training_pool(choice, sources)
    # repeats are out by now: no twin of a held-out problem is trained on
    if choice.held_out:
        problems, _ = set_apart(problems, choice.held_out, choice.seed)
    # a gated set is left to the evaluation: a training needs no login; a fault in local files would
    # else end the run after its training
    others = [source for source in evaluated if source.place.path or not source.gated]
    theirs, _ = _read_all(choice, others)
    problems, repeats = drop_twins(problems, theirs)
    if not problems:
        raise ValueError(
            "task.train must have problems that task.evaluate does not have, got "
            f"{len(repeats)} that are in both"
        )
    dropped += repeats
    return problems, dropped


def _evaluation_problems(
    choice: MathChoice, sources: Iterable[Source], evaluated: Iterable[Source]
) -> tuple[list[Problem], list[str]]:
    """The problems held out of the training sources, those evaluated, and what was left out."""
    problems, dropped = _read_all(choice, evaluated)
    held_out: list[Problem] = []
    if choice.held_out:
        pool, _ = _training_pool(choice, sources)
        _, held_out = set_apart(pool, choice.held_out, choice.seed)
    return held_out + _families_apart(problems, held_out), dropped


def _families_apart(evaluated: list[Problem], others: list[Problem]) -> list[Problem]:
    """Evaluated problems; a family's name that sources share gets the source's name before it."""
    datasets: dict[str, set[str]] = defaultdict(set)
    for problem in (*evaluated, *others):
        datasets[problem.family].add(problem.dataset)
    return [
        replace(problem, family=f"{problem.dataset}-{problem.family}")
        if len(datasets[problem.family]) > 1
        else problem
        for problem in evaluated
    ]


def _training_pool(
    choice: MathChoice, sources: Iterable[Source]
) -> tuple[list[Problem], list[str]]:
    problems, dropped = _read_all(choice, sources)
    problems, repeats = drop_twins(problems)
    return problems, dropped + repeats


def _read_all(choice: MathChoice, sources: Iterable[Source]) -> tuple[list[Problem], list[str]]:
    """The problems of all sources whose keys can be reached, and what was left out."""
    reward = MathReward(completion=choice.completion)
    problems: list[Problem] = []
    dropped: list[str] = []
    for source in sources:
        theirs, faults = read_problems(source)
        rights = reward.accepts_itself([problem.answer for problem in theirs])
        kept = [problem for problem, right in zip(theirs, rights, strict=True) if right]
        wrong = [
            f"{problem.label}: its answer {short(problem.answer)} would not be found or not be "
            f"right, written as {FORMS[choice.completion]}"
            for problem, right in zip(theirs, rights, strict=True)
            if not right
        ]
        check_left_out(source, len(kept), wrong)
        _check_form(choice, source, kept)
        problems += kept
        dropped += faults + wrong
    problems, contradicted = drop_contradicted(
        problems, lambda one, other: reward.judge([(one, other)]) == ["correct"]
    )
    if contradicted and not problems:
        raise ValueError(f"no problem has one answer alone: {contradicted[0]}")
    return problems, dropped + contradicted


def _check_form(choice: MathChoice, source: Source, problems: Sequence[Problem]) -> None:
    """Refuse (ValueError) chats none of which asks for the form that the reward reads."""
    marker = MARKERS.get(choice.completion, "")
    chats = [problem.chat for problem in problems if problem.chat]
    asked = any(marker in content.lower() for chat in chats for _, content in chat)
    if chats and choice.request is None and not asked:
        raise ValueError(
            f"task.completion is {choice.completion!r}, and no chat of {source.name!r} has "
            f"{marker!r}: name the form that they ask for, or write task.request, "
            'such as "{problem}"'
        )


def _fitting(
    choice: MathChoice,
    problems: Sequence[Problem],
    lengths: Sequence[int],
) -> tuple[list[Problem], list[str]]:
    """The problems to train on: those whose prompts are short enough, or a draw of them."""
    most = choice.max_prompt_tokens
    if min(lengths) > most:
        raise ValueError(f"task.max_prompt_tokens must be at least {min(lengths)}, got {most}")
    short: list[Problem] = []
    too_long: list[str] = []
    for problem, length in zip(problems, lengths, strict=True):
        if length <= most:
            short.append(problem)
        else:
            too_long.append(f"{problem.uid}: a prompt of {length} tokens, over {most}")
    if choice.train_size is not None:
        short = draw_problems(short, choice.train_size, choice.seed)
    return short, too_long


def normalize(text: str) -> str:
    """A text without case, spaces and punctuation, by which repeats are found."""
    text = RAISED.sub(r"^\g<0>", text)  # 3² is not 32
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
