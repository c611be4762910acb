"""A difficulty for prompts that were never sampled: a regression on what is known of their text.

Without it an unseen prompt has no bin, and a pass rate of ½ ± ⅓. On real data most visits are first
ones, and the length of a problem or its source already says something about its pass rate.
`PromptPrior` learns that online, by a logistic regression of the pass rate on features x of the
prompt. Of K prompts with n rollouts, a share ȳ of them correct, it keeps the Gaussian posterior
(mean w, precision Λ) of the coefficients by Laplace's approximation:

    minimize  ½ (w − w₀)ᵀ Λ₀ (w − w₀) − Σ m [ȳ log p + (1 − ȳ) log(1 − p)],   p = σ(w·x),
    Λ = Λ₀ + Σ m p (1 − p) x xᵀ.

Prompts with equal features differ, so n rollouts of one prompt are worth m = n / (1 + (n − 1) ρ).
ρ is the intraclass correlation, estimated by moments from how far ȳ lies from its prediction:
p (1 − p) (ρ + (1 − ρ) / n) is its expected square. An unseen prompt then has the prior
Beta(μ s, (1 − μ) s) with the predicted rate μ and the strength s = 1/ρ − 1, less where the
coefficients are uncertain. What was learned fades, since the policy changes.

Axes: D prompts of the data set, P prompts, F features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from gdro.bins import DifficultyBins
from gdro.checks import LARGEST, check_array, short
from gdro.method import Batch, Prompts
from gdro.state import Stateful
from gdro.uids import as_uids, check_different, check_uids

KEPT = 0.97  # part of the evidence that a batch leaves to the next
NEWTON_STEPS = 5
TOLERANCE = 1e-9  # of what they minimize: rounding is no overshooting
LEAST_RHO = 0.02  # a prior is never worth more than 49 rollouts
MOST_RHO = 0.5  # that of Jeffreys' prior, Beta(½, ½)
RHO_EVIDENCE = 2.0  # prompts that the first ρ, the largest, is worth
MOST_LABELS = 500  # of a column: the memory is their square, the time their cube
DIGITS = 6  # kept of μ and s: the last bits of a solution differ between processors


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Logistic function, without overflow."""
    return np.exp(-np.logaddexp(0.0, -logits))


def feature_columns(columns: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
    """Features by name: numbers as they are, and an indicator for each value of a text column.

    Raises:
        ValueError: for a column that is neither all numbers nor all strings.
    """
    features = {}
    for name, column in columns.items():
        values = np.asarray(column, object)
        if all(isinstance(value, str) for value in values):
            labels = sorted(set(values))
            if len(labels) > MOST_LABELS:
                raise ValueError(
                    f"column {name!r} must have at most {MOST_LABELS} different texts, which are "
                    f"categories, got {len(labels)}: group them, or leave it out"
                )
            for label in labels:
                features[f"{name}={label}"] = (values == label).astype(float)
        else:
            features[name] = check_array(
                f"column {name!r}", column, (len(values),), -LARGEST, LARGEST
            )
    return features


def check_prior(prior: object) -> None:
    """Raise ValueError unless `prior` is a `PromptPrior` that no other controller has."""
    if not isinstance(prior, PromptPrior):
        raise ValueError(f"prior must be a gdro.prior.PromptPrior, got {short(prior)}")
    if prior.in_use:
        raise ValueError("prior must be new, got that of another controller: make it again")


class PromptPrior(Stateful):
    """Beta priors of pass rates, predicted from columns of the data set.

    Args:
        uids: (D,), one stable uid a prompt, all different. Only these prompts can be planned.
        columns: (D,) values each, by name: all numbers, or all strings, which are categories. For
            lengths, give the logarithm.

    Raises:
        ValueError: names the column or the uid.
    """

    state: ClassVar[tuple[str, ...]] = (
        "centre",
        "scale",
        "mean",
        "precision",
        "visits",
        "excess",
        "spread",
    )

    def __init__(self, uids: ArrayLike | Sequence[str], columns: Mapping[str, ArrayLike]) -> None:
        uids_D = check_uids(uids)
        check_different(uids_D)
        if not isinstance(columns, Mapping) or not columns:
            raise ValueError(f"columns must be a mapping of at least one, got {short(columns)}")
        for name, values in columns.items():
            size = np.size(values)
            if size != len(uids_D):
                raise ValueError(
                    f"column {name!r} must have a value for each of the {len(uids_D)} uids, "
                    f"got {size}"
                )
        features = feature_columns(columns)
        self.in_use = False  # by a controller
        self.names = list(features)
        self.place_of = {uid: place for place, uid in enumerate(uids_D.tolist())}
        self._values_DF = np.stack(list(features.values()), axis=1)
        # saved, so that coefficients keep their meaning where the data set has grown
        self.centre = self._values_DF.mean(axis=0)
        deviation = self._values_DF.std(axis=0)
        self.scale = np.where(deviation > 0, deviation, 1.0)
        self._start = np.eye(1 + len(features))  # precision before any evidence
        self.mean = np.zeros(len(self._start))
        self.precision = self._start.copy()
        self.visits = 0
        # fading sums over prompts: of squares beyond those of independent rollouts, and of what
        # they would be at ρ = 1
        self.excess = 0.0
        self.spread = 0.0

    @property
    def correlation(self) -> float:
        """ρ, how alike the rollouts of a prompt are beyond what its features say."""
        estimate = (self.excess + MOST_RHO * RHO_EVIDENCE) / (self.spread + RHO_EVIDENCE)
        return min(max(estimate, LEAST_RHO), MOST_RHO)

    def features(self, uids: ArrayLike | Sequence[str]) -> np.ndarray:
        """x of each prompt, standardized, with a first column of ones, (P, 1 + F)."""
        try:
            places = [self.place_of[uid] for uid in as_uids(uids).tolist()]
        except KeyError as error:
            raise ValueError(
                f"uids must be of prompts that the prior knows, got {error.args[0]!r}"
            ) from None
        x_PF = (self._values_DF[places] - self.centre) / self.scale
        return np.concatenate([np.ones((len(x_PF), 1)), x_PF], axis=1)

    def predict(self, uids: ArrayLike | Sequence[str]) -> tuple[np.ndarray, np.ndarray] | None:
        """α and β of each prompt's prior, (P,) each; None before the first visit of any prompt."""
        x_PF = self.features(uids)  # first, so that unknown uids are refused from the start
        if not self.visits:
            return None
        variance_P = (x_PF * np.linalg.solve(self.precision, x_PF.T).T).sum(axis=1)
        # MacKay's approximation of E[σ(z)] for a normal z
        rate_P = sigmoid(x_PF @ self.mean / np.sqrt(1 + np.pi / 8 * variance_P))
        # the delta method: what uncertain coefficients add to the variance of the rate
        correlation_P = self.correlation + rate_P * (1 - rate_P) * variance_P
        strength_P = 1 / np.minimum(correlation_P, MOST_RHO) - 1
        rate_P = np.clip(rate_P.round(DIGITS), 10.0**-DIGITS, 1 - 10.0**-DIGITS)
        strength_P = strength_P.round(DIGITS)
        return rate_P * strength_P, (1 - rate_P) * strength_P

    def put_into(self, prompts: Prompts, bins: DifficultyBins) -> Prompts:
        """The prompts with their priors; those without an estimate get the bins of their priors."""
        predicted = self.predict(prompts.uids_P)
        if predicted is None:
            return prompts
        alpha_P, beta_P = predicted
        bins_P = np.where(prompts.has_bin_P, prompts.bins_P, bins.first_bins(alpha_P, beta_P))
        return replace(prompts, bins_P=bins_P, prior_alpha_P=alpha_P, prior_beta_P=beta_P)

    def update(self, batch: Batch) -> None:
        """Learn from a visit of each prompt of a batch."""
        x_PF = self.features(batch.uids_P)
        trials_P = batch.trials_P
        share_P = batch.hits_P / trials_P
        # before the coefficients move, so that ρ is measured on predictions
        rate_P = sigmoid(x_PF @ self.mean)
        variance_P = rate_P * (1 - rate_P)
        excess_P = (share_P - rate_P) ** 2 - variance_P / trials_P
        self.excess = KEPT * self.excess + float(excess_P.sum())
        self.spread = KEPT * self.spread + float((variance_P * (1 - 1 / trials_P)).sum())
        self.visits += len(trials_P)
        worth_P = trials_P / (1 + (trials_P - 1) * self.correlation)
        earlier = KEPT * self.precision + (1 - KEPT) * self._start

        def objective(mean: np.ndarray) -> float:
            """What is minimized, up to a constant."""
            moved = mean - self.mean
            logits_P = x_PF @ mean
            losses_P = worth_P * (np.logaddexp(0.0, logits_P) - share_P * logits_P)
            return float(moved @ earlier @ moved / 2 + losses_P.sum())

        mean = self.mean
        for _ in range(NEWTON_STEPS):
            rate_P = sigmoid(x_PF @ mean)
            gradient = x_PF.T @ (worth_P * (share_P - rate_P)) - earlier @ (mean - self.mean)
            weight_P = worth_P * rate_P * (1 - rate_P)
            precision = earlier + (x_PF.T * weight_P) @ x_PF
            step = np.linalg.solve(precision, gradient)
            # where rates change abruptly a full step can overshoot, and the next swing further
            bound = objective(mean) + TOLERANCE
            while objective(mean + step) > bound:
                step = step / 2
            mean = mean + step
        self.mean = mean
        self.precision = precision

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"features": self.names}
