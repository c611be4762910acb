"""Throw-away variants of pivotal for the development draws."""

from dataclasses import dataclass

import numpy as np
from gdro.methods.base import Method, register
from gdro.methods.draws import mostly_in_proportion
from gdro.methods.peers.pkpo import PKPO
from gdro.methods.pivotal import pivotal_value


@register("lab")
@dataclass(eq=False)
class Lab(Method):
    k: float | None = None
    rule: str = "kg"  # success | kg | direct | ks | fixed(k given)
    adv: str = "pkpo"  # pkpo | pooled | group
    pk: int = 2
    iw: float = 0.0  # exponent of 1/(q(1-q)+.02)
    neg: float = 0.0  # fraction of the centred negative part added behind pkpo
    epsilon: float = 0.1
    scale: float = 1.0
    r0: float = 0.8
    slope: float = 6.0
    low: float = 3.0
    high: float = 12.0
    keep: float = 0.9
    weight: float = 5.0
    pool: float = 4.0

    state = ("strength", "gain", "base")
    strength = 5.0

    def start(self, run):
        super().start(run)
        self.strength, self.gain, self.base = 5.0, 0.0, 0.0
        self.pkpo = PKPO(k=self.pk)

    @property
    def r(self):
        return (self.gain + self.weight * self.r0) / (self.base + self.weight)

    @property
    def k_now(self):
        if self.k:
            return int(self.k)
        if self.rule == "direct":
            return round(min(max(self.low + self.slope * self.r, self.low), self.high))
        return round(self.strength)

    def draw(self, pool, size, rng):
        return mostly_in_proportion(
            pivotal_value(pool.alpha_P, pool.beta_P, self.k_now), self.epsilon, size, rng
        )

    def update(self, batch):
        seen = (batch.successes_P + batch.failures_P > 0) & (batch.rate_P < 0.5)
        expected = (batch.trials_P * batch.rate_P)[seen].sum()
        self.gain = self.keep * self.gain + batch.hits_P[seen].sum() - expected
        self.base = self.keep * self.base + expected
        share = np.mean(batch.hits_P > 0)
        r = self.r
        if self.rule == "success":
            step, low, high = 0.1 * (share - 0.55), 2, 16
        elif self.rule == "kg":
            step, low, high = (0.1 * (share - 0.55) if r > 0.5 else -0.03), self.low, self.high
        elif self.rule == "ks":
            step, low, high = 0.1 * np.clip(r - 0.5, -0.5, 0.5), 3, 16
        else:
            step, low, high = 0, 1, 100
        self.strength = float(np.clip(self.strength * np.exp(step), low, high))

    def _past(self, batch):
        return np.minimum(self.pool, batch.successes_P + batch.failures_P)

    def _q(self, batch):
        past = self._past(batch)
        return (batch.hits_P + past * batch.rate_P) / (batch.trials_P + past)

    def weights(self, batch):
        q = self._q(batch)
        w = (q * (1 - q) + 0.02) ** -self.iw
        return w / w.mean() * self.scale

    def advantages(self, batch):
        if self.adv == "pkpo":
            return self.pkpo.advantages(batch)
        if self.adv == "group":
            return batch.group_advantages_R
        g = batch.group_ids_R
        past = self._past(batch)
        others = batch.trials_P - 1 + past
        known = batch.hits_P + past * batch.rate_P
        base = (known[g] - batch.correct_R) / np.maximum(others, 1e-9)[g]
        q = self._q(batch)
        scale = np.sqrt(q * (1 - q) + 0.01)
        teaches = (batch.hits_P > 0) & (others > 0)
        return np.where(teaches[g], (batch.correct_R - base) / scale[g], 0.0)
