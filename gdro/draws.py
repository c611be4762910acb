"""Prompts drawn by a score or in proportion. D prompts of the data set."""

import numpy as np


def highest(
    scores_D: np.ndarray, size: int, rng: np.random.Generator, *, ties: bool = True
) -> np.ndarray:
    """Positions of the highest scores, (size,), in no particular order, ties at random.

    A pool smaller than `size` is first taken whole, as often as it fits. `ties` False, where no two
    scores can be equal, saves shuffling the pool.
    """
    whole, rest = divmod(size, len(scores_D))
    taken = [rng.permutation(len(scores_D)) for _ in range(whole)]
    if rest and ties:
        shuffled = rng.permutation(len(scores_D))  # so that no position has an advantage in a tie
        taken.append(shuffled[np.argpartition(-scores_D[shuffled], rest - 1)[:rest]])
    elif rest:
        taken.append(np.argpartition(-scores_D, rest - 1)[:rest])
    return np.concatenate(taken)


def mostly_in_proportion(
    values_D: np.ndarray, epsilon: float, size: int, rng: np.random.Generator
) -> np.ndarray:
    """`in_proportion` to values ≥ 0, except for an even share epsilon of the draw, (size,)."""
    # all values may be 0: then the even share is left alone
    share_D = (1 - epsilon) * values_D / max(values_D.sum(), 1e-300)
    return in_proportion(np.log(share_D + epsilon / len(values_D)), size, rng)


def in_proportion(log_weights_D: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Distinct positions, drawn one after the other in proportion to exp(log_weights), (size,).

    The highest of log-weights plus Gumbel noise have this law.
    """
    # −log of an exponential number is Gumbel noise, in half the time of rng.gumbel
    noise_D = -np.log(rng.standard_exponential(len(log_weights_D)))
    return highest(log_weights_D + noise_D, size, rng, ties=False)
