"""The correct answers that are kept for replay, by prompt (`gdro.methods.replay`).

Rewards judge the decoded text, where special tokens do not show. So a text may earn the reward
without an end, or with padding inside, and replay would teach just that. The loop keeps only texts
that are whole (`is_whole`), and tells them apart by the decoded text.
"""

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any

import numpy as np


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
