"""What counts equally in the gradient where prompts have unequal numbers of rollouts.

A batch of P prompts with n_i rollouts, N in all, and mean gradient ḡ_i of prompt i gives

    averaging="prompt":    Σ_i (1/P) ḡ_i,     averaging="rollout":    Σ_i (n_i/N) ḡ_i.

By prompt, moving rollouts changes the noise of a prompt's gradient and not its size. This is the
estimator of (17) and Theorem 4.2. Its variance is Σ_i V_i / (P² n_i), where one rollout of prompt i
has the variance V_i, so that more rollouts for noisy prompts lower it. By rollout, which is how a
trainer counts the rollouts that it is given, a prompt with more rollouts also weighs more. That
variance is Σ_i n_i V_i / N², and more rollouts for noisy prompts raise it.
"""

from typing import Literal

import numpy as np

from gdro.checks import options
from gdro.method import Batch, Method


@options
class AveragingMethod(Method):
    """A method that moves or weighs rollouts, and says what counts equally."""

    averaging: Literal["prompt", "rollout"] = "prompt"
    """Whether every prompt or every rollout counts equally: see `gdro.methods.averaging`."""

    def counts(self, batch: Batch) -> np.ndarray | None:
        """Weight of each prompt in the mean of its bin, (P,); None for equal weights."""
        return batch.trials_P if self.averaging == "rollout" else None

    def weights(self, batch: Batch) -> np.ndarray:
        if self.averaging == "rollout":
            return np.ones(len(batch))
        return self.run.mean_rollouts / batch.trials_P
