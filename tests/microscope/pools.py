"""Small pools for tests: made up, or drawn from a policy whose moments are known."""

import numpy as np

from gdro_lab.microscope.pool import Pool


def pool_of(rewards_PK, gradients_PKS, families_P=None, lengths_P=None):
    """A pool in which every rollout is a text of its own."""
    rewards_PK = np.asarray(rewards_PK, np.float32)
    prompts, rollouts = rewards_PK.shape
    texts_PK = np.arange(prompts * rollouts, dtype=np.int32).reshape(prompts, rollouts)
    return Pool(
        uids_P=np.array([f"task/{p:03d}" for p in range(prompts)]),
        families_P=np.array(["one"] * prompts if families_P is None else families_P),
        rewards_PK=rewards_PK,
        texts_PK=texts_PK,
        sketch_NS=np.asarray(gradients_PKS, np.float32).reshape(prompts * rollouts, -1),
        mean_length_P=np.ones(prompts) if lengths_P is None else np.asarray(lengths_P, float),
    )


def bernoulli_pool(rates_P, rollouts, rng, families_P=None):
    """Two texts a prompt, right and wrong, whose logit is the prompt's own parameter.

    The gradient of log p is 1 − p for the right one and −p for the wrong one.
    """
    rates_P = np.asarray(rates_P, float)
    prompts = len(rates_P)
    rewards_PK = rng.random((prompts, rollouts)) < rates_P[:, None]
    gradients_PKS = np.zeros((prompts, rollouts, prompts))
    own = np.arange(prompts)
    gradients_PKS[own, :, own] = rewards_PK - rates_P[:, None]
    return pool_of(rewards_PK, gradients_PKS, families_P)


def random_pool(seed, prompts=6, rollouts=18, width=5, families_P=None):
    """Rewards and gradients at random, with a rare success, a rare failure, and a flat prompt."""
    rng = np.random.default_rng(seed)
    rates_P = rng.uniform(0.2, 0.8, prompts)
    rewards_PK = rng.random((prompts, rollouts)) < rates_P[:, None]
    rewards_PK[0] = np.arange(rollouts) == 3
    rewards_PK[1] = np.arange(rollouts) != 5
    rewards_PK[2] = False
    gradients_PKS = rng.normal(size=(prompts, rollouts, width))
    gradients_PKS += rewards_PK[..., None] * rng.normal(size=width)
    return pool_of(rewards_PK, gradients_PKS, families_P, rng.uniform(1, 3, prompts))
