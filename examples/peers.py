"""Peers that change advantages or weights, or divide rollouts: methods in a file of one's own.

A profile imports this file with `methods_from: examples/peers.py`, `gdro arena` with
`--methods-from`; a package of one's own would have the entry point `gdro.methods`, as gdro does.

Where a docstring writes p̂ it is the share of the group that is correct, with n rollouts of which c
are correct, μ and σ are mean and standard deviation of its rewards; in a draw p̂ is the posterior
mean of a prompt's pass rate. Axes: P prompts, R rollouts, D prompts of the data set.
"""

import numpy as np
from scipy.stats import norm

from gdro import Method, options, register
from gdro.checks import Count, NonNegative, Positive, PositiveShare, Share
from gdro.draws import in_proportion
from gdro.method import Batch, Prompts, Run
from gdro.metrics import all_wrong_probability
from gdro.peers.rollouts import best_rollouts
from gdro.uids import merge_visits

# Advantages and weights


@register("rloo")
class RLOO(Method):
    """RLOO (arXiv 2402.14740): the baseline of a rollout is the mean of the others in its group.

    A_ij = r_ij − (Σ_l r_il − r_ij)/(n_i − 1) = n_i/(n_i − 1) · (r_ij − μ_i), unbiased for any
    n_i ≥ 2; 0 at n_i = 1, which has no others. Left out: KL in the reward, and whole answers as
    single actions.
    """

    def advantages(self, batch: Batch) -> np.ndarray:
        factor_P = batch.trials_P / np.maximum(batch.trials_P - 1, 1)
        return batch.centred_R * factor_P[batch.group_ids_R]


@register("dr_grpo")
class DrGRPO(Method):
    """Dr. GRPO (arXiv 2503.20783): advantages without the division by σ, A_ij = r_ij − μ_i.

    Left out: the loss over a constant length, which is the trainer's (`loss_type="dr_grpo"`).
    """

    def advantages(self, batch: Batch) -> np.ndarray:
        return batch.centred_R


@register("mc_grpo")
@options
class MCGRPO(Method):
    """MC-GRPO (arXiv 2601.22582): the median of a group in place of its mean.

    A_ij = (r_ij − median_i)/(MAD_i + 1e-3), MAD_i the median of |r_ij − median_i|. The paper makes
    n + 1 rollouts, so that one of an odd group is the median: it is not trained on, and has
    advantage 0 here. In an even group the lower middle value is the median, as in PyTorch.

    Source: the paper; `mc_grpo:prompts=25` compares at equal rollouts in the arena. Left out
    of its public code: the mean over tokens without those of the median, and the division by the
    share of advantages that are not 0.
    """

    floor: Positive = 1e-3
    """Added to MAD."""

    def advantages(self, batch: Batch) -> np.ndarray:
        groups_R = batch.group_ids_R
        sizes_P = batch.trials_P
        surplus_R = batch.rewards_R - group_medians(batch.rewards_R, groups_R, sizes_P)[groups_R]
        scale_P = group_medians(np.abs(surplus_R), groups_R, sizes_P) + self.floor
        return surplus_R / scale_P[groups_R]


def group_medians(values_R: np.ndarray, group_ids_R: np.ndarray, sizes_P: np.ndarray) -> np.ndarray:
    """Lower median of each group's values, (P,)."""
    sorted_R = values_R[np.lexsort((values_R, group_ids_R))]
    return sorted_R[sizes_P.cumsum() - sizes_P + (sizes_P - 1) // 2]


@register("nsr")
@options
class NSR(Method):
    """NSR (arXiv 2506.01347): learn mostly from what is wrong, and little from what is correct.

    A_ij = .1 for a correct rollout and −1 for a wrong one, without a baseline: "W-REINFORCE", which
    keeps pass@k up by moving probability away from mistakes rather than towards one answer.
    """

    positive: NonNegative = 0.1
    """Advantage of a correct rollout."""

    def advantages(self, batch: Batch) -> np.ndarray:
        return np.where(batch.correct_R, self.positive, -1.0)


@register("passk_training")
@options
class PasskTraining(Method):
    """Pass@k Training (arXiv 2508.10751): GRPO on all subsets of k rollouts, rewarded by the best.

    A subset's reward has the mean ρ = 1 − C(n − c, k)/C(n, k) and the standard deviation
    σ = √(ρ(1 − ρ)). The mean normalized reward of the subsets that hold a rollout is its advantage,

        A = (1 − ρ)/σ for a correct rollout,
            (1 − ρ − C(n − c − 1, k − 1)/C(n − 1, k − 1))/σ for a wrong one,

    and 0 where σ = 0. Source: the paper and its public code, which divides by σ + 1e-6. Rewards
    count as correct or not; k is clipped to n where a group is smaller. Left out: its mixtures with
    pass@1 training and with a schedule of k.
    """

    k: Count = 2
    """The k of the pass@k that is optimized."""

    def advantages(self, batch: Batch) -> np.ndarray:
        n_P = batch.trials_P
        c_P = batch.hits_P
        k_P = np.minimum(self.k, n_P)
        failed_P = np.ones(len(batch))  # C(n − c, k)/C(n, k), of all subsets
        other_P = np.ones(len(batch))  # of the subsets that hold a given wrong rollout
        for k in np.unique(k_P):
            at = k_P == k
            failed_P[at] = all_wrong_probability(c_P[at], n_P[at], k)
            other_P[at] = all_wrong_probability(c_P[at], n_P[at] - 1, k - 1)
        sigma_P = np.sqrt(failed_P * (1 - failed_P))
        sigma_P[sigma_P == 0] = np.inf
        correct_P = failed_P / sigma_P
        wrong_P = (failed_P - other_P) / sigma_P
        return np.where(batch.correct_R, correct_P[batch.group_ids_R], wrong_P[batch.group_ids_R])


@register("dbb")
@options
class DBB(Method):
    """DBB (arXiv 2603.18444): GRPO against a remembered pass rate, a discounted Beta–Bernoulli's.

    α ← λα + c, β ← λβ + (n − c) at each visit with c of n rollouts correct, from α = β = 1 (11).
    With the counts after the visit, p̂ = α/(α + β) (12) and σ̂² = αβ/(α + β)² (13) replace the
    group's mean and variance, A_ij = (r_ij − p̂_i)/σ̂_i (2).

    Source: the paper's section 3 and its algorithm 1; λ = .75 was best with 8 billion parameters,
    .5 with 1.7. The prior is discounted too, unlike that of the controller's counts.
    """

    discount: PositiveShare = 0.5
    """λ; 1 never forgets."""

    state = ("alpha_D", "beta_D")

    def start(self, run: Run) -> None:
        # minus the prior of 1, by row
        self.alpha_D = np.zeros(0)
        self.beta_D = np.zeros(0)

    def update(self, batch: Batch) -> None:
        self.alpha_D = self.grow(self.alpha_D, batch.rows_P)
        self.beta_D = self.grow(self.beta_D, batch.rows_P)
        rows, hits, trials = merge_visits(batch.rows_P, batch.hits_P, batch.trials_P)
        for array_D, counts in ((self.alpha_D, hits), (self.beta_D, trials - hits)):
            array_D[rows] = self.discount * (array_D[rows] + 1) + counts - 1

    def advantages(self, batch: Batch) -> np.ndarray:
        alpha_P = self.alpha_D[batch.rows_P] + 1
        beta_P = self.beta_D[batch.rows_P] + 1
        total_P = alpha_P + beta_P
        rate_P = alpha_P / total_P
        sigma_P = np.sqrt(alpha_P * beta_P) / total_P
        surprise_R = batch.correct_R - rate_P[batch.group_ids_R]
        sigma_R = sigma_P[batch.group_ids_R]
        # after some fifty visits alike α or β is 0 by rounding, and so are both of these
        return np.divide(surprise_R, sigma_R, out=np.zeros(len(sigma_R)), where=sigma_R > 0)


@register("f_grpo")
@options
class FGRPO(Method):
    """F-GRPO (arXiv 2602.06717): a focal weight, so that solved prompts count less.

    Advantages (3) times (1 − p̂_i)^γ. Left out: the paper's other objectives (DAPO, CISPO).
    """

    gamma: NonNegative = 0.5
    """γ; 0 is GRPO."""

    def weights(self, batch: Batch) -> np.ndarray:
        return (1 - batch.hits_P / batch.trials_P) ** self.gamma


@register("bbg")
@options
class BBG(Method):
    """BBG, Bayesian boundary gating (arXiv 2606.15455): a weight by what is left to gain in pass@k.

    With m of n rollouts correct, the expected slope of pass@k under Beta(m + 1, n − m + 1) is

        u(m; n, k) = E[k (1 − p)^(k−1)] = k Π_{j=1}^{k−1} (n − m + j)/(n + 1 + j).

    A prompt's advantages (3) are weighted by u(m)/u(1), and by 0 where u(m) < τ (n + 1). Source:
    the abstract, and public code of others that cites its equations 8 and 9; k = 16, τ = .01 and
    the division by u(1) are theirs. Left out: the loss of groups without a success, said to learn
    by REINFORCE with signs; here their advantages are 0, as in GRPO.
    """

    k: Count = 16
    """The k of the pass@k that is optimized."""
    threshold: NonNegative = 0.01
    """τ; prompts with less to gain have weight 0."""

    def weights(self, batch: Batch) -> np.ndarray:
        slope_P = pass_at_k_slope(batch.hits_P, batch.trials_P, self.k)
        open_P = slope_P >= self.threshold * (batch.trials_P + 1)
        single_P = pass_at_k_slope(np.ones(len(batch)), batch.trials_P, self.k)
        return np.where(open_P, slope_P / single_P, 0.0)


def pass_at_k_slope(hits: np.ndarray, trials: np.ndarray, k: int) -> np.ndarray:
    """E[k (1 − p)^(k−1)] for p ~ Beta(hits + 1, trials − hits + 1); any shape."""
    slope = np.full(np.shape(trials), float(k))
    for j in range(1, k):
        slope = slope * (trials - hits + j) / (trials + 1 + j)
    return slope


# Kept successes


@register("exgrpo")
@options
class ExGRPO(Method):
    """ExGRPO (arXiv 2510.02245): half of each batch are prompts solved before, with a kept success.

    Once `start_at` of a batch's prompts were solved, a share ρ of each batch comes from prompts
    whose latest visit with a success had wrong rollouts too; a prompt that all rollouts solve is
    retired. They are drawn by q ∝ N(share correct at that visit; ½, 1). Their group is the new
    rollouts and one kept success, whose reward is 1: advantages are GRPO's over both, with the
    population's σ.

    What differs: the group has n new rollouts and the kept text, theirs n − 1; the kept text is
    the latest success, theirs has the lowest entropy under the present policy. Where a prompt is
    solved again, that is one of the new rollouts, which is then trained on twice. The importance
    weight w/(w + β), β = .1, is taken at w = 1, since no log-probabilities are kept; entropies are
    not masked, and the other half of the batch is drawn evenly from all other prompts. Where all
    successes of a prompt were cut off, its group counts a success that the buffer does not have.
    """

    rho: Share = 0.5
    """ρ, share of a batch that comes from prompts solved before."""
    start_at: Share = 0.35
    """Share of a batch's prompts that must be solved before that begins."""
    shaping: NonNegative = 0.1
    """β of the importance weight of a kept success."""

    kept_texts = 1
    state = ("started", "share_D", "replayed_D")

    def start(self, run: Run) -> None:
        self.started = False
        self.share_D = np.zeros(0)  # correct at the latest visit; 0 where there is nothing to keep
        self.again_rows = np.zeros(0, np.int64)  # of the prompts last drawn for their kept success
        self.replayed_D = np.zeros(0)  # advantage of the kept success, 0 for none

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        self.share_D = self.grow(self.share_D, pool.rows_P)
        # forgets the batch before: this one may have no rewards, and then `advantages` is not asked
        self.replayed_D = np.zeros(0)
        share_P = self.share_D[pool.rows_P]
        mixed = np.flatnonzero((share_P > 0) & (share_P < 1))
        seats = min(int(self.rho * size), len(mixed)) if self.started else 0
        odds = norm.logpdf(share_P[mixed], 0.5, 1.0)
        again = mixed[in_proportion(odds, seats, rng)] if seats else mixed[:0]
        self.again_rows = pool.rows_P[again]
        others = np.setdiff1d(np.arange(len(pool)), again)
        return np.append(again, rng.choice(others, size - seats, replace=False))

    def allocate(self, prompts: Prompts, budget: int, rng: np.random.Generator) -> np.ndarray:
        # kept with the plan: others may be drawn before this one is observed
        prompts.memo["again_rows"] = self.again_rows
        return super().allocate(prompts, budget, rng)

    def advantages(self, batch: Batch) -> np.ndarray:
        """(3) over the rollouts of a prompt and its kept success."""
        again_P = np.isin(batch.rows_P, batch.memo["again_rows"]).astype(float)
        mean_P = (batch.hits_P + again_P) / (batch.trials_P + again_P)
        sigma_P = np.sqrt(mean_P * (1 - mean_P))
        sigma_P = np.where(sigma_P > 0, sigma_P, np.inf)
        self.replayed_D = np.zeros(len(self.share_D))
        self.replayed_D[batch.rows_P] = again_P * (1 - mean_P) / sigma_P / (1 + self.shaping)
        centred_R = batch.correct_R - mean_P[batch.group_ids_R]
        return centred_R / sigma_P[batch.group_ids_R]

    def update(self, batch: Batch) -> None:
        self.share_D = self.grow(self.share_D, batch.rows_P)
        rows, hits, trials = merge_visits(batch.rows_P, batch.hits_P, batch.trials_P)
        # without a success this time, what was kept stays; all correct, and the prompt is retired
        self.share_D[rows] = np.where(hits > 0, hits / trials, self.share_D[rows])
        self.started = self.started or float((batch.hits_P > 0).mean()) > self.start_at

    def replay(
        self, banked: Prompts, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray] | None:
        self.replayed_D = self.grow(self.replayed_D, banked.rows_P)
        weights_P = self.replayed_D[banked.rows_P]
        places = np.flatnonzero(weights_P)
        return places, weights_P[places]


@register("vip")
class VIP(Method):
    """VIP (arXiv 2602.01601): rollouts that minimize the variance of the batch's gradient.

    min Σ a_i (n_i − 1)/n_i², a_i = 4 p_i (1 − p_i), subject to Σ n_i = budget and n_i ≥ 3: the
    paper's variance under mean-subtracted advantages (Dr. GRPO). Left out: the Gaussian process
    that predicts p from embeddings (here the posterior mean), norms of the prompts' gradients
    (equal here), and the variance under RLOO.
    """

    n_min = 3

    def allocate(self, prompts: Prompts, budget: int, rng: np.random.Generator) -> np.ndarray:
        low = max(self.run.n_min, self.n_min)
        n_N = np.arange(low, self.run.n_max)
        saving_N = (n_N - 1) / n_N**2 - n_N / (n_N + 1) ** 2
        spread_P = 4 * prompts.rate_P * (1 - prompts.rate_P)
        return best_rollouts(spread_P[:, None] * saving_N, low, budget, rng)
