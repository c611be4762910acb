"""Mean and variance of a batch gradient, exactly, from a pool.

The gradient of a prompt's rollout group is Σ_j A_j g_j, with g_j the gradient of rollout j's
log-probability. Rewards are 1 or 0, and an advantage is a function of the reward, the group's size
n and its number c of successes: a *table* has the advantage of a success and of a failure for each
c. Groups are drawn from a part of the pool *without replacement*. So E[Σ_j A_j g_j] and its square,
from two groups that share no rollout, and E|Σ_j A_j g_j|² are unbiased (U-statistics) for rollouts
that are not in the pool, however rare a success is. c is hypergeometric, and given c the successes
of a group are a sample of the pool's successes, of which mean and spread suffice; so are its
failures.

Axes: P prompts of the pool, J rollouts of each in the part, C (or X, Y) numbers of successes from
0, S numbers of a sketch, 2 success and failure.
"""

from dataclasses import dataclass

import numpy as np
from scipy.stats import hypergeom

from gdro_lab.microscope.pool import Pool


@dataclass(frozen=True, eq=False)
class Classes:
    """Successes and failures of each prompt in a part of a pool."""

    trials: int
    """J."""
    sizes_P2: np.ndarray
    """How many there are."""
    spreads_P2: np.ndarray
    """Trace of the covariance of their gradients, unbiased; 0 for one or none."""
    gram_P2P2: np.ndarray
    """Inner products of their mean gradients."""

    @property
    def own_gram_P22(self) -> np.ndarray:
        """Inner products within each prompt."""
        own = np.arange(len(self.sizes_P2))
        return self.gram_P2P2[own, :, own, :]


@dataclass(frozen=True, eq=False)
class Groups:
    """A batch before it is sampled: a rollout group of each prompt, or none."""

    rollouts_P: np.ndarray
    """n; 0 where a prompt is not in the batch."""
    tables_PC2: np.ndarray
    """Factor of the gradient of a success and of a failure, for c = 0, 1, … successes."""

    @property
    def counts_PC2(self) -> np.ndarray:
        """Successes and failures of each group."""
        successes_C = np.arange(self.tables_PC2.shape[1])
        # where c > n, whose probability is 0, there is no failure
        failures_PC = np.maximum(self.rollouts_P[:, None] - successes_C, 0)
        return np.stack(np.broadcast_arrays(successes_C, failures_PC), axis=-1)

    @property
    def sums_PC2(self) -> np.ndarray:
        """Factor of all successes and of all failures of a group together."""
        return self.counts_PC2 * self.tables_PC2


def classes_of(pool: Pool, places_PJ: np.ndarray | None = None) -> Classes:
    """The successes and failures among some of each prompt's rollouts, by default all."""
    prompts, rollouts = pool.rewards_PK.shape
    if places_PJ is None:
        places_PJ = np.tile(np.arange(rollouts), (prompts, 1))
    correct_PJ = np.take_along_axis(pool.rewards_PK, places_PJ, 1) > 0
    texts_PJ = np.take_along_axis(pool.texts_PK, places_PJ, 1)
    sizes_P2 = np.zeros((prompts, 2), int)
    spreads_P2 = np.zeros((prompts, 2))
    means_P2S = np.zeros((prompts, 2, pool.sketch_NS.shape[1]))
    for p in range(prompts):
        for kind, chosen_J in enumerate((correct_PJ[p], ~correct_PJ[p])):
            count = int(chosen_J.sum())
            sizes_P2[p, kind] = count
            texts = texts_PJ[p, chosen_J]
            if count == 0 or texts[0] < 0:  # no gradients of a flat prompt
                continue
            gradients = pool.sketch_NS[texts].astype(float)
            means_P2S[p, kind] = gradients.mean(axis=0)
            if count > 1:
                squares = np.square(gradients - means_P2S[p, kind]).sum()
                spreads_P2[p, kind] = squares / (count - 1)
    flat = means_P2S.reshape(2 * prompts, -1)
    gram_P2P2 = (flat @ flat.T).reshape(prompts, 2, prompts, 2)
    return Classes(places_PJ.shape[1], sizes_P2, spreads_P2, gram_P2P2)


def mean_coefficients(classes: Classes, groups: Groups) -> np.ndarray:
    """Factors of the mean gradients of successes and failures in each group's mean, (P, 2)."""
    p_PC = _probabilities(classes, groups)
    return np.einsum("pc,pca->pa", p_PC, groups.sums_PC2)


def variances(classes: Classes, groups: Groups) -> np.ndarray:
    """Trace of the covariance of each prompt's group gradient, (P,)."""
    sums_PC2 = groups.sums_PC2
    squares_PC = np.einsum("pca,pab,pcb->pc", sums_PC2, classes.own_gram_P22, sums_PC2)
    # Σ over c of k items drawn without replacement varies by c (1 − c/k) times their spread
    left_PC2 = 1 - groups.counts_PC2 / np.maximum(classes.sizes_P2, 1)[:, None]
    within_PC = np.einsum(
        "pca,pca,pca,pa->pc", sums_PC2, groups.tables_PC2, left_PC2, classes.spreads_P2
    )
    # E|Σ_j A_j g_j|²
    second_P = (_probabilities(classes, groups) * (squares_PC + within_PC)).sum(axis=1)
    return second_P - own_products(classes, groups, groups)


def own_products(classes: Classes, one: Groups, other: Groups) -> np.ndarray:
    """E[Σ A g of one] · E[Σ A g of the other] for each prompt, (P,).

    The two groups share no rollout, so a part needs as many as both have together.

    Raises:
        ValueError: if they are larger than the part.
    """
    most = int((one.rollouts_P + other.rollouts_P).max())
    if most > classes.trials:
        raise ValueError(
            f"judged must be at least {most}, two groups of the same prompt, "
            f"got {classes.trials}: lower n_max, or judge on more of the pool"
        )
    # two different successes: their expected product is less than that of their mean with itself
    share_P2 = classes.spreads_P2 / np.maximum(classes.sizes_P2, 1)
    gram_P22 = classes.own_gram_P22 - share_P2[..., None] * np.eye(2)
    first_PX = _probabilities(classes, one)
    x_X = np.arange(first_PX.shape[1])
    y_Y = np.arange(other.tables_PC2.shape[1])
    # what the first group leaves
    left_P = classes.trials - one.rollouts_P
    hits_PX = np.clip(classes.sizes_P2[:, :1] - x_X, 0, left_P[:, None])
    then_PXY = hypergeom.pmf(
        y_Y, left_P[:, None, None], hits_PX[..., None], other.rollouts_P[:, None, None]
    )
    return np.einsum(
        "px,pxy,pxa,pab,pyb->p",
        first_PX,
        then_PXY,
        one.sums_PC2,
        gram_P22,
        other.sums_PC2,
        optimize=True,
    )


def inner_products(
    classes: Classes, one_P2: np.ndarray, other_P2: np.ndarray, own_P: np.ndarray
) -> np.ndarray:
    """Inner products of two mean gradients by pairs of prompts, (P, P).

    Args:
        classes: of a part of the pool.
        one_P2, other_P2: `mean_coefficients`, or sums of them.
        own_P: the same of each prompt with itself, from groups that share no rollout.
    """
    products_PP = np.einsum("ia,iajb,jb->ij", one_P2, classes.gram_P2P2, other_P2, optimize=True)
    np.fill_diagonal(products_PP, own_P)
    return products_PP


def true_gradient(prompts: int) -> Groups:
    """Groups whose mean is the gradient of the mean pass rate: pairs with RLOO's advantages."""
    # a success beside a failure has advantage 1, the failure −1
    table_C2 = np.array([[0.0, 0.0], [1.0, -1.0], [0.0, 0.0]]) / (2 * prompts)
    return Groups(np.full(prompts, 2), np.broadcast_to(table_C2, (prompts, 3, 2)))


def _probabilities(classes: Classes, groups: Groups) -> np.ndarray:
    """Probability of c successes in each group, (P, C)."""
    successes_C = np.arange(groups.tables_PC2.shape[1])
    hits_P1 = classes.sizes_P2[:, :1]
    return hypergeom.pmf(successes_C, classes.trials, hits_P1, groups.rollouts_P[:, None])
