"""Prompt-GDRO and Rollout-GDRO, written from the notebooks' text, equal the package.

The notebooks compare one adversary at a time; here is the whole step, from the bins to the
advantages. Notebook 07 compares whole steps of pivotal itself. The classes use NumPy and nothing of
gdro, and name the notebook and section they are written from.
Axes: P prompts of the batch, D of the data set, B bins, N arms, R rollouts.
"""

from itertools import product

import numpy as np
import pytest

from gdro import GDROController

STEPS, PROMPTS, SIZE, MEAN = 30, 120, 24, 4


class Prompts:
    """Notebook 01, section 8: counts fade by 1 − 1/20, ten bins of pass@1, δ = 0.03; −1: none."""

    def __init__(self):
        self.s_D, self.f_D = np.zeros((2, PROMPTS), np.float32)
        self.bin_D = np.full(PROMPTS, -1)

    def counts(self, uids):
        return self.s_D[uids].astype(float), self.f_D[uids].astype(float)

    def visit(self, uids, hits_P, trials_P):
        keep = np.float32(1 - 1 / 20)
        self.s_D[uids] = keep * self.s_D[uids] + hits_P
        self.f_D[uids] = keep * self.f_D[uids] + trials_P - hits_P
        s_P, f_P = self.counts(uids)
        estimate_P, edges = 1 - (f_P + 0.5) / (s_P + f_P + 1), np.arange(1, 10) / 10
        before_P = self.bin_D[uids]
        reaches = (-0.03 + 1e-12, 1e-12, 0.03 - 1e-12)  # on an edge, to rounding
        low_P, new_P, high_P = (
            np.searchsorted(edges, estimate_P + reach, "right") for reach in reaches
        )
        self.bin_D[uids] = np.where(before_P < 0, new_P, np.clip(before_P, low_P, high_P))
        # in which bin the visit counts: the one before it, or the first one
        return np.where(before_P < 0, new_P, before_P)


def by_prompt(group_ids_R, values_R):
    return np.bincount(group_ids_R, values_R, SIZE)


def advantages_3(rewards_R, ids_R):
    """(3) of notebook 04: over the population's σ, with ε = 1e-4."""
    trials_P = by_prompt(ids_R, 1 + 0 * rewards_R)
    centred_R = rewards_R - (by_prompt(ids_R, rewards_R) / trials_P)[ids_R]
    return centred_R / (np.sqrt(by_prompt(ids_R, centred_R**2) / trials_P) + 1e-4)[ids_R]


def scores(ema_B, visits_B, rate):
    """Debiased, notebook 02, section 3: a bin never seen gets the mean of the others."""
    seen_B = visits_B > 0
    fair_B = ema_B / np.where(seen_B, 1 - (1 - rate) ** visits_B, 1)
    return np.where(seen_B, fair_B, fair_B[seen_B].mean() if seen_B.any() else 0.0)


class BinGame:
    """The mean of a bin, and a running mean of it."""

    def __init__(self, rate):
        self.prompts, self.rate = Prompts(), rate
        self.ema_B, self.visits_B = np.zeros((2, 10))

    def learn(self, bins_P, values_P, trials_P):
        total_B = np.bincount(bins_P, trials_P, 10)
        mean_B = np.bincount(bins_P, trials_P * values_P, 10) / np.maximum(total_B, 1)
        self.ema_B += self.rate * (total_B > 0) * (mean_B - self.ema_B)
        self.visits_B += total_B > 0


class PromptGDRO(BinGame):
    """Notebook 02, section 3."""

    name = "prompt"

    def __init__(self):
        super().__init__(0.12)

    def check_plan(self, uids, rollouts_P):
        assert (rollouts_P == MEAN).all()

    def observe(self, uids, rewards_R, ids_R):
        hits_P, trials_P = by_prompt(ids_R, rewards_R), by_prompt(ids_R, 1 + 0 * rewards_R)
        self.learn(self.prompts.visit(uids, hits_P, trials_P), 1 - hits_P / trials_P, trials_P)
        omega_B = np.exp(0.65 * np.clip(scores(self.ema_B, self.visits_B, 0.12), -5, 5))
        factor_P = np.minimum(omega_B, 15)[self.prompts.bin_D[uids]]
        return (factor_P / factor_P.mean())[ids_R] * advantages_3(rewards_R, ids_R)


class RolloutGDRO(BinGame):
    """Notebook 03, section 5."""

    name, arms = "rollout", np.arange(2, 13)

    def __init__(self):
        super().__init__(0.4)
        self.price = 0.0

    def log_p(self):
        v_B = scores(self.ema_B, self.visits_B, 0.4) if self.ema_B.any() else np.ones(10)
        loss_BN = (v_B / v_B.mean())[:, None] * MEAN**2 / self.arms + self.price * self.arms
        odds_BN = np.exp(-0.65 * (loss_BN - loss_BN.min(axis=1, keepdims=True)))
        return np.log(0.99 * odds_BN / odds_BN.sum(axis=1, keepdims=True) + 0.01 / len(self.arms))

    def check_plan(self, uids, rollouts_P):
        """The budget is met, new prompts get n̄, and no choice for the others is worth more."""
        bins_P, log_p_BN = self.prompts.bin_D[uids], self.log_p()
        assert rollouts_P.sum() == SIZE * MEAN
        assert (rollouts_P[bins_P < 0] == MEAN).all()
        best, worth = {0: 0.0}, 0.0  # by what is spent
        for b in np.unique(bins_P[bins_P >= 0]):
            [n], count = np.unique(rollouts_P[bins_P == b]), np.sum(bins_P == b)
            worth += count * log_p_BN[b, n - 2]
            before, best = best, {}
            for (spent, value), m in product(before.items(), self.arms):
                found = value + count * log_p_BN[b, m - 2]
                best[spent + count * m] = max(found, best.get(spent + count * m, -np.inf))
        assert worth == pytest.approx(best[MEAN * np.sum(bins_P >= 0)])

    def observe(self, uids, rewards_R, ids_R):
        rates_P = by_prompt(ids_R, rewards_R) / (trials_P := by_prompt(ids_R, 1 + 0 * rewards_R))
        had_bin_P = self.prompts.bin_D[uids] >= 0
        bins_P = self.prompts.visit(uids, rates_P * trials_P, trials_P)
        demand = (np.exp(self.log_p()) @ self.arms)[bins_P].mean()
        variance_P = rates_P * (1 - rates_P) * trials_P / (trials_P - 1)
        self.learn(bins_P[had_bin_P], variance_P[had_bin_P], np.ones(had_bin_P.sum()))
        self.price += 0.05 * (demand - MEAN)
        # every prompt counts once (section 1)
        return (MEAN / trials_P)[ids_R] * advantages_3(rewards_R, ids_R)


@pytest.mark.parametrize("rebuilt", [PromptGDRO(), RolloutGDRO()], ids=lambda method: method.name)
def test_what_is_written_from_the_text_alone_is_the_package(rebuilt):
    controller, rng = GDROController(rebuilt.name, MEAN), np.random.default_rng(0)
    pass_rates, prices = rng.beta(0.4, 0.7, PROMPTS), set()
    for step in range(STEPS):
        assert controller.draw(np.arange(PROMPTS), SIZE) is None
        uids = rng.permutation(PROMPTS)[:SIZE]
        plan = controller.plan(uids)
        rebuilt.check_plan(uids, plan.rollouts)
        ids_R = np.repeat(np.arange(SIZE), plan.rollouts)
        rewards_R = 1.0 * (rng.random(len(ids_R)) < pass_rates[uids][ids_R] ** (1 - step / STEPS))
        batch = controller.observe(plan, ids_R, rewards_R)
        np.testing.assert_allclose(
            rebuilt.observe(uids, rewards_R, ids_R), batch.advantages, atol=1e-9
        )
        if rebuilt.name == "rollout":
            assert rebuilt.price == pytest.approx(batch.row["price"])
            prices.add(batch.row["price"])
    assert len(prices) > 3 or rebuilt.name == "prompt"  # the price has moved
