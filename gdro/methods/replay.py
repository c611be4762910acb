"""Pivotal, and replay of kept successes.

A buffer keeps a few distinct correct answers of each prompt. In every step, beside the rollouts,
some of its prompts are replayed with all their kept texts:

    L = −[Σ A log π(rollout) + Σ w log π(kept text)] / (tokens of both),

    w = c · max(p̂, p_least) · (1 − p̂) / (number of texts kept for the prompt),

with p̂ the posterior mean of the prompt's pass rate, from the controller's counts. w fades as the
prompt is solved, so replay stops by itself. MAPO (arXiv 1807.02322) has the same shape, with the
probability that the policy gives to the kept texts in place of p̂.

The laboratory's loop owns the buffer (`gdro_lab.buffer`); the method says which prompts to replay,
and with which weight. In TRL and verl, methods that replay are refused.

Axes: P prompts, D prompts of the data set.
"""

from typing import ClassVar

import numpy as np

from gdro.checks import Count, NonNegative, Share, options
from gdro.method import Batch, Prompts, Run
from gdro.methods.pivotal import Pivotal
from gdro.registry import register


def replay_weights(rates_P: np.ndarray, scale: float, least: float = 0.1) -> np.ndarray:
    """c · max(p̂, p_least) · (1 − p̂): what a prompt's kept texts share, (P,)."""
    return scale * np.maximum(rates_P, least) * (1 - rates_P)


@register("pivotal_replay")
@options
class PivotalReplay(Pivotal):
    """Pivotal, and replay of the correct answers that are kept (see above).

    In every step `replayed` of the buffer are drawn evenly among those replayed less than `most`
    times since their last visit: p̂ moves only on visits, and a rare success would be memorized.
    """

    replayed: Count = 64
    """Prompts that are replayed in a step."""
    scale: NonNegative = 2.0
    """c over n̄: c = 8 for groups of four."""
    least: Share = 0.1
    """p_least, the rate below which weights do not fall."""
    most: Count | None = 4
    """Replays of a prompt between two of its visits; None for no bound."""
    start_at: Count = 16
    """Prompts in the buffer before replay begins."""

    state: ClassVar[tuple[str, ...]] = (*Pivotal.state, "replays_D")

    def start(self, run: Run) -> None:
        super().start(run)
        self.replays_D = np.zeros(0, np.int32)

    def replay(
        self, banked: Prompts, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray] | None:
        return self.replay_some(banked, np.ones(len(banked), bool), self.replayed, rng)

    def replay_some(
        self, banked: Prompts, may_P: np.ndarray, size: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """As `replay`, of `size` prompts at most, drawn evenly among those that may be, (P,)."""
        if len(banked) < self.start_at:
            return None
        self.replays_D = self.grow(self.replays_D, banked.rows_P)
        if self.most is not None:
            may_P = may_P & (self.replays_D[banked.rows_P] < self.most)
        places = np.flatnonzero(may_P)
        places = rng.choice(places, min(size, len(places)), replace=False)
        self.replays_D[banked.rows_P[places]] += 1
        scale = self.scale * self.run.mean_rollouts
        return places, replay_weights(banked.rate_P[places], scale, self.least)

    def update(self, batch: Batch) -> None:
        super().update(batch)
        self.replays_D = self.grow(self.replays_D, batch.rows_P)
        self.replays_D[batch.rows_P] = 0
