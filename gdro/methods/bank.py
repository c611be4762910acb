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

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np


def replay_weights(rates_P: np.ndarray, scale: float, least: float = 0.1) -> np.ndarray:
    """c · max(p̂, p_least) · (1 − p̂): what a prompt's kept texts share, (P,)."""
    return scale * np.maximum(rates_P, least) * (1 - rates_P)


class Bank:
    """Distinct successes of each prompt as token ids; the oldest gives way when `size` are kept.

    Args:
        size: texts kept for a prompt.

    Attributes:
        texts: of each prompt, by its uid, from the oldest to the newest.
    """

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self.texts: dict[Hashable, list[tuple[int, ...]]] = {}

    @property
    def uids(self) -> list[Any]:
        """Prompts with at least one kept text, in the order of their first success."""
        return list(self.texts)

    def add(self, uid: Hashable, text: Iterable[int]) -> None:
        """Keep a success of a prompt, unless it is kept already.

        Args:
            uid: of the prompt.
            text: tokens of the completion, the one that ends it included.
        """
        texts = self.texts.setdefault(uid, [])
        tokens = tuple(text)
        if tokens not in texts:
            texts.append(tokens)
            del texts[: -self.size]

    def rows(
        self, positions: np.ndarray, weights: np.ndarray
    ) -> tuple[list[Hashable], list[tuple[int, ...]], np.ndarray]:
        """What the loss takes of some prompts.

        Args:
            positions: of the prompts in `uids`, as `GDROController.replay` gives them.
            weights: that the texts of each prompt share.

        Returns:
            Uid, tokens and weight of every text that is kept for these prompts.
        """
        uids = self.uids
        uids_R: list[Hashable] = []
        texts_R: list[tuple[int, ...]] = []
        weights_R: list[float] = []
        for position, weight in zip(positions, weights, strict=True):
            uid = uids[position]
            for text in self.texts[uid]:
                uids_R.append(uid)
                texts_R.append(text)
                weights_R.append(weight / len(self.texts[uid]))
        return uids_R, texts_R, np.array(weights_R, float)

    def state_dict(self) -> dict[str, Any]:
        """Plain values, in order, for a checkpoint."""
        texts = [list(texts) for texts in self.texts.values()]
        return {"size": self.size, "uids": self.uids, "texts": texts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self.size = state["size"]
        self.texts = {}
        for uid, texts in zip(state["uids"], state["texts"], strict=True):
            self.texts[uid] = [tuple(text) for text in texts]
