"""Where prompts and rewards come from: the embedded task and, on a GPU box, the math data sets.

:func:`make_task` brings both to the one shape that a run needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from datasets import Dataset

    from gdro.profiles import ChainChoice, MathChoice
    from gdro.tasks.math import BadRow


@dataclass(frozen=True, eq=False)
class Task:
    """What a run trains on and is judged by.

    Attributes:
        train: columns prompt, answer, uid and the task's own groups.
        held_out: rows of the same columns; ``family`` names the group a score is split by.
        reward: TRL's reward function for training.
        held_out_reward: the same for ``held_out``; greater than 0 is right.
        max_prompt_tokens: of the longest training prompt.
        max_completion_tokens: completions end there.
        dropped: rows that could not be used, by data set.
    """

    train: Dataset
    held_out: list[dict[str, Any]]
    reward: Callable[..., list[float]]
    held_out_reward: Callable[..., list[float]]
    max_prompt_tokens: int
    max_completion_tokens: int
    dropped: dict[str, list[BadRow]] = field(default_factory=dict)

    def report(self) -> dict[str, Any]:
        """How the rewards came about, and the rows that were left out: for a run's manifest."""
        dropped = {name: [str(row) for row in rows] for name, rows in self.dropped.items() if rows}
        outcomes = {} if not hasattr(self.reward, "report") else {"train": self.reward.report()}
        if hasattr(self.held_out_reward, "report"):
            outcomes["held_out"] = self.held_out_reward.report()
        return {"dropped": dropped, "outcomes": outcomes}

    def close(self) -> None:
        """End the rewards' worker processes, where there are any."""
        for reward in (self.reward, self.held_out_reward):
            if hasattr(reward, "close"):
                reward.close()


def make_task(choice: ChainChoice | MathChoice, tokenizer) -> Task:
    """The task of a profile. tokenizer: of the model, to measure prompts with.

    Raises ValueError for data that cannot be used; see :func:`gdro.tasks.math.load_math`.
    """
    return _chain_task(choice, tokenizer) if choice.kind == "chain" else _math_task(choice, tokenizer)


def draw_chain(choice: ChainChoice):
    """The embedded task as drawn: with its tables, which the tiny base is taught from."""
    from gdro.tasks import chain

    spec = chain.ChainSpec(
        chain.DEFAULT_SPEC.families, n_train=choice.n_train, n_eval_per_family=choice.n_eval_per_family
    )
    return chain.make_task(spec, np.random.default_rng(choice.seed))


def _chain_task(choice: ChainChoice, tokenizer) -> Task:
    from datasets import Dataset

    from gdro.tasks import chain
    from gdro.vllm_sampling import prompt_ids

    drawn = draw_chain(choice)
    return Task(
        train=Dataset.from_list(list(drawn.train)),
        held_out=list(drawn.eval),
        reward=chain.reward,
        held_out_reward=chain.reward,
        max_prompt_tokens=max(map(len, prompt_ids(tokenizer, [row["prompt"] for row in drawn.train]))),
        max_completion_tokens=drawn.spec.max_completion_tokens,
    )


def _math_task(choice: MathChoice, tokenizer) -> Task:
    from gdro.tasks.math import BadRow, load_math, reward_for, spec_of
    from gdro.vllm_sampling import prompt_ids

    dropped: dict[str, list[BadRow]] = {name: [] for name in (choice.train, *choice.evaluate)}

    def load(name, split, limit):
        return load_math(
            name,
            choice.paths.get(name),
            split=split,
            style=choice.style,
            limit=limit,
            dropped=dropped[name] if choice.drop_bad_rows else None,
        )

    train = load(choice.train, spec_of(choice.train).train_split, choice.train_limit)
    lengths = [len(ids) for ids in prompt_ids(tokenizer, train["prompt"])]
    fits = [row for row, length in enumerate(lengths) if length <= choice.max_prompt_tokens]
    if not fits:
        raise ValueError(
            f"task.max_prompt_tokens={choice.max_prompt_tokens} leaves no training prompt of "
            f"{choice.train!r}: the shortest has {min(lengths)} tokens"
        )
    dropped[choice.train] += [
        BadRow(row, train["uid"][row], f"its prompt has {length} tokens, over {choice.max_prompt_tokens}")
        for row, length in enumerate(lengths)
        if length > choice.max_prompt_tokens
    ]
    held_out = []
    for name in choice.evaluate:
        for row in load(name, spec_of(name).split, choice.evaluate_limit):
            held_out.append(row | {"dataset": name, "family": _family(row, name, choice.group_by)})
    options = {"time_limit": choice.verify_seconds, "workers": choice.verify_workers}
    return Task(
        train=train.select(fits),
        held_out=held_out,
        reward=reward_for(choice.train, signed=choice.signed, **options),
        held_out_reward=HeldOutReward(choice.evaluate, **options),
        max_prompt_tokens=max(lengths[row] for row in fits),
        max_completion_tokens=choice.max_completion_tokens,
        dropped=dropped,
    )


class HeldOutReward:
    """Scores completions of several math data sets, each by its own kind of answer.

    names: keys of ``MATH_SPECS``. options: as for :class:`gdro.tasks.rewards.MathReward`.
    """

    def __init__(self, names, **options):
        from gdro.tasks.math import reward_for, spec_of

        by_kind: dict[bool, Any] = {}  # multiple choice or not: one reward, with its workers, for each
        for name in names:
            is_choice = bool(spec_of(name).wrong_answers)
            by_kind.setdefault(is_choice, reward_for(name, **options))
        self.rewards = {name: by_kind[bool(spec_of(name).wrong_answers)] for name in names}

    def __call__(self, completions, answer, dataset, uid=None, **kwargs) -> list[float]:
        scores = np.zeros(len(completions))
        for name in set(dataset):
            places = [place for place, of in enumerate(dataset) if of == name]
            scores[places] = self.rewards[name](
                [completions[place] for place in places],
                [answer[place] for place in places],
                uid=None if uid is None else [uid[place] for place in places],
            )
        return scores.tolist()

    def report(self) -> dict[str, float]:
        """Completions by outcome so far, and the seconds spent, over all data sets."""
        total: dict[str, float] = {}
        for reward in set(self.rewards.values()):
            for key, value in reward.report().items():
                total[key] = total.get(key, 0) + value
        return total

    def close(self) -> None:
        """End the workers."""
        for reward in set(self.rewards.values()):
            reward.close()


def _family(row, name, group_by):
    if group_by == "dataset":
        return name
    if row.get(group_by) is None:
        raise ValueError(
            f"task.group_by={group_by!r}, but data set {name!r} has no such column; leave the data set "
            "out, or group by 'dataset'"
        )
    return str(row[group_by])
