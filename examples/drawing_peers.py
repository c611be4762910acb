"""Peers that draw the prompts: an example of methods in a file of one's own.

A profile imports it with `methods_from: examples/drawing_peers.py`; see peers.py beside it.

Where a docstring writes p̂ it is the posterior mean of a prompt's pass rate, and P_i the weight of
prompt i in a draw without replacement. Axes: P prompts, R rollouts, D prompts of the data set.
"""

import numpy as np

from gdro import Method, options, register
from gdro.checks import Count, Positive, PositiveShare, Share
from gdro.draws import highest, in_proportion
from gdro.method import Batch, Prompts, Run
from gdro.scores import bin_means, ema_scores
from gdro.uids import merge_visits


@register("dots")
@options
class DOTS(Method):
    """DOTS (arXiv 2506.05316): a softmax draw of prompts whose pass rate is near a target.

    P_i ∝ exp(−|p̂_i − ½| / temperature). The temperature is ours. Left out: the predictor of p̂
    from embeddings and a few prompts with fresh rollouts, and rollout replay.
    """

    target: Share = 0.5
    """Pass rate that is sought."""
    temperature: Positive = 0.1
    """Temperature of the softmax."""

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        return in_proportion(-np.abs(pool.rate_P - self.target) / self.temperature, size, rng)


@register("lilo")
class LILO(Method):
    """LILO (arXiv 2502.12272): the prompts of highest learnability p̂ (1 − p̂), ties at random.

    Left out: the rollouts spent on candidate prompts to measure p̂ before each step. Here it is the
    posterior mean, which is ½ for a prompt without data.
    """

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        return highest(pool.rate_P * (1 - pool.rate_P), size, rng)


@register("greso")
@options
class GRESO(Method):
    """GRESO (arXiv 2506.02177): skips prompts whose last visits brought no signal.

    A prompt is skipped with probability 1 − max(explore^z, floor), z the number of latest visits in
    a row in which all rollouts were correct or all wrong. Passes over the data set, each in random
    order, go on until the batch is full. Left out: rates that adapt to a target share, the
    discarding of uninformative groups after generation (see `dapo`), and adaptive batch sizes.
    """

    explore: Share = 0.5
    """Probability of keeping a prompt after one uninformative visit."""
    floor: PositiveShare = 0.01
    """Lower bound of this probability; 0 would lose prompts for good."""

    state = ("streak_D",)

    def start(self, run: Run) -> None:
        self.streak_D = np.zeros(0, np.uint8)  # by row

    def keep_probability(self, prompts: Prompts) -> np.ndarray:
        """Probability of keeping each prompt in one pass, (P,)."""
        self.streak_D = self.grow(self.streak_D, prompts.rows_P)
        return np.maximum(self.explore ** self.streak_D[prompts.rows_P].astype(float), self.floor)

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        # the pass in which a prompt is first kept is geometric: the earliest fill the batch
        return highest(-rng.geometric(self.keep_probability(pool)), size, rng)

    def update(self, batch: Batch) -> None:
        self.streak_D = self.grow(self.streak_D, batch.rows_P)
        rows, hits, trials = merge_visits(batch.rows_P, batch.hits_P, batch.trials_P)
        longer = np.minimum(self.streak_D[rows].astype(np.int64) + 1, 255)
        self.streak_D[rows] = np.where((hits == 0) | (hits == trials), longer, 0)


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
