"""The problems of a profile whose task is math: read, without repeats, set apart, drawn."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gdro.checks import short
from gdro_lab.tasks.answers import FORMS, MARKERS, style_of
from gdro_lab.tasks.choices import MathChoice
from gdro_lab.tasks.math_data import Problem, Source, check_left_out, read_problems
from gdro_lab.tasks.math_reward import MathReward
from gdro_lab.tasks.math_split import draw_problems, drop_contradicted, drop_twins, set_apart
from gdro_lab.tasks.split import Split, prompt_token_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_math_split(
    choice: MathChoice,
    tokenizer: PreTrainedTokenizerBase,
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
    reward = MathReward(signed=choice.signed and not held_out, completion=choice.completion)
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
