"""Regret of the adversaries' learning rules, measured against its bounds (notebook 02).

Axes: S seeds, T steps, N arms. Losses lie in [0, 1].
"""

import numpy as np

from gdro.rollout_gdro import arm_log_probabilities, check_choice, exp3p_losses

KINDS = ("one arm is better", "the best arm changes", "the cycle that fools a follower")


def draw_losses(kind, num_seeds, horizon, num_arms, rng):
    """Losses (S, T, N) of the named kind.

    "one arm is better": coin flips, arm 0 of chance 0.4, the others 0.5. "the best arm changes": the
    good arm moves to the next after half of the time. "the cycle that fools a follower": arm t mod N loses
    1, so whoever follows the leader always steps into it.
    """
    check_choice("kind", kind, KINDS)
    if horizon < 1 or num_arms < 2:
        raise ValueError(f"horizon must be ≥ 1 and num_arms ≥ 2, got {horizon} and {num_arms}; raise them")
    if kind == KINDS[2]:
        cycle_TN = np.arange(horizon)[:, None] % num_arms == np.arange(num_arms)
        return np.broadcast_to(cycle_TN.astype(float), (num_seeds, horizon, num_arms))
    good_T = np.zeros(horizon, int)
    if kind == KINDS[1]:
        good_T[horizon // 2 :] = 1
    chance_TN = np.where(np.arange(num_arms) == good_T[:, None], 0.4, 0.5)
    return (rng.random((num_seeds, horizon, num_arms)) < chance_TN).astype(float)


def hedge_regret(losses_STN, eta=None):
    """Regret (S,) of exponential weights that see all losses, at the bound's own step size by default."""
    _, horizon, num_arms = losses_STN.shape
    eta = np.sqrt(8 * np.log(num_arms) / horizon) if eta is None else eta
    before_STN = np.cumsum(losses_STN, axis=1) - losses_STN
    play_STN = np.exp(arm_log_probabilities(before_STN, eta, 0.0))
    return (play_STN * losses_STN).sum(axis=(1, 2)) - losses_STN.sum(axis=1).min(axis=1)


def exp3p_regret(losses_STN, rng, delta=0.05):
    """Regret (S,) of EXP3.P, which sees only the arm it plays, at the tuning of its theorem.

    Gains are 1 − loss, entered as losses −gain, as in Bubeck and Cesa-Bianchi 2012, theorem 3.3.
    """
    num_seeds, horizon, num_arms = losses_STN.shape
    bonus = np.sqrt(np.log(num_arms / delta) / (horizon * num_arms))
    eta = 0.95 * np.sqrt(np.log(num_arms) / (horizon * num_arms))
    gamma = min(1.05 * np.sqrt(num_arms * np.log(num_arms) / horizon), 1.0)
    estimated_SN, suffered_S = np.zeros((num_seeds, num_arms)), np.zeros(num_seeds)
    seeds_S = np.arange(num_seeds)
    for step in range(horizon):
        chances_SN = np.exp(arm_log_probabilities(estimated_SN, eta, gamma))
        ladder_SN = chances_SN.cumsum(axis=1)
        arm_S = (ladder_SN < rng.random((num_seeds, 1)) * ladder_SN[:, -1:]).sum(axis=1)
        loss_S = losses_STN[seeds_S, step, arm_S]
        suffered_S += loss_S
        # one "bin" a seed: each plays one arm
        estimated_SN += exp3p_losses(loss_S - 1.0, arm_S, chances_SN, bonus)
    return suffered_S - losses_STN.sum(axis=1).min(axis=1)
