"""Prompt-GDRO, the data adversary (section 3.2): bins with high losses get weight, or more draws.

The pure functions are (14)–(15), with those of `gdro.scores`, (12)–(13); bins are their last axis,
behind any others (seeds, settings).
`PromptAdversary` holds the scores of one run, `PromptGDRO` is the method. Axes: P prompts, B bins.
"""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from gdro import checks
from gdro.draws import highest
from gdro.method import Batch, Prompts, Run
from gdro.methods.averaging import AveragingMethod
from gdro.registry import register
from gdro.scores import bin_means, debias, ema_scores
from gdro.state import Stateful

LARGEST_LOG_WEIGHT = 200.0  # such weights, their inverses and sums of them stay below `LARGEST`


def log_weights(scores: np.ndarray, eta: float, clip: float) -> np.ndarray:
    """log ω_t(b) = η · clip(S_t(b), −C, C), of (14)."""
    return eta * np.clip(scores, -clip, clip)


def mixed_probabilities(weights: ArrayLike, gamma: float) -> np.ndarray:
    """q_t(b) = (1−γ) ω_t(b)/Σω + γ/B, (15), over all B bins of the last axis."""
    weights = np.asarray(weights, float)
    return (1 - gamma) * weights / weights.sum(axis=-1, keepdims=True) + gamma / weights.shape[-1]


@checks.options
class PromptAdversary(Stateful):
    """Exponentiated-gradient adversary over the bins."""

    num_bins: checks.Length = 10
    eta: checks.StepSize = 0.65
    """η_q of (14); 0 switches the adversary off."""
    gamma: checks.Share = 0.01
    """The uniform share of (15)."""
    ema: checks.PositiveShare = 0.12
    """β of (12), the weight of the newest batch."""
    clip: checks.Bound = 5.0
    """C of (14); inf for none."""
    max_weight: checks.Bound = 15.0
    """ω_max of (16); inf for none."""
    share_floor: checks.PositiveShare | None = None
    """None keeps the intensive score of (13), so that equal losses give equal weights; a number
    divides it by the bin's share of the batch, floored there, as printed."""
    debias: bool = True
    """Scores start from the data; False starts every bin at 0, as printed."""

    state = ("ema_B", "visits_B")

    def __post_init__(self) -> None:
        self.ema_B = np.zeros(self.num_bins)
        self.visits_B = np.zeros(self.num_bins, np.uint32)

    def update(
        self, bin_ids: ArrayLike, losses: ArrayLike, weights: ArrayLike | None = None
    ) -> None:
        """One step of (12)–(13).

        Args:
            bin_ids: (P,), the bin of each prompt; −1 is left out.
            losses: (P,), the loss of each; NaN is left out.
            weights: (P,), how much each counts in its bin's mean; equally by default.
        """
        losses = checks.check_array(
            "losses", losses, None, -checks.LARGEST, checks.LARGEST, missing=True
        )
        bin_ids = checks.check_array(
            "bin_ids", bin_ids, losses.shape, -1, self.num_bins - 1, whole=True
        )
        means_B, counts_B = bin_means(bin_ids, losses, self.num_bins, weights)
        if self.share_floor is not None and counts_B.any():
            means_B = means_B / np.maximum(counts_B / counts_B.sum(), self.share_floor)
        self.ema_B = ema_scores(self.ema_B, means_B, self.ema)
        self.visits_B += ~np.isnan(means_B)

    def scores(self) -> np.ndarray:
        """S_t(b), (B,)."""
        return debias(self.ema_B, self.visits_B, self.ema) if self.debias else self.ema_B.copy()

    def weights(self) -> np.ndarray:
        """min(ω_t(b), ω_max), the factor of (16), (B,)."""
        # without a cap, or with eta 1000, the exponential would overflow
        log_weights_B = log_weights(self.scores(), self.eta, self.clip)
        weights_B = np.exp(np.clip(log_weights_B, -LARGEST_LOG_WEIGHT, LARGEST_LOG_WEIGHT))
        return np.minimum(weights_B, self.max_weight)

    def probabilities(self) -> np.ndarray:
        """q_t(b) of (15), (B,), a point of the simplex."""
        log_weights_B = log_weights(self.scores(), self.eta, self.clip)
        # a common factor cancels in (15): without the largest, no exponential overflows
        return mixed_probabilities(np.exp(log_weights_B - log_weights_B.max()), self.gamma)


SIGNALS: dict[str, Callable[[Batch], np.ndarray]] = {  # the loss of a prompt that it sees, (P,)
    # 1 − share of its rollouts that are correct (footnote 3, up to an affine map)
    "failure_rate": lambda batch: 1.0 - batch.hits_P / batch.trials_P,
    # (6)–(7) as printed: on-policy it is β·KL, which is too small to change a weight
    "surrogate": lambda batch: batch.losses_P,
}


@register("prompt")
@checks.options
class PromptGDRO(AveragingMethod):
    """Prompt-GDRO (arXiv 2601.19280): weights or draws by the bins' losses.

    Its scores are in `prompt_adversary`.
    """

    prompt: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `PromptAdversary`, but for num_bins, which the controller has."""
    signal: Literal["failure_rate", "surrogate"] = "failure_rate"
    """The loss of a prompt; see `SIGNALS`."""
    action: Literal["reweight", "resample"] = "reweight"
    """"reweight" scales advantages, (16); "resample" draws the prompts with probabilities q."""
    weight_scale: Literal["mean", "none"] = "mean"
    """"mean" divides weights by their mean over the prompts; "none" leaves them, as printed."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {
            "prompt": {"share_floor": 0.05, "debias": False},
            "signal": "surrogate",
            "weight_scale": "none",
        }
    }
    state: ClassVar[tuple[str, ...]] = ("prompt_adversary",)

    def start(self, run: Run) -> None:
        super().start(run)  # here and below: in `Both` these are RolloutGDRO's
        self.prompt_adversary = checks.build(
            "prompt", PromptAdversary, self.prompt, num_bins=run.num_bins
        )

    @property
    def draws(self) -> bool:
        return self.action == "resample"

    @property
    def needs_losses(self) -> bool:
        return self.signal == "surrogate" or super().needs_losses

    def update(self, batch: Batch) -> None:
        super().update(batch)
        losses_P = SIGNALS[self.signal](batch)
        # a loss counts for the bin in which the prompt was planned; `weights` take the present one
        self.prompt_adversary.update(batch.bins_P, losses_P, self.counts(batch))

    def weights(self, batch: Batch) -> np.ndarray:
        """Factor on each prompt's advantages, (P,): min(ω_b, ω_max) of its bin after the batch.

        It is divided by its mean over the prompts, also where they have unequal numbers of
        rollouts, unless `weight_scale` is "none". A prompt without a bin gets the mean, and every
        prompt has 1 under "resample". Times n̄/n_i where `averaging` is "prompt" and rollouts move.
        """
        weights_P = super().weights(batch)
        seen_P = batch.bins_after_P >= 0
        if self.action == "reweight" and seen_P.any():
            # a prompt without a bin, −1, first reads the last bin's weight, then gets the mean
            omega_P = self.prompt_adversary.weights()[batch.bins_after_P]
            mean = omega_P[seen_P].mean()
            omega_P[~seen_P] = mean
            weights_P = weights_P * (omega_P / mean if self.weight_scale == "mean" else omega_P)
        return weights_P

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        """Draw bins by q, prompts evenly within a bin; all of a bin come before any comes twice.

        Prompts not seen yet keep their share of the pool; q divides the rest among bins with
        prompts.
        """
        # N = B + 1 entries, of which [0] is for prompts without a bin
        counts_N = np.bincount(pool.bins_P + 1, minlength=self.run.num_bins + 1)
        share_N = counts_N / len(pool)
        q_B = np.where(counts_N[1:] > 0, self.prompt_adversary.probabilities(), 0.0)
        if q_B.any():
            share_N[1:] = share_N[1:].sum() * q_B / q_B.sum()
        quota_N = rng.multinomial(size, share_N / share_N.sum())
        drawn = []
        for b in np.flatnonzero(quota_N):
            members = np.flatnonzero(pool.bins_P == b - 1)
            drawn.append(members[highest(np.zeros(len(members)), quota_N[b], rng)])
        return rng.permutation(np.concatenate(drawn))  # else sorted by bin

    def report(self) -> dict[str, Any]:
        weights_B = self.prompt_adversary.weights()
        q_B = self.prompt_adversary.probabilities()
        return super().report() | {"weight": weights_B.tolist(), "probability": q_B.tolist()}
