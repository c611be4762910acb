"""Peers that keep successes and train on them again, from `gdro.methods.bank`.

Axes: P prompts, R rollouts, D prompts of the data set.
"""

import numpy as np
from scipy.stats import norm

from gdro.checks import Natural, NonNegative, Share, options
from gdro.draws import in_proportion
from gdro.method import Batch, Method, Prompts, Run
from gdro.registry import register
from gdro.uids import merge_visits


@register("raft")
@options
class RAFT(Method):
    """RAFT (arXiv 2304.06767): supervised training on one correct text of a prompt, no more.

    Wrong rollouts have no part in the loss. Its authors train on the best of the K rollouts of the
    prompts at hand, and then sample again. Here a prompt's latest success is kept, and in every
    step `prompts` of the bank are drawn evenly and trained on with weight 1. With `prompts=0`
    nothing is replayed and each correct rollout has weight 1. What differs: they take many steps
    on one batch of data, we take one; the reward is correct or not, so the best of K is
    any correct one; their supervised loss divides by tokens of kept texts alone, ours by those of
    rollouts and kept texts, which a learning rate makes up for.
    """

    prompts: Natural = 64
    """Prompts that are replayed in a step; 0 for none."""

    kept_texts = 1

    @property
    def replays(self) -> bool:
        return self.prompts > 0

    def advantages(self, batch: Batch) -> np.ndarray:
        if self.prompts:  # only kept texts are trained on
            return np.zeros(len(batch.correct_R))
        return batch.correct_R.astype(float)

    def replay(
        self, banked: Prompts, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray] | None:
        size = min(self.prompts, len(banked))
        return rng.choice(len(banked), size, replace=False), np.ones(size)


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
    successes of a prompt were cut off, its group counts a success that the bank does not have.
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
