"""Throw-away variants of pivotal for the development draws: a second round, PKPO for other k."""

from dataclasses import dataclass

import numpy as np
from gdro.core.budget import exact_rollouts
from gdro.methods.base import register
from gdro.methods.peers.pkpo import PKPO
from gdro.methods.pivotal import Pivotal, pivotal_value


@register("lab")
@dataclass(eq=False)
class Lab(Pivotal):
    second: str = "none"  # none | miss | gain
    pilot: int = 2
    pk: int = 2
    gate: float = -1.0  # second round only while progress is above this
    iw: float = 0.0
    scale: float = 1.0
    least: float = 3.0
    most: float = 12.0
    slope: float = 6.0

    @property
    def rounds(self):
        return self.second != "none"

    @property
    def k_now(self):
        return self.k or round(
            min(max(self.least + self.slope * self.progress, self.least), self.most)
        )

    def allocate(self, prompts, budget, rng):
        if not self.rounds or self.progress < self.gate:
            return super().allocate(prompts, budget, rng)
        return np.full(len(prompts), self.pilot)

    def extend(self, batch, left, rng):
        if not self.rounds or batch.memo.get("extended") or left <= 0:
            return None
        batch.memo["extended"] = True
        k = self.k_now
        alpha = batch.alpha_P + batch.hits_P
        beta = batch.beta_P + batch.trials_P - batch.hits_P
        room = self.run.n_max - self.pilot
        if self.second == "miss":
            miss = batch.hits_P == 0
            wanted = np.where(miss, pivotal_value(alpha, beta, k), 0.0)
            if not miss.any():
                wanted = pivotal_value(alpha, beta, k)
            chosen = wanted > 0
            total = min(left, room * int(chosen.sum()))
            more = np.zeros(len(batch), np.int64)
            more[chosen] = exact_rollouts(wanted[chosen], total, 0, room, rng)
            return more
        # greedy gain
        from scipy.special import betaln

        def mom(a, b, i, j):
            return np.exp(betaln(a + i, b + j) - betaln(a, b))

        miss = batch.hits_P == 0
        var = mom(alpha, beta, 1, 1 + 2 * (k - 1))
        piv = pivotal_value(alpha, beta, k)
        n = batch.trials_P.astype(float)
        vgain0 = var * 2 * (1 / n - 1 / (n + 1))
        s = (
            piv[miss].mean() / max(vgain0[~miss].mean(), 1e-12)
            if miss.any() and (~miss).any()
            else 1.0
        )
        more = np.zeros(len(batch), np.int64)
        for _ in range(left):
            n_now = n + more
            gain = np.where(
                miss,
                pivotal_value(alpha, beta + more, k),
                s * var * 2 * (1 / n_now - 1 / (n_now + 1)),
            )
            gain[more >= room] = -1
            i = int(gain.argmax())
            if gain[i] < 0:
                break
            more[i] += 1
        return more

    def weights(self, batch):
        if not self.iw:
            return super().weights(batch) * self.scale
        past = np.minimum(4.0, batch.successes_P + batch.failures_P)
        q = (batch.hits_P + past * batch.rate_P) / (batch.trials_P + past)
        w = (q * (1 - q) + 0.02) ** -self.iw
        return w / w.mean() * self.scale

    def advantages(self, batch):
        return PKPO(k=self.pk).advantages(batch)
