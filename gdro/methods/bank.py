"""A bank of successes: completions that earned the reward, kept by prompt and trained on again.

A bank keeps a few distinct successes of each prompt. In every step, beside the rollouts, some of
its prompts are replayed with all their kept texts:

    L = −[Σ A log π(rollout) + Σ w log π(kept text)] / (tokens of both),

    w = c · max(p̂, p_least) · (1 − p̂) / (number of texts kept for the prompt),

with p̂ the posterior mean of the prompt's pass rate, from the controller's counts. w fades as the
prompt is solved, so replay stops by itself. MAPO (arXiv 1807.02322) has the same shape with the
bank's share of the policy in the place of p̂: it needs probabilities of whole texts.

Loop and trainer own the bank; the method says which prompts to replay, and with which weight.
"""

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np


def replay_weights(rates_P: np.ndarray, scale: float, least: float = 0.1) -> np.ndarray:
    """c · max(p̂, p_least) · (1 − p̂): what a prompt's kept texts share, (P,)."""
    return scale * np.maximum(rates_P, least) * (1 - rates_P)


class Bank:
    """Distinct successes of each prompt as token ids; the oldest gives way when `size` are kept."""

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self.texts: dict[Hashable, list[tuple[int, ...]]] = {}

    @property
    def uids(self) -> list:
        """Prompts with at least one kept text, in the order of their first success."""
        return list(self.texts)

    def add(self, uid: Hashable, text: Iterable[int]) -> None:
        """Keep a success of a prompt."""
        kept, text = self.texts.setdefault(uid, []), tuple(text)
        if text not in kept:
            kept.append(text)
            del kept[: -self.size]

    def rows(
        self, positions: np.ndarray, weights: np.ndarray
    ) -> tuple[list[Hashable], list[tuple[int, ...]], np.ndarray]:
        """Uid, text and weight of every text kept for the prompts at `positions` of `uids`."""
        uids, of_uid, texts, weights_R = self.uids, [], [], []
        for position, weight in zip(positions, weights, strict=True):
            for text in self.texts[uids[position]]:
                of_uid.append(uids[position])
                texts.append(text)
                weights_R.append(weight / len(self.texts[uids[position]]))
        return of_uid, texts, np.array(weights_R, float)

    def state_dict(self) -> dict[str, Any]:
        """Plain values, in order, for a checkpoint."""
        return {"size": self.size, "uids": self.uids, "texts": [*map(list, self.texts.values())]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        texts = [[tuple(text) for text in kept] for kept in state["texts"]]
        self.size, self.texts = state["size"], dict(zip(state["uids"], texts, strict=True))
