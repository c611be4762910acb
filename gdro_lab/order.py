"""Which prompts of the data set a batch of the loop gets.

Axes: D prompts of the data set, P prompts of a batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gdro.checks import check
from gdro.controller import GDROController


@dataclass
class Order:
    """Which prompts come next, as positions in the data set."""

    uids_D: np.ndarray
    """Uids of the data set."""
    batch_size: int
    stream: bool
    """No prompt comes twice, and without a method that draws they come in order."""
    rng: np.random.Generator
    """Shuffles the epochs, where the method does not draw.

    In the loop it repeats the numbers that draw the task and train the base where seeds are equal,
    since numpy seeds s and (s, 0) alike. Another seed would change all stored results.
    """

    def __post_init__(self) -> None:
        check("prompts", self.batch_size, int, ge=1, le=len(self.uids_D))  # none twice in a batch
        self.left_D = np.arange(len(self.uids_D))  # of a stream, those that have not come yet
        self.epochs = _epochs(len(self.uids_D), self.batch_size, self.rng)

    def next_batch(self, controller: GDROController) -> np.ndarray:
        """Positions of the next prompts, (P,): the method's choice, or else ours."""
        if not self.stream:
            # the pool is the same array each time, so the controller sorts it once
            drawn_P = controller.draw(self.uids_D, self.batch_size)
            return next(self.epochs) if drawn_P is None else drawn_P
        # a stream's pool shrinks, as nothing in it comes again
        places_P = controller.draw(self.uids_D[self.left_D], self.batch_size)
        if places_P is None:
            places_P = np.arange(self.batch_size)
        drawn_P = self.left_D[places_P]
        self.left_D = np.setdiff1d(self.left_D, drawn_P)
        return drawn_P


def _epochs(size: int, batch: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Positions of batch after batch, without end; each epoch is shuffled, its rest dropped."""
    while True:
        order = rng.permutation(size)
        for start in range(0, size - batch + 1, batch):
            yield order[start : start + batch]
