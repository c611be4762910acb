"""Four ways to replay kept successes, beside the bank's own (`pivotal_replay`).

    gdro run tuning.yaml        # with `methods_from` naming this file

Each draws its prompts evenly (ε = 1), so that only the replay differs, and but for F3 each has
PKPO's advantages for pass@2. A prompt's kept texts share the weight c n̄ max(p̂, .1) (1 − p̂), with
c = 2, and a prompt is replayed at most four times between two of its visits, as in
`pivotal_replay`.

Axes: P prompts, D prompts of the data set, N texts, T tokens.
"""

from typing import Any, ClassVar

import numpy as np
import torch

from gdro.checks import Count, Positive, PositiveShare, options
from gdro.method import Batch, Prompts, Run
from gdro.methods.replay import PivotalReplay, replay_weights
from gdro.registry import register
from gdro_lab import loop

Answer = tuple[np.ndarray, np.ndarray] | None
KEPT = 0.9  # part of the thermostat's gap that a batch leaves to the next


@register("bank_thermostat")
@options
class BankThermostat(PivotalReplay):
    """F1: less is replayed where replayed prompts do better than control prompts.

    One prompt in ten is a control, which is never replayed. g is the mean p̂ of the other prompts in
    the bank minus that of the controls in the bank, in a fading mean over about ten batches: what
    was learned by heart, measured in training. The number of prompts that are replayed is times
    1 − g/bound, held to 0 … 1. Until `measured` controls are in the bank, g is 0.
    """

    epsilon: PositiveShare = 1.0
    controls: Count = 10
    """Of so many prompts one is a control."""
    measured: Count = 100
    """Controls in the bank before g is measured; g then has a standard error of about .025."""
    bound: Positive = 0.1
    """g at which nothing is replayed."""

    state: ClassVar[tuple[str, ...]] = (*PivotalReplay.state, "gap")

    def start(self, run: Run) -> None:
        super().start(run)
        self.gap = 0.0  # g

    def replay(self, banked: Prompts, rng: np.random.Generator) -> Answer:
        control_P = banked.rows_P % self.controls == 0
        if control_P.sum() >= self.measured:
            gap = banked.rate_P[~control_P].mean() - banked.rate_P[control_P].mean()
            self.gap = KEPT * self.gap + (1 - KEPT) * float(gap)
        share = np.clip(1 - self.gap / self.bound, 0.0, 1.0)
        return self.replay_some(banked, ~control_P, round(self.prompts * share), rng)

    def report(self) -> dict[str, Any]:
        return super().report() | {"gap": self.gap}  # of the step before


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

    w = c n̄ (1 − p̃) max(p̃, .1), p̃ after the visit. With c = 2 that is what PKPO's advantages for
    pass@2 give the correct rollouts of a group in the mean, where p̃ is at least .1. All rollouts
    have advantage 0, so that nothing counts twice. Correct ones that are not whole, and so not in
    the bank, teach nothing. `prompts`, `most` and `start_at` have no effect.
    """

    epsilon: PositiveShare = 1.0

    state: ClassVar[tuple[str, ...]] = (*PivotalReplay.state, "visited")

    def start(self, run: Run) -> None:
        super().start(run)
        self.visited = np.zeros(0, int)  # rows of the batch

    def update(self, batch: Batch) -> None:
        super().update(batch)
        self.visited = batch.rows_P

    def advantages(self, batch: Batch) -> np.ndarray:
        return np.zeros(len(batch.correct_R))

    def replay(self, banked: Prompts, rng: np.random.Generator) -> Answer:
        places = np.flatnonzero(np.isin(banked.rows_P, self.visited))
        scale = self.scale * self.run.mean_rollouts
        return places, replay_weights(banked.rate_P[places], scale, self.least)


@register("bank_retire")
@options
class BankRetire(PivotalReplay):
    """F4: what is learned retires, and prompts whose last success is old count less.

    Not replayed are prompts without a failure at their last visit, and those whose p̂ is above the
    median of the prompts in the bank. Weights are times 2^(−age/τ), age in batches since the
    prompt's last success was sampled.
    """

    epsilon: PositiveShare = 1.0
    half_life: Positive = 100.0
    """τ, in batches."""

    state: ClassVar[tuple[str, ...]] = (*PivotalReplay.state, "batches", "failed_D", "success_D")

    def start(self, run: Run) -> None:
        super().start(run)
        self.batches = 0
        self.failed_D = np.zeros(0)  # 1 where the last visit had a failure
        self.success_D = np.zeros(0)  # batch of the last success

    def update(self, batch: Batch) -> None:
        super().update(batch)
        self.batches += 1
        self.failed_D = self.grow(self.failed_D, batch.rows_P)
        self.failed_D[batch.rows_P] = batch.hits_P < batch.trials_P
        self.success_D = self.grow(self.success_D, batch.rows_P)
        self.success_D[batch.rows_P[batch.hits_P > 0]] = self.batches

    def replay(self, banked: Prompts, rng: np.random.Generator) -> Answer:
        may_P = self.failed_D[banked.rows_P] > 0
        may_P &= banked.rate_P <= np.median(banked.rate_P)
        answer = self.replay_some(banked, may_P, self.prompts, rng)
        if answer is None:
            return None
        places, weights_P = answer
        age_P = self.batches - self.success_D[banked.rows_P[places]]
        return places, weights_P * 2.0 ** (-age_P / self.half_life)


# What follows gives F2 its loss: the loop knows one weight for a text, not one for each token.


class SurpriseTexts(loop.Texts):
    """Kept texts whose tokens are weighted by 1 − π."""


def bank_texts(training: loop.LoopTraining) -> loop.Texts | None:
    """Kept texts of a step, marked where the method weighs them by surprise."""
    texts = plain_bank_texts(training)
    if texts is None or not getattr(training.controller.method, "by_surprise", False):
        return texts
    return SurpriseTexts(*texts)


def take_step(
    model: Any, optimizer: Any, learning_rate: float, collected: list[loop.Texts]
) -> None:
    """`gdro_lab.loop.take_step`, for kept texts that are weighted by surprise too."""
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
    return int(loop.completion_mask(texts.text_RT, eos_id).sum())


def surprise_gradient(model: Any, texts: loop.Texts, tokens: int) -> None:
    """Add the gradient of −(1/tokens) Σ w Σ_t sg(1 − π_t) log π_t."""
    start = texts.prompt_RT.shape[1]
    text_NT = torch.cat([texts.prompt_RT, texts.text_RT], dim=1)
    logps_NT, mask_NT = loop.completion_logps(model, text_NT, start)
    surprise_NT = -torch.expm1(logps_NT.detach())
    logps_N = (surprise_NT * logps_NT * mask_NT).sum(dim=1)
    (-(texts.advantages_R @ logps_N) / tokens).backward()


# this file may be read more than once in a process, so the loop keeps its own functions
plain_take_step, plain_bank_texts = vars(loop).setdefault(
    "PLAIN", (loop.take_step, loop.LoopTraining.bank_texts)
)
vars(loop)["take_step"] = take_step
loop.LoopTraining.bank_texts = bank_texts  # type: ignore[method-assign, assignment]
