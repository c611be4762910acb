"""Where prompts and rewards come from: the embedded task and, on a GPU box, the math data sets.

:func:`make_task` brings both to the one shape that a run needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from datasets import Dataset

    from gdro.profiles import ChainChoice, MathChoice
    from gdro.tasks.chain import ChainTask


@dataclass(eq=False)
class Task:
    """What a run trains on and is judged by; data sets are read when they are first asked for.

    ``train`` has the columns prompt, answer, uid and the task's own groups; ``held_out`` is rows of
    the same columns, in which ``family`` names the group that a score is split by.
    """

    load_train: Callable[[], tuple[Dataset, int]]  # with the tokens of its longest prompt
    load_held_out: Callable[[], list[dict[str, Any]]]
    reward: Callable[..., list[float]]  # TRL's, for training
    held_out_reward: Callable[..., list[float]]  # greater than 0 is correct
    max_completion_tokens: int  # completions end there
    rows: dict[str, int] = field(default_factory=dict)  # used, by evaluation set or "train"
    dropped: dict[str, list[str]] = field(default_factory=dict)  # row by row, why

    _train = cached_property(lambda self: self.load_train())
    held_out = cached_property(lambda self: self.load_held_out())

    @property
    def train(self) -> Dataset:
        return self._train[0]

    @property
    def max_prompt_tokens(self) -> int:
        """Of the longest training prompt."""
        return self._train[1]

    def report(self) -> dict[str, Any]:
        """For a run's manifest: outcomes of the rewards, rows used and left out of what was read."""
        rewards = {"train": self.reward, "held_out": self.held_out_reward}
        outcomes = {key: reward.report() for key, reward in rewards.items() if hasattr(reward, "report")}
        dropped = {name: reasons for name, reasons in self.dropped.items() if reasons}
        return {"rows": dict(self.rows), "dropped": dropped, "outcomes": outcomes}

    def close(self) -> None:
        """End the rewards' worker processes, where there are any."""
        for reward in (self.reward, self.held_out_reward):
            getattr(reward, "close", lambda: None)()


def make_task(choice: ChainChoice | MathChoice, tokenizer: Any) -> Task:
    """The task of a profile. The model's tokenizer measures prompts.

    Unusable data raises a ValueError when it is read; see :func:`gdro.tasks.math.load_math`.
    """
    return _chain_task(choice, tokenizer) if choice.kind == "chain" else _math_task(choice, tokenizer)


def draw_chain(choice: ChainChoice) -> ChainTask:
    """The embedded task as drawn: with its tables, which the tiny base is taught from."""
    from gdro.tasks import chain

    sizes = {"n_train": choice.n_train, "n_eval_per_family": choice.n_eval_per_family}
    spec = chain.ChainSpec(chain.DEFAULT_SPEC.families, **sizes)
    return chain.make_task(spec, np.random.default_rng(choice.seed))


def _chain_task(choice: ChainChoice, tokenizer: Any) -> Task:
    from datasets import Dataset

    from gdro.tasks.chain import reward
    from gdro.vllm_sampling import prompt_ids

    drawn = draw_chain(choice)
    train = Dataset.from_list(list(drawn.train))
    longest = max(map(len, prompt_ids(tokenizer, train["prompt"])))
    limit = drawn.spec.max_completion_tokens
    return Task(lambda: (train, longest), lambda: list(drawn.eval), reward, reward, limit)


def _math_task(choice: MathChoice, tokenizer: Any) -> Task:
    from gdro.tasks.math import load_math, spec_of
    from gdro.tasks.rewards import MathReward
    from gdro.vllm_sampling import prompt_ids

    for name in (choice.train, *choice.evaluate):  # before hours of training
        if not Path(path := choice.paths.get(name, ".")).exists():
            raise ValueError(f"task.paths must name files or folders, got {path!r} for {name!r}")
    for name in choice.evaluate:
        if choice.group_by != "dataset" and getattr(spec_of(name), choice.group_by) is None:
            raise ValueError(
                f"task.group_by must be a column of every data set, got {choice.group_by!r}, "
                f"which {name!r} has not; leave the data set out, or group by 'dataset'"
            )

    def load(key: str, name: str, split: str | None, limit: int | None) -> Dataset:
        bad = task.dropped[key] = []
        options: dict[str, Any] = {
            "split": split,
            "limit": limit,
            "dropped": bad if choice.drop_bad_rows else None,
        }
        data = load_math(name, choice.paths.get(name), style=choice.style, **options)
        task.rows[key] = len(data)
        return data

    def load_train() -> tuple[Dataset, int]:
        data = load("train", choice.train, spec_of(choice.train).train_split, choice.train_limit)
        most, lengths = choice.max_prompt_tokens, [len(ids) for ids in prompt_ids(tokenizer, data["prompt"])]
        if min(lengths) > most:
            shortest = f"the shortest of {choice.train!r} has {min(lengths)} tokens"
            raise ValueError(f"task.max_prompt_tokens must leave training prompts, got {most}: {shortest}")
        long = {row: length for row, length in enumerate(lengths) if length > most}
        why = "row {} ({}): its prompt has {} tokens, over {}"
        task.dropped["train"] += [why.format(row, data["uid"][row], long[row], most) for row in long]
        task.rows["train"] = len(data) - len(long)
        fits = [row for row in range(len(data)) if row not in long]
        return data.select(fits), max(lengths[row] for row in fits)

    def load_held_out() -> list[dict[str, Any]]:
        return [
            row | {"dataset": name, "family": name if choice.group_by == "dataset" else row[choice.group_by]}
            for name in choice.evaluate
            for row in load(name, name, None, choice.evaluate_limit)
        ]

    limits: dict[str, Any] = {"time_limit": choice.verify_seconds, "workers": choice.verify_workers}
    rewards = MathReward(signed=choice.signed, **limits), MathReward(**limits)
    # the loaders fill in its rows and dropped
    task = Task(load_train, load_held_out, *rewards, choice.max_completion_tokens)
    return task
