"""Four ways to replay kept successes, beside the bank's own (`pivotal_replay`).

    gdro run tuning.yaml        # with `methods_from` naming this file

Each has PKPO's advantages for pass@2 and draws its prompts evenly (ε = 1), so that only the replay
differs. c n̄ max(p̂, .1) (1 − p̂) is the weight of a prompt's kept texts in `pivotal_replay`.

Axes: P prompts, D prompts of the data set, N texts, T tokens.
"""

from collections import deque
from typing import Any, ClassVar

import numpy as np
import torch

from gdro.checks import Count, Positive, PositiveShare, options
from gdro.method import Batch, Prompts
from gdro.methods.bank import replay_weights
from gdro.methods.replay import PivotalReplay
from gdro.registry import register
from gdro_lab import loop

Answer = tuple[np.ndarray, np.ndarray] | None


@register("bank_thermostat")
@options
class BankThermostat(PivotalReplay):
    """F1: less is replayed where replayed prompts do better than control prompts.

    One prompt in ten is a control, which is never replayed. g is the mean p̂ of the other prompts in
    the bank less that of the controls in the bank: what was learned by heart, measured in training.
    The number of prompts that are replayed is times 1 − g/bound, held to 0 … 1.
    """

    epsilon: PositiveShare = 1.0
    controls: Count = 10
    """Of so many prompts one is a control."""
    bound: Positive = 0.05
    """g at which nothing is replayed."""

    def replay(self, banked: Prompts, rng: np.random.Generator) -> Answer:
        if len(banked) < self.start_at:
            return None
        control_P = banked.rows_P % self.controls == 0
        places = np.flatnonzero(~control_P)
        self.gap = 0.0
        if control_P.any() and len(places):
            self.gap = float(banked.rate_P[places].mean() - banked.rate_P[control_P].mean())
        share = np.clip(1 - self.gap / self.bound, 0.0, 1.0)
        size = min(round(self.prompts * share), len(places))
        places = rng.choice(places, size, replace=False)
        scale = self.scale * self.run.mean_rollouts
        return places, replay_weights(banked.rate_P[places], scale, self.least)

    def report(self) -> dict[str, Any]:
        return super().report() | {"gap": getattr(self, "gap", 0.0)}


@register("bank_surprise")
@options
class BankSurprise(PivotalReplay):
    """F2: each token of a kept text counts as much as it still surprises the policy.

    −(1/tokens) Σ w Σ_t sg(1 − π_t) log π_t, with c doubled. A text that the policy gives by itself
    has no weight left, token by token.
    """

    epsilon: PositiveShare = 1.0
    scale: Positive = 4.0
    by_surprise: ClassVar[bool] = True


@register("bank_on_visit")
@options
class BankOnVisit(PivotalReplay):
    """F3: kept texts of the batch's own prompts stand in for their correct rollouts.

    w = n κ (1 − p̃) max(p̃, .1), p̃ after the visit and κ = 2, which is the mean of PKPO's
    advantages over correct rollouts where p̃ is at least .1. Correct rollouts, all of which are in
    the bank, have advantage 0, so that nothing counts twice.
    """

    epsilon: PositiveShare = 1.0

    def update(self, batch: Batch) -> None:
        super().update(batch)
        self.visited = batch.rows_P

    def advantages(self, batch: Batch) -> np.ndarray:
        return np.zeros(len(batch.correct_R))

    def replay(self, banked: Prompts, rng: np.random.Generator) -> Answer:
        places = np.flatnonzero(np.isin(banked.rows_P, self.visited))
        scale = 2.0 * self.run.mean_rollouts
        return places, replay_weights(banked.rate_P[places], scale, self.least)


@register("bank_retire")
@options
class BankRetire(PivotalReplay):
    """F4: what is learned retires, and what is old counts less.

    Not replayed are prompts without a failure at their last visit, and those whose p̂ is above the
    median of the prompts of the last ten batches. Weights are times 2^(−age/τ), age in batches
    since the prompt's last success was sampled.
    """

    epsilon: PositiveShare = 1.0
    half_life: Positive = 100.0
    """τ, in batches."""

    def start(self, run: Any) -> None:
        super().start(run)
        self.batches = 0
        self.failed_D = np.zeros(0)  # 1 where the last visit had a failure
        self.success_D = np.zeros(0)  # batch of the last success
        self.recent: deque[np.ndarray] = deque(maxlen=10)  # p̂ of the prompts of the last batches

    def update(self, batch: Batch) -> None:
        super().update(batch)
        self.batches += 1
        self.failed_D = self.at_least(self.failed_D, batch.rows_P)
        self.failed_D[batch.rows_P] = batch.hits_P < batch.trials_P
        self.success_D = self.at_least(self.success_D, batch.rows_P)
        self.success_D[batch.rows_P[batch.hits_P > 0]] = self.batches
        self.recent.append(batch.rate_P)

    def replay(self, banked: Prompts, rng: np.random.Generator) -> Answer:
        if len(banked) < self.start_at:
            return None
        median = float(np.median(np.concatenate(self.recent)))
        failed_P = self.failed_D[banked.rows_P] > 0
        places = np.flatnonzero(failed_P & (banked.rate_P <= median))
        places = rng.choice(places, min(self.prompts, len(places)), replace=False)
        scale = self.scale * self.run.mean_rollouts
        weights_P = replay_weights(banked.rate_P[places], scale, self.least)
        age_P = self.batches - self.success_D[banked.rows_P[places]]
        return places, weights_P * 2.0 ** (-age_P / self.half_life)


# What follows gives F2 its loss: the loop knows one weight for a text, not one for each token.


class SurpriseTexts(loop.Texts):
    """Kept texts whose tokens are weighed by 1 − π."""


def bank_texts(training: loop.LoopTraining) -> loop.Texts | None:
    """Kept texts of a step, marked where the method weighs them by surprise."""
    texts = plain_bank_texts(training)
    if texts is None or not getattr(training.controller.method, "by_surprise", False):
        return texts
    return SurpriseTexts(*texts)


def take_step(
    model: Any, optimizer: Any, learning_rate: float, collected: list[loop.Texts]
) -> None:
    """`gdro_lab.loop.take_step`, for kept texts that are weighed by surprise too."""
    kept = [texts for texts in collected if isinstance(texts, SurpriseTexts)]
    if not kept:
        plain_take_step(model, optimizer, learning_rate, collected)
        return
    rollouts = [texts for texts in collected if not isinstance(texts, SurpriseTexts)]
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.zero_grad(set_to_none=False)
    eos_id = model.config.eos_token_id
    own = sum(count_tokens(texts, eos_id) for texts in rollouts)
    tokens = own + sum(count_tokens(texts, eos_id) for texts in kept)
    loop.policy_gradient(
        model,
        torch.cat([texts.prompt_RT for texts in rollouts]),
        torch.cat([texts.text_RT for texts in rollouts]),
        torch.cat([texts.advantages_R for texts in rollouts]) * (own / tokens),
    )
    for texts in kept:
        surprise_gradient(model, texts, tokens)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def count_tokens(texts: loop.Texts, eos_id: int) -> int:
    """Tokens of the completions."""
    return int(loop._completion_mask(texts.text_RT, eos_id).sum())


def surprise_gradient(model: Any, texts: loop.Texts, tokens: int) -> None:
    """Add the gradient of −(1/tokens) Σ w Σ_t sg(1 − π_t) log π_t."""
    start = texts.prompt_RT.shape[1]
    text_NT = torch.cat([texts.prompt_RT, texts.text_RT], dim=1)
    logps_NTV = loop.forward(model, text_NT[:, :-1])[:, start - 1 :].log_softmax(dim=-1)
    logps_NT = logps_NTV.gather(-1, texts.text_RT[..., None])[..., 0]
    mask_NT = loop._completion_mask(texts.text_RT, model.config.eos_token_id)
    surprise_NT = -torch.expm1(logps_NT.detach())
    logps_N = (surprise_NT * logps_NT * mask_NT).sum(dim=1)
    (-(texts.advantages_R @ logps_N) / tokens).backward()


# this file may be read more than once in a process, so the loop keeps its own functions
plain_take_step, plain_bank_texts = vars(loop).setdefault(
    "PLAIN", (loop.take_step, loop.LoopTraining.bank_texts)
)
vars(loop)["take_step"] = take_step
loop.LoopTraining.bank_texts = bank_texts  # type: ignore[method-assign, assignment]
