"""Peers that draw the prompts. P prompts, D prompts of the data set.

Where a docstring writes p̂ it is the posterior mean of a prompt's pass rate, and P_i the weight of
prompt i in a draw without replacement.
"""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

import numpy as np

from gdro.budget import exact_rollouts
from gdro.checks import (
    Count,
    Positive,
    PositiveShare,
    Refusal,
    Share,
    Tries,
    check_array,
    options,
)
from gdro.draws import highest, in_proportion, mostly_in_proportion
from gdro.method import Batch, Method, Prompts, Run
from gdro.registry import register
from gdro.scores import bin_means, ema_scores


@register("mopps")
@options
class MoPPS(Method):
    """MoPPS (arXiv 2507.04632): Thompson sampling of prompts that are solved about half the time.

    θ_i ~ Beta(α_i, β_i) for each prompt of a random subset, the posterior on counts that fade;
    train on those with the smallest |θ_i − target|. Source: the paper and its public code, whose
    counts are halved at each visit or never fade (`bins={"history": 2}` is the former; by default
    they keep .95 here). Left out: the prior from a pilot run; a new prompt has Beta(½, ½), there
    Beta(1, 1).
    """

    target: Share = 0.5
    """Pass rate that is sought."""
    candidates: Count = 16
    """Size of the random subset, in batches."""

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        chosen = rng.permutation(len(pool))[: self.candidates * size]
        theta = rng.beta(pool.alpha_P[chosen], pool.beta_P[chosen])
        return chosen[highest(-np.abs(theta - self.target), size, rng)]


@register("vade")
class VADE(Method):
    """VADE (arXiv 2511.18902): Thompson sampling by the information a prompt is expected to give.

    θ_i ~ Beta(α_i, β_i); train on the prompts with the largest θ_i (1 − θ_i)², whose maximum is at
    θ = 1/3. Left out: the two-scale decay of the prior (counts fade at one rate, by visit) and the
    estimate of all prompts before the first step; a prompt without data has Beta(½, ½).
    """

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        theta_D = rng.beta(pool.alpha_P, pool.beta_P)
        return highest(theta_D * (1 - theta_D) ** 2, size, rng)


@register("cures")
@options
class CurES(Method):
    """CurES (arXiv 2510.01037): drawn by the bound on what a gradient step on a prompt can gain.

    P_i ∝ exp(√(p̂_i (1 − p̂_i)) / temperature). The temperature is ours. Left out: rollouts in
    proportion to a prompt's gradient variance, and rollouts made to estimate p̂ alone.
    """

    temperature: Positive = 0.1
    """Temperature of the softmax."""

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        return in_proportion(np.sqrt(pool.rate_P * (1 - pool.rate_P)) / self.temperature, size, rng)


@register("sec")
@options
class SEC(Method):
    """SEC, self-evolving curriculum (arXiv 2505.14970): a bandit over categories, by mean |A|.

    Q_c ← (1 − step) Q_c + step · mean |A_ij| over the rollouts of category c, and categories are
    drawn by softmax(Q / temperature), their prompts evenly, none of them twice in a batch.
    Categories are the bins (give `StaticGroups` for the paper's fixed ones); prompts without a bin
    are a category of their own. Left out: separate bandits for several kinds of problems. N arms:
    no bin yet, then the bins.
    """

    step: PositiveShare = 0.5
    """Weight of the newest batch in Q."""
    temperature: Positive = 0.2
    """Temperature of the softmax of Q, which lies in about [0, 1]."""

    state = ("values_N",)

    def start(self, run: Run) -> None:
        self.values_N = np.zeros(run.num_bins + 1)

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        arms_D = pool.bins_P + 1
        counts_N = np.maximum(np.bincount(arms_D, minlength=len(self.values_N)), 1)
        log_weights_N = self.values_N / self.temperature - np.log(counts_N)
        return in_proportion(log_weights_N[arms_D], size, rng)

    def update(self, batch: Batch) -> None:
        arms_P = np.where(batch.had_no_bin_P, 0, batch.bins_P + 1)
        sizes_P = batch.sums(np.abs(batch.group_advantages_R)) / batch.trials_P
        means_N, _ = bin_means(arms_P, sizes_P, len(self.values_N), batch.trials_P)
        self.values_N = ema_scores(self.values_N, means_N, self.step)


@register("spo")
@options
class SPO(Method):
    """SPO (arXiv 2509.13232): a tracked baseline in place of the group's; one rollout a prompt.

    The value of a prompt is its posterior mean v̂_i before the visit. A_ij = r_ij − v̂_i, minus its
    mean and over its standard deviation in the batch; P_i ∝ √(v̂_i (1 − v̂_i)) + epsilon. Source:
    the paper and its public recipe in verl (epsilon .05, one rollout a prompt, batches eight times
    GRPO's): `spo:prompts=128` in the arena spends what 32 × 4 do. Rewards count as correct or not.

    Left out: forgetting by the policy's movement (the recipe keeps .875 to .96 of a prompt's counts
    at a visit; here it is 1 − 1/H, by default .95, and .875 with `bins={"history": 8}`), and values
    from rollouts of the initial model; a new prompt has v̂ = ½, as in the recipe without them.
    """

    epsilon: Positive = 0.05
    """Part of the weight that every prompt keeps; 0 would lose solved prompts."""

    n_min = 1

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        weight_D = np.sqrt(pool.rate_P * (1 - pool.rate_P)) + self.epsilon
        return in_proportion(np.log(weight_D), size, rng)

    def advantages(self, batch: Batch) -> np.ndarray:
        surprise_R = batch.correct_R - batch.rate_P[batch.group_ids_R]
        sigma = surprise_R.std(ddof=1) if len(surprise_R) > 1 else 0.0
        return (surprise_R - surprise_R.mean()) / (sigma + 1e-8)


# For comparison only: what knowing the truth would be worth.


@register("oracle")
@options
class Oracle(Method):
    """The pivotal draw with true pass rates: how much knowing them exactly would be worth.

    P_i = (1 − ε) p_i (1 − p_i)^(k−1) / Σ p (1 − p)^(k−1) + ε/D, with p from the caller. Weights and
    advantages are GRPO's, so that the draw alone is compared.
    """

    rates: Callable[[np.ndarray], np.ndarray] | None = None
    """From uids (D,) in increasing order to the pass rates (D,) now; may also be set later."""
    k: Tries = 5
    """The draw favours pass rates about 1/k, as that of `pivotal`."""
    epsilon: PositiveShare = 0.1
    """Share of the draw that is even over the data."""
    even: bool = False
    """Divide P_i by the size of the prompt's bin, so that rare groups count as much as others."""

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        if self.rates is None:
            raise Refusal("rates must be set before drawing, got None; give a function of uids")
        p_D = check_array("rates", self.rates(pool.uids_P), pool.uids_P.shape, 0, 1)
        value_D = p_D * (1 - p_D) ** (self.k - 1)
        if self.even:
            bins_D = pool.bins_P + 1
            value_D = value_D / np.bincount(bins_D)[bins_D]
        return mostly_in_proportion(value_D, self.epsilon, size, rng)


@register("family_even")
@options
class FamilyEven(Method):
    """Families drawn evenly, as by a curriculum that knows which prompts need which skill.

    The bins are the families, which `StaticGroups` names. A batch has equally many of each family,
    as far as possible, at random within a family. With
    `shares` it has these instead, in whole prompts by largest remainder: what a family lacks in one
    batch is owed to it in the next, so that it is never off by a whole prompt. Prompts of a family
    smaller than its part of the batch come again.
    """

    shares: Mapping[str, Share] = field(default_factory=dict)
    """Share of each of F families in a batch, by name, such as {"hard": 0.5, "easy": 0.5}; by
    default all are equal."""

    @property
    def state(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("owed_F",) if self.shares else ()

    def __post_init__(self) -> None:
        if self.shares and abs(sum(self.shares.values()) - 1) > 1e-9:
            raise ValueError(f"shares must sum to 1, got {dict(self.shares)}")
        self.shares = dict(sorted(self.shares.items()))  # so is `owed_F`, also of a resumed run

    def start(self, run: Run) -> None:
        self.owed_F = np.zeros(len(self.shares))  # prompts, over all batches so far

    def families(self, prompts: Prompts) -> list[Any]:
        """Name of each prompt's group; its bin where nothing names groups, −1 if it has none."""
        names = self.run.bin_names
        return [names[b] if self.run.has_groups else b for b in prompts.bins_P.tolist()]

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        if self.shares:
            return self._draw_shares(pool, size, rng)
        _, family_D = np.unique(self.families(pool), return_inverse=True)
        shuffled = np.lexsort((rng.random(len(pool)), family_D))  # by family, at random within
        starts = np.bincount(family_D).cumsum() - np.bincount(family_D)
        turn_D = (shuffled.argsort() - starts[family_D]).astype(float)
        return highest(-turn_D, size, rng)  # all firsts of the families, then all seconds, …

    def _draw_shares(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        names = self.families(pool)
        if set(names) != self.shares.keys():
            present = sorted(set(names))
            raise ValueError(
                f"shares must name the families of the data, {present}, got {sorted(self.shares)}: "
                "give StaticGroups for bins (in TRL a group_column)"
            )
        wanted_F = np.maximum(self._part_of(size) + self.owed_F, 0)
        counts_F = exact_rollouts(wanted_F, size, 0, size, rng)
        drawn = []
        for name, count in zip(self.shares, counts_F, strict=True):
            members = np.flatnonzero(np.equal(names, name))
            if count:
                drawn.append(members[highest(np.zeros(len(members)), count, rng)])
        return rng.permutation(np.concatenate(drawn))

    def update(self, batch: Batch) -> None:
        if self.shares:
            names = self.families(batch)
            counts_F = np.array([names.count(name) for name in self.shares])
            self.owed_F = self.owed_F + self._part_of(len(batch)) - counts_F

    def _part_of(self, prompts: int) -> np.ndarray:
        """What each family's share of so many prompts is, (F,), before rounding."""
        return prompts * np.array(list(self.shares.values()))
