"""Estimates of a prompt's pass@k from the rollouts seen so far.

One class an estimator, all with the same four members: `grow(capacity)` makes room for that many
prompts, `add(rows, successes, trials)` books one visit to each (distinct) row, `pass_at_k(rows)`
reads the estimate in [0, 1] (NaN: nothing to go on yet), and `arrays` names the state. Axes: P prompts.

    beta      posterior mean of pass@k under a Beta prior; counts fade with a window of H visits
    unbiased  1 − C(n−c, k)/C(n, k) on the counts pooled over the last H visits
    any_of_k  (10): mean over the last H blocks of k rollouts of "any of the k is right"
    any_of_n  as released: "any of the n allotted is right", so it moves with the allocation; kept
              for notebook 01, which shows what that does
"""

import numpy as np

from gdro.metrics import all_wrong_chance


class Estimator:
    """Rows of named arrays that grow together."""

    def __init__(self, k, history):
        self.k, self.history = k, history
        self.clock = 0  # calls of add so far; seeds what chance decides
        self.arrays: dict[str, np.ndarray] = {
            name: np.zeros((0, *shape), dtype) for name, (dtype, shape) in self._layout().items()
        }

    def _layout(self) -> dict[str, tuple[type, tuple[int, ...]]]:
        """Name → (dtype, shape of one prompt's entry) of each array."""
        raise NotImplementedError

    def add(self, rows, successes, trials) -> None:
        """Book a visit of `trials` rollouts, `successes` of them right, to each row; (P,) each."""
        raise NotImplementedError

    def pass_at_k(self, rows) -> np.ndarray:
        """Estimated pass@k of each row, (P,); NaN where there is nothing to go on yet."""
        raise NotImplementedError

    def grow(self, capacity):
        for name, array in self.arrays.items():
            grown = np.zeros((capacity, *array.shape[1:]), array.dtype)
            grown[: len(array)] = array
            self.arrays[name] = grown


class BetaPosterior(Estimator):
    """E[1 − (1−p)^k] for p ~ Beta(a + s, b + f), with s, f the faded successes and failures.

    Each visit first multiplies the old counts by 1 − 1/H, so H visits carry most of the weight.
    The expectation is 1 − Π_{i<k} (β+i)/(α+β+i). Whatever n a visit had, the posterior only gets
    sharper or wider around the same p. Eight bytes a prompt.
    """

    prior = (0.5, 0.5)  # Jeffreys: pass@k of a fresh prompt is broad, not extreme

    def _layout(self):
        return {"successes": (np.float32, ()), "failures": (np.float32, ())}

    def add(self, rows, successes, trials):
        keep = 1.0 - 1.0 / self.history
        for name, counts in (("successes", successes), ("failures", trials - successes)):
            self.arrays[name][rows] = keep * self.arrays[name][rows] + counts

    def pass_at_k(self, rows):
        successes = self.arrays["successes"][rows].astype(float)
        failures = self.arrays["failures"][rows].astype(float)
        alpha, beta = self.prior[0] + successes, self.prior[1] + failures
        i = np.arange(self.k)[:, None]
        all_wrong = ((beta + i) / (alpha + beta + i)).prod(axis=0)
        return np.where(successes + failures > 0, 1.0 - all_wrong, np.nan)


class UnbiasedPassAtK(Estimator):
    """The unbiased estimator on counts pooled over the last H visits, a ring of two bytes a visit.

    NaN until k rollouts have been seen.
    """

    def _layout(self):
        return {
            "ring_successes": (np.uint8, (self.history,)),
            "ring_trials": (np.uint8, (self.history,)),
            "visits": (np.uint32, ()),
        }

    def add(self, rows, successes, trials):
        if trials.max(initial=0) > 255:
            raise ValueError(
                f"estimator 'unbiased' books at most 255 rollouts a visit, got {trials.max()}; "
                "use estimator 'beta'"
            )
        slot = self.arrays["visits"][rows] % self.history
        self.arrays["ring_successes"][rows, slot] = successes
        self.arrays["ring_trials"][rows, slot] = trials
        self.arrays["visits"][rows] += 1

    def pass_at_k(self, rows):
        successes = self.arrays["ring_successes"][rows].sum(axis=1, dtype=np.int64)
        trials = self.arrays["ring_trials"][rows].sum(axis=1, dtype=np.int64)
        enough = trials >= self.k
        estimate = 1.0 - all_wrong_chance(successes, np.where(enough, trials, self.k), self.k)
        return np.where(enough, estimate, np.nan)


class AnyOfK(Estimator):
    """(10) read with a fixed k: rollouts queue up, and each k of them make one outcome c_t.

    A visit of n rollouts may end a block in its midst. Its rollouts are exchangeable, so how many of
    the successes fall before the cut is drawn from the hypergeometric law (seeded by `clock`): the
    expectation of an outcome then depends on k alone, never on n. The outcomes of the last H blocks
    are kept, one byte each. NaN until the first block is full.
    """

    def _layout(self):
        return {
            "outcomes": (np.int8, (self.history,)),
            "blocks": (np.uint32, ()),
            "queued_successes": (np.uint16, ()),
            "queued_trials": (np.uint16, ()),
        }

    def add(self, rows, successes, trials):
        self.clock += 1
        rng = np.random.default_rng(self.clock)
        right, left = successes.copy(), trials.copy()  # of this visit, not queued yet
        while left.any():
            room = self.k - self.arrays["queued_trials"][rows].astype(np.int64)
            take = np.minimum(room, left)
            hits = rng.hypergeometric(right, left - right, take)
            self.arrays["queued_successes"][rows] += hits.astype(np.uint16)
            self.arrays["queued_trials"][rows] += take.astype(np.uint16)
            right, left = right - hits, left - take
            self._close_full_blocks(rows)

    def _close_full_blocks(self, rows):
        full = rows[self.arrays["queued_trials"][rows] == self.k]
        slot = self.arrays["blocks"][full] % self.history
        self.arrays["outcomes"][full, slot] = self.arrays["queued_successes"][full] > 0
        self.arrays["blocks"][full] += 1
        self.arrays["queued_successes"][full] = 0
        self.arrays["queued_trials"][full] = 0

    def pass_at_k(self, rows):
        kept = np.minimum(self.arrays["blocks"][rows], self.history).astype(float)
        hits = self.arrays["outcomes"][rows].sum(axis=1, dtype=np.int64)
        return np.divide(hits, kept, out=np.full(len(rows), np.nan), where=kept > 0)


class AnyOfN(AnyOfK):
    """One outcome a visit, "any of the n allotted is right": the released behaviour."""

    def add(self, rows, successes, trials):
        self.arrays["queued_successes"][rows] = successes
        self.arrays["queued_trials"][rows] = self.k
        self._close_full_blocks(rows)


ESTIMATORS: dict[str, type[Estimator]] = {
    "beta": BetaPosterior,
    "unbiased": UnbiasedPassAtK,
    "any_of_k": AnyOfK,
    "any_of_n": AnyOfN,
}
