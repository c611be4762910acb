"""The problems of a profile whose task is math: read, without repeats, set apart, drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gdro_lab.tasks.answers import style_of
from gdro_lab.tasks.choices import MathChoice
from gdro_lab.tasks.math_data import Problem, Source, read_problems
from gdro_lab.tasks.math_reward import MathReward
from gdro_lab.tasks.math_split import draw, drop_evaluated, drop_repeats, set_apart
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

    Evaluation keeps every problem. Training leaves out repeats, problems that are evaluated, and
    prompts longer than `max_prompt_tokens`; then `train_size` problems are drawn.

    Raises:
        ValueError: if a source cannot be read or has too few problems.
    """
    sources = choice.find_sources(choice.training_choices)
    # all of them now, not after hours of training
    evaluated = choice.find_sources(choice.evaluated_choices)
    reader = choice.completion
    style = style_of(tokenizer)
    if held_out:
        problems, dropped = _evaluation_problems(choice, sources, evaluated)
    else:
        problems, dropped = _training_problems(choice, sources, evaluated)
    rows = [problem.row(style, choice.request, reader) for problem in problems]
    prompts = [row["prompt"] for row in rows]
    lengths = [len(ids) for ids in prompt_token_ids(tokenizer, prompts, template)]
    if held_out:
        reward = MathReward(completion=reader)
        longest = max(lengths)
    else:
        reward = MathReward(signed=choice.signed, completion=reader)
        chosen, too_long = _fitting(choice, problems, lengths)
        dropped += too_long
        uids = {problem.uid for problem in chosen}
        longest = max(
            length for row, length in zip(rows, lengths, strict=True) if row["uid"] in uids
        )
        rows = [row for row in rows if row["uid"] in uids]
    _drop_empty_column(rows, "solution")
    return Split(rows, reward, longest, choice.max_completion_tokens, dropped)


def _training_problems(
    choice: MathChoice, sources: Iterable[Source], evaluated: Iterable[Source]
) -> tuple[list[Problem], list[str]]:
    """The problems that may be trained on, and what was left out."""
    problems, dropped = _training_pool(choice, sources)
    # with `deduplicate` repeats are out by now, and no twin of a held-out problem is trained on
    if choice.held_out:
        problems, _ = set_apart(problems, choice.held_out, choice.seed)
    if choice.deduplicate:
        # a gated set is not read before it is evaluated: a training needs no login
        others = [source for source in evaluated if not source.gated]
        theirs, _ = _read_all(others)
        problems, repeats = drop_evaluated(problems, theirs)
        dropped += repeats
        if not problems:
            raise ValueError(
                "task.train must have problems that task.evaluate does not have, got "
                f"{len(repeats)} that are in both"
            )
    return problems, dropped


def _evaluation_problems(
    choice: MathChoice, sources: Iterable[Source], evaluated: Iterable[Source]
) -> tuple[list[Problem], list[str]]:
    """The problems held out of the training sources, those evaluated, and what was left out."""
    problems, dropped = _read_all(evaluated)
    if choice.held_out:
        pool, _ = _training_pool(choice, sources)
        _, held_out = set_apart(pool, choice.held_out, choice.seed)
        problems = held_out + problems
    return problems, dropped


def _training_pool(
    choice: MathChoice, sources: Iterable[Source]
) -> tuple[list[Problem], list[str]]:
    problems, dropped = _read_all(sources)
    if choice.deduplicate:
        problems, repeats = drop_repeats(problems)
        dropped += repeats
    return problems, dropped


def _read_all(sources: Iterable[Source]) -> tuple[list[Problem], list[str]]:
    problems: list[Problem] = []
    dropped: list[str] = []
    for source in sources:
        theirs, faults = read_problems(source)
        problems += theirs
        dropped += faults
    return problems, dropped


def _fitting(
    choice: MathChoice, problems: Sequence[Problem], lengths: Sequence[int]
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
        short = draw(short, choice.train_size, choice.shares, choice.seed)
    return short, too_long


def _drop_empty_column(rows: Iterable[dict[str, Any]], name: str) -> None:
    """Remove a column in which no row has a value."""
    if all(row[name] is None for row in rows):
        for row in rows:
            del row[name]
