"""The data adversary (section 3.2): from the bins' mean losses to weights, or to a draw of prompts.

The pure functions are (12)–(15), the first two in `gdro.methods.bin_game`; bins are their last axis, behind
any others (seeds, settings). `PromptGDRO` holds the scores of one run, `PromptMethod` plays it as a method.
Axes: P prompts, B bins.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from gdro.core.checks import build, check_array, check_choice, check_int, check_number, option
from gdro.core.limits import LARGEST, LARGEST_ETA, MOST_BINS
from gdro.core.saved import Saved
from gdro.methods.base import Batch, Prompts, Run, register
from gdro.methods.bin_game import BinGame, bin_means, debiased, ema_scores
from gdro.methods.draws import highest

LARGEST_LOG_WEIGHT = 200.0  # such weights, their inverses and sums of them stay below `LARGEST`

SIGNALS: dict[str, Callable[[Batch], np.ndarray]] = {  # the loss of a prompt that Prompt-GDRO sees, (P,)
    # 1 − share of its rollouts that are correct (footnote 3, up to an affine map)
    "failure_rate": lambda batch: 1.0 - batch.hits_P / batch.trials_P,
    # (6)–(7) as printed: on-policy it is β·KL, which holds no difficulty information
    "surrogate": lambda batch: batch.losses_P,
    # unbiased variance of its rewards, whose expectation is free of n; NaN at n = 1
    "spread": lambda batch: batch.variance_P,
}


def log_weights(scores: np.ndarray, eta: float, clip: float) -> np.ndarray:
    """log ω_t(b) = η · clip(S_t(b), −C, C), of (14)."""
    return eta * np.clip(scores, -clip, clip)


def mixed_probabilities(weights: ArrayLike, gamma: float) -> np.ndarray:
    """q_t(b) = (1−γ) ω_t(b)/Σω + γ/B, (15), over all B bins of the last axis."""
    weights = np.asarray(weights, float)
    return (1 - gamma) * weights / weights.sum(axis=-1, keepdims=True) + gamma / weights.shape[-1]


@dataclass(eq=False)
class PromptGDRO(Saved):
    """Exponentiated-gradient adversary over the bins."""

    num_bins: int = option(10, check_int, 1, MOST_BINS, remedy="give len(edges) + 1")
    # step size η_q
    eta: float = option(0.65, check_number, 0, LARGEST_ETA, remedy="0 switches the adversary off")
    gamma: float = option(0.01, check_number, 0, 1)  # the uniform share of (15)
    # β: weight of the newest batch
    ema: float = option(0.12, check_number, 0, 1, open_low=True, remedy="1 looks at the last batch alone")
    # C of (14)
    clip: float = option(5.0, check_number, 0, open_low=True, infinite=True, remedy="inf switches it off")
    # ω_max of (16)
    max_weight: float = option(
        15.0, check_number, 0, open_low=True, infinite=True, remedy="inf switches it off"
    )
    # None keeps the intensive score of (13), so that equal losses give equal weights; a number divides it by
    # the bin's share of the batch, floored there, as printed
    share_floor: float | None = option(
        None, check_number, 0, 1, open_low=True, optional=True, remedy="None does not divide by the share"
    )
    # scores start from the data; False starts every bin at 0, as printed
    debias: bool = option(True, check_choice, (True, False))

    state = ("ema_B", "visits_B")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ema_B, self.visits_B = np.zeros(self.num_bins), np.zeros(self.num_bins, np.uint32)

    def update(self, bin_ids: ArrayLike, losses: ArrayLike, weights: ArrayLike | None = None) -> None:
        """One step of (12)–(13), all (P,): bin −1 and loss NaN are left out.

        `weights` say how much a prompt counts in its bin's mean; equally by default.
        """
        size, remedy = (np.size(bin_ids),), "give one per prompt"
        bin_ids_P = check_array("bin_ids", bin_ids, size, -1, self.num_bins - 1, whole=True, remedy=remedy)
        losses_P = check_array("losses", losses, size, -(LARGEST**2), LARGEST**2, nan=True, remedy=remedy)
        if weights is not None:
            weights = check_array("weights", weights, size, 0, remedy=remedy)
        means_B, counts_B = bin_means(bin_ids_P, losses_P, self.num_bins, weights)
        if self.share_floor is not None and counts_B.any():
            means_B = means_B / np.maximum(counts_B / counts_B.sum(), self.share_floor)
        self.ema_B = ema_scores(self.ema_B, means_B, self.ema)
        self.visits_B += ~np.isnan(means_B)

    def scores(self) -> np.ndarray:
        """S_t(b), (B,)."""
        return debiased(self.ema_B, self.visits_B, self.ema) if self.debias else self.ema_B.copy()

    def weights(self) -> np.ndarray:
        """min(ω_t(b), ω_max), the factor of (16), (B,)."""
        # without a cap, or with eta 1000, the exponential would overflow
        weights_B = np.exp(np.clip(self._log_weights(), -LARGEST_LOG_WEIGHT, LARGEST_LOG_WEIGHT))
        return np.minimum(weights_B, self.max_weight)

    def probabilities(self) -> np.ndarray:
        """q_t(b) of (15), (B,), a point of the simplex."""
        log_weights_B = self._log_weights()
        # the largest is subtracted so that no exponential overflows: a common factor cancels in (15)
        return mixed_probabilities(np.exp(log_weights_B - log_weights_B.max()), self.gamma)

    def _log_weights(self) -> np.ndarray:
        return log_weights(self.scores(), self.eta, self.clip)


@register("prompt")
@dataclass(eq=False)
class PromptMethod(BinGame):
    """Prompt-GDRO as a method. Its scores are in `prompt_gdro` once the controller has started it."""

    prompt: Mapping[str, Any] = field(default_factory=dict)  # arguments of `PromptGDRO`
    signal: str = option("failure_rate", check_choice, tuple(SIGNALS))
    # "reweight" scales advantages, (16); "resample" draws the prompts with bin probabilities q
    action: str = option("reweight", check_choice, ("reweight", "resample"))
    # "mean" divides weights by their batch mean; "none" leaves them, as printed
    weight_scale: str = option("mean", check_choice, ("mean", "none"))

    presets: ClassVar = {
        "paper": {
            "prompt": {"share_floor": 0.05, "debias": False},
            "signal": "surrogate",
            "averaging": "prompt",
            "weight_scale": "none",
        }
    }
    state: ClassVar[tuple[str, ...]] = ("prompt_gdro",)

    def start(self, run: Run) -> None:
        super().start(run)
        self.prompt_gdro: PromptGDRO = build("prompt", PromptGDRO, self.prompt, num_bins=run.num_bins)
        if self.signal == "spread":
            remedy = "raise it: a single rollout shows no spread"
            check_number("mean_rollouts", run.mean_rollouts, 1, open_low=True, remedy=remedy)

    @property
    def draws(self) -> bool:
        return self.action == "resample"

    @property
    def needs_losses(self) -> bool:
        return self.signal == "surrogate" or super().needs_losses

    def update(self, batch: Batch) -> None:
        super().update(batch)
        self.prompt_gdro.update(batch.bins_P, SIGNALS[self.signal](batch), self.counts(batch))

    def weights(self, batch: Batch) -> np.ndarray:
        """min(ω_b, ω_max) of each prompt's bin after the batch; the mean weight where it has no bin."""
        weights_P, seen_P = super().weights(batch), batch.bins_after_P >= 0
        if self.action == "reweight" and seen_P.any():
            omega_P = self.prompt_gdro.weights()[batch.bins_after_P]
            mean = omega_P[seen_P].mean()
            omega_P[~seen_P] = mean
            weights_P = weights_P * (omega_P / mean if self.weight_scale == "mean" else omega_P)
        return weights_P

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        """Bins are drawn with probabilities q, prompts evenly within a bin: none twice before all of its bin.

        Prompts not seen yet keep their share of the pool; q divides the rest among bins with prompts.
        """
        counts_B = np.bincount(pool.bins_P + 1, minlength=self.run.num_bins + 1)  # [0]: not seen yet
        share_B = counts_B / len(pool)
        q_B = np.where(counts_B[1:] > 0, self.prompt_gdro.probabilities(), 0.0)
        if q_B.any():
            share_B[1:] = share_B[1:].sum() * q_B / q_B.sum()
        quota_B = rng.multinomial(size, share_B / share_B.sum())
        drawn = []
        for b in np.flatnonzero(quota_B):
            members = np.flatnonzero(pool.bins_P == b - 1)
            drawn.append(members[highest(np.zeros(len(members)), quota_B[b], rng)])
        return rng.permutation(np.concatenate(drawn))  # or the batch would have one bin after another

    def report(self) -> dict[str, Any]:
        weights_B, q_B = self.prompt_gdro.weights(), self.prompt_gdro.probabilities()
        return super().report() | {"weight": weights_B.tolist(), "probability": q_B.tolist()}
