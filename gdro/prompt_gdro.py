"""The data adversary (section 3.2): mean losses of the bins in, weights of the bins out.

Axes: P prompts, B bins, always last; anything may stand in front (seeds, settings). The pure
functions are equations (12)–(15); `PromptGDRO` holds the scores.
"""

import numpy as np

from gdro.bins import check_settings


def bin_means(bin_ids_P, values_P, num_bins, weights_P=None):
    """Mean value by bin, ℓ̄_t(b) of (13). Returns (means (B,), NaN where absent; counts (B,)).

    bin_ids_P: (P,) in [−1, B); −1 (not seen yet) is left out, as is a NaN value. weights_P: (P,),
    how much each prompt counts in the mean; by default all the same.
    """
    bin_ids_P = np.asarray(bin_ids_P)
    values_P = np.asarray(values_P, float)
    if bin_ids_P.shape != values_P.shape or bin_ids_P.ndim != 1:
        raise ValueError(
            f"bin_ids and values must be one per prompt, got {bin_ids_P.shape} and {values_P.shape}"
        )
    if bin_ids_P.size:
        _check_bin_ids(bin_ids_P, num_bins)
    counted = (bin_ids_P >= 0) & ~np.isnan(values_P)
    bins, values = bin_ids_P[counted].astype(np.int64), values_P[counted]
    counts_B = np.bincount(bins, minlength=num_bins)
    if weights_P is None:
        return _ratio(np.bincount(bins, values, num_bins), counts_B), counts_B
    weights = np.asarray(weights_P, float)[counted]
    sums_B = np.bincount(bins, weights * values, num_bins)
    return _ratio(sums_B, np.bincount(bins, weights, num_bins)), counts_B


def _ratio(sums_B, counts_B):
    """Sums over counts, NaN where the count is 0."""
    return sums_B / np.where(counts_B > 0, counts_B, np.nan)


def _check_bin_ids(bin_ids_P, num_bins):
    if bin_ids_P.dtype.kind not in "iu":
        raise ValueError(f"bin_ids must be integers, got dtype {bin_ids_P.dtype}; see DifficultyBins.assign")
    if bin_ids_P.min() < -1 or bin_ids_P.max() >= num_bins:
        raise ValueError(
            f"bin_ids must lie in [-1, {num_bins}), got {np.unique(bin_ids_P)}; "
            "make PromptGDRO with as many bins as DifficultyBins has"
        )


def ema_scores(scores, means, ema):
    """S_t(b) = (1−β) S_{t−1}(b) + β ℓ̄_t(b), (12); a bin without a mean (NaN) keeps its score."""
    return np.where(np.isnan(means), scores, (1 - ema) * scores + ema * means)


def exponential_weights(scores, eta, clip):
    """ω_t(b) = exp(η · clip(S_t(b), −C, C)), (14)."""
    return np.exp(eta * np.minimum(np.maximum(scores, -clip), clip))


def mixed_probabilities(weights, gamma):
    """q_t(b) = (1−γ) ω_t(b)/Σω + γ/B, (15), over all B bins of the last axis."""
    weights = np.asarray(weights, float)
    share = weights / weights.sum(axis=-1, keepdims=True)
    return (1 - gamma) * share + gamma / weights.shape[-1]


class PromptGDRO:
    """Exponentiated-gradient adversary over the bins.

    eta: step size η_q ≥ 0. gamma: uniform share γ in [0, 1]. ema: β in (0, 1], 1 looks at the last
    batch alone. clip: C > 0 of (14). max_weight: ω_max of (16).
    share_floor: None leaves the intensive score of (13) as it is, so that equal losses give equal
    weights; a number divides it by the bin's share of the batch, floored there, as printed.
    debias: scores start from the data instead of from 0: the EMA is divided by 1 − (1−β)^visits, and
    a bin never seen stands at the mean of the others. False starts every bin at 0, as printed.
    exclude: bins the adversary leaves alone: weight 1, natural share, no part in q.
    """

    def __init__(
        self,
        num_bins: int = 10,
        eta: float = 0.65,
        gamma: float = 0.01,
        ema: float = 0.12,
        clip: float = 5.0,
        max_weight: float = 15.0,
        share_floor: float | None = None,
        debias: bool = True,
        exclude: tuple[int, ...] = (),
    ):
        check_adversary(num_bins, eta, gamma, ema)
        for name, value in (("clip", clip), ("max_weight", max_weight)):
            if not value > 0:
                raise ValueError(f"{name} must be positive, got {value}; float('inf') switches it off")
        if share_floor is not None and not 0 < share_floor <= 1:
            raise ValueError(
                f"share_floor must be None or lie in (0, 1], got {share_floor}; "
                "None does not divide by the share"
            )
        if len(set(exclude)) >= num_bins or not all(0 <= b < num_bins for b in exclude):
            raise ValueError(
                f"exclude must name bins in [0, {num_bins}), not all of them, got {exclude}; "
                "to play no bin use method 'grpo' or 'rollout'"
            )
        self.num_bins, self.eta, self.gamma, self.ema = num_bins, eta, gamma, ema
        self.clip, self.max_weight = clip, max_weight
        self.share_floor, self.debias = share_floor, debias
        self.exclude = tuple(sorted(set(exclude)))
        self._included = ~np.isin(np.arange(num_bins), self.exclude)
        self._ema_B = np.zeros(num_bins)
        self._visits_B = np.zeros(num_bins, np.int64)

    def update(self, bin_ids, losses, weights=None) -> None:
        """One step of (12)–(13). bin_ids: (P,), −1 left out. losses: (P,), NaN left out.

        weights: (P,), how much a prompt counts in its bin's mean (default: all the same).
        """
        means, counts = bin_means(bin_ids, losses, self.num_bins, weights)
        if self.share_floor is not None and counts.any():
            means = means / np.maximum(counts / counts.sum(), self.share_floor)
        self._ema_B = ema_scores(self._ema_B, means, self.ema)
        self._visits_B += ~np.isnan(means)

    def scores(self) -> np.ndarray:
        """S_t(b), (B,)."""
        if not self.debias:
            return self._ema_B.copy()
        return debiased(self._ema_B, self._visits_B, self.ema)

    def weights(self) -> np.ndarray:
        """min(ω_t(b), ω_max), the factor of (16), (B,); 1 for an excluded bin."""
        weights = exponential_weights(self.scores(), self.eta, self.clip)
        return np.where(self._included, np.minimum(weights, self.max_weight), 1.0)

    def probabilities(self) -> np.ndarray:
        """q_t(b) of (15), (B,), a point of the simplex; 0 for an excluded bin."""
        weights = exponential_weights(self.scores(), self.eta, self.clip)
        probabilities = np.zeros(self.num_bins)
        probabilities[self._included] = mixed_probabilities(weights[self._included], self.gamma)
        return probabilities

    def state_dict(self) -> dict:
        """Settings as plain values, scores as arrays."""
        return {
            "settings": self._settings(),
            "ema": self._ema_B.copy(),
            "visits": self._visits_B.copy(),
        }

    def load_state_dict(self, state: dict) -> None:
        """Inverse of `state_dict`; ValueError if the state is of other settings."""
        check_settings("PromptGDRO", self._settings(), state["settings"])
        self._ema_B = np.array(state["ema"])
        self._visits_B = np.array(state["visits"])

    def _settings(self):
        return {
            "num_bins": self.num_bins,
            "eta": self.eta,
            "gamma": self.gamma,
            "ema": self.ema,
            "clip": self.clip if np.isfinite(self.clip) else None,  # JSON has no infinity
            "max_weight": self.max_weight if np.isfinite(self.max_weight) else None,
            "share_floor": self.share_floor,
            "debias": self.debias,
            "exclude": list(self.exclude),
        }


def debiased(ema_scores, visits, ema, bin_axis=0):
    """Scores freed of their start at 0: EMA / (1 − (1−β)^visits).

    ema_scores, visits: one shape, bins along `bin_axis`. What was never visited stands at the mean
    of the visited bins, 0 if there are none, so that it is neither favoured nor starved.
    """
    correction = 1.0 - (1.0 - ema) ** visits
    if visits.all():
        return ema_scores / correction
    visited = visits > 0
    scores = np.divide(ema_scores, correction, out=np.zeros(correction.shape), where=visited)
    mean = scores.sum(bin_axis, keepdims=True) / np.maximum(visited.sum(bin_axis, keepdims=True), 1)
    return np.where(visited, scores, mean)


def check_adversary(num_bins, eta, gamma, ema):
    """The domains that both adversaries share."""
    if not (isinstance(num_bins, int | np.integer) and num_bins >= 1):
        raise ValueError(f"num_bins must be an integer of at least 1, got {num_bins!r}; it is len(edges) + 1")
    if not 0 <= eta < np.inf:
        raise ValueError(f"eta must be ≥ 0 and finite, got {eta}; 0 switches the adversary off")
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma must lie in [0, 1], got {gamma}; it is the uniform share of (15)")
    if not 0 < ema <= 1:
        raise ValueError(f"ema must lie in (0, 1], got {ema}; 1 looks at the last batch alone")
