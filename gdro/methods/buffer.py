"""A replay buffer of correct answers: kept by prompt, and trained on again.

The buffer keeps a few distinct correct answers of each prompt. In every step, beside the rollouts,
some of its prompts are replayed with all their kept texts:

    L = −[Σ A log π(rollout) + Σ w log π(kept text)] / (tokens of both),

    w = c · max(p̂, p_least) · (1 − p̂) / (number of texts kept for the prompt),

with p̂ the posterior mean of the prompt's pass rate, from the controller's counts. w fades as the
prompt is solved, so replay stops by itself. MAPO (arXiv 1807.02322) has the same shape, with the
probability that the policy gives to the kept texts in place of p̂.

The laboratory's loop owns the buffer; the method says which prompts to replay, and with which
weight. In TRL and verl, methods that replay are refused.

Rewards judge the decoded text, where special tokens do not show. So a text may earn the reward
without an end, or with padding inside, and replay would teach just that. The loop keeps only texts
that are whole (`is_whole`), and tells them apart by the decoded text.
"""

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any

import numpy as np


def replay_weights(rates_P: np.ndarray, scale: float, least: float = 0.1) -> np.ndarray:
    """c · max(p̂, p_least) · (1 − p̂): what a prompt's kept texts share, (P,)."""
    return scale * np.maximum(rates_P, least) * (1 - rates_P)


def is_whole(text: Sequence[int], ends: Collection[int], specials: Collection[int]) -> bool:
    """Whether a completion has tokens, then one of `ends`, and no special token before that.

    `specials` are ids that the decoder leaves out, such as padding.
    """
    if len(text) < 2 or text[-1] not in ends:
        return False
    return not any(token in ends or token in specials for token in text[:-1])


class ReplayBuffer:
    """Distinct successes of each prompt; the oldest gives way when `size` are kept.

    A text is a tuple of token ids.

    Args:
        size: texts kept for a prompt.

    Attributes:
        texts: of each prompt, by its uid, and by key, from the oldest to the newest.
    """

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self.texts: dict[Hashable, dict[str, tuple[int, ...]]] = {}

    @property
    def uids(self) -> list[Any]:
        """Prompts with at least one kept text, in the order of their first success."""
        return list(self.texts)

    def add(self, uid: Hashable, text: Iterable[int], key: str) -> None:
        """Keep a success, with the token that ends it, unless the decoded text `key` is kept."""
        texts = self.texts.setdefault(uid, {})
        if key in texts:
            return
        texts[key] = tuple(text)
        if len(texts) > self.size:
            oldest = next(iter(texts))
            del texts[oldest]

    def rows(
        self, positions: np.ndarray, weights: np.ndarray
    ) -> tuple[list[Hashable], list[tuple[int, ...]], np.ndarray]:
        """Uid, tokens and weight of every kept text of some prompts, for the loss.

        `positions` are places in `uids`, as of `GDROController.replay`, and `weights` what the kept
        texts of each share.
        """
        uids = self.uids
        uids_R: list[Hashable] = []
        texts_R: list[tuple[int, ...]] = []
        weights_R: list[float] = []
        for position, weight in zip(positions, weights, strict=True):
            uid = uids[position]
            for text in self.texts[uid].values():
                uids_R.append(uid)
                texts_R.append(text)
                weights_R.append(weight / len(self.texts[uid]))
        return uids_R, texts_R, np.array(weights_R, float)
