"""The loop's controllers, and what methods with an oracle are told: families and pass rates.

No method can know these in a training; the loop computes them because its models are tiny.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gdro.checks import Refusal, build
from gdro.controller import GDROController
from gdro.groups import make_groups
from gdro.uids import as_uids
from gdro_lab.experiments.blocks import Variant
from gdro_lab.tasks.world import Task

EVERY = 5
"""Pass rates are computed again every so many calls: it takes longer than a training step."""


@dataclass(frozen=True)
class Oracle:
    """Quantities that are hidden from methods: families and true pass rates."""

    groups: dict[int, str]
    """The family of each uid."""
    rates: Callable[[np.ndarray], np.ndarray]
    """The model's pass rates of these uids, (P,)."""


def loop_controller(
    variant: Variant, mean_rollouts: float, seed: int, oracle: Oracle | None = None
) -> GDROController:
    """The controller of a variant in the loop.

    Args:
        variant: the method with its options.
        mean_rollouts: per prompt.
        seed: of everything random in the method.
        oracle: of the task; without one, only the options are checked.
    """
    options = dict(variant.options)
    if oracle is not None and variant.method == "oracle":
        options.setdefault("rates", oracle.rates)
    groups = variant.groups or ("family" if variant.method == "family_even" else None)
    if groups == "family":
        options.pop("groups", None)
        families = {"any": "family"} if oracle is None else oracle.groups
        bins = options.get("bins", {})
        labels = list(families.values())
        options["bins"] = make_groups("bins", bins, "default", list(families), labels)
    elif groups is not None:
        raise Refusal(f"groups must be 'family' in the loop, got {groups!r}")
    return build(
        f"options of {variant.method!r}",
        GDROController,
        options,
        method=variant.method,
        mean_rollouts=mean_rollouts,
        seed=seed,
    )


def make_oracle(task: Task, model: Any, tokenizer: Any) -> Oracle:
    """The oracle of a task and a model that is being trained."""
    return Oracle(
        {row["uid"]: row["family"] for row in task.train}, PassRates(task, model, tokenizer)
    )


class PassRates:
    """A prompt's pass rate: the probability of its correct texts under the model."""

    def __init__(self, task: Task, model: Any, tokenizer: Any) -> None:
        self.task = task
        self.model = model
        self.tokenizer = tokenizer
        uids_D = as_uids([row["uid"] for row in task.train])
        self.order_D = uids_D.argsort()
        self.sorted_uids_D = uids_D[self.order_D]
        self.calls = itertools.count()
        self.rates_D = np.zeros(0)
        """In increasing order of uids."""
        self.texts: tuple[list[int], Any] | None = None
        """The prompt of each correct text, and the tokens of both together."""

    def __call__(self, uids_P: np.ndarray) -> np.ndarray:
        """Pass rates of these uids, (P,), at most `EVERY` calls old."""
        if next(self.calls) % EVERY == 0:
            # a sum over several correct texts can exceed 1 by rounding
            self.rates_D = self._compute()[self.order_D].clip(0, 1)
        return self.rates_D[self.sorted_uids_D.searchsorted(uids_P)]

    def _compute(self) -> np.ndarray:
        """Pass rates now, in the order of the task's rows."""
        import torch

        from gdro_lab.loop import text_logps

        if self.texts is None:  # once, and only if a method asks
            self.texts = self._correct_texts()
        prompt_of_N, ids_NT = self.texts
        with torch.no_grad():
            logps_N = text_logps(self.model, ids_NT, len(self.task.train[0]["prompt"]))
        return np.bincount(prompt_of_N, logps_N.exp().cpu().double().numpy())

    def _correct_texts(self) -> tuple[list[int], Any]:
        """Each prompt followed by each of its correct texts, filled up with tokens that end one."""
        import torch

        prompts_N = []
        texts_N = []
        for d, row in enumerate(self.task.train):
            for text in self.task.correct_texts(row):
                ends = self.tokenizer.eos_token * (self.task.max_completion_tokens - len(text))
                prompts_N.append(d)
                texts_N.append(row["prompt"] + text + ends)
        ids_NT = self.tokenizer(texts_N)["input_ids"]
        return prompts_N, torch.tensor(ids_NT, device=self.model.device)
