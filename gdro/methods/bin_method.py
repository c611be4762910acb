"""What Prompt-GDRO and Rollout-GDRO share: they see only the bins of prompts. P prompts."""

from typing import Literal

import numpy as np

from gdro.checks import options
from gdro.method import Batch, Method


@options
class BinMethod(Method):
    """A method that sees only the bins of prompts."""

    averaging: Literal["rollout", "prompt"] = "rollout"
    """What counts equally in means (13), (17) and the gradient. "rollout": every rollout, as in
    TRL's loss. "prompt": every prompt, however many rollouts it has, as printed. Then moving
    rollouts changes the noise of a prompt's gradient and not its size."""

    def counts(self, batch: Batch) -> np.ndarray | None:
        """How much each prompt counts in the mean of its bin, (P,); None for equally."""
        return batch.trials_P if self.averaging == "rollout" else None

    def weights(self, batch: Batch) -> np.ndarray:
        if self.averaging == "rollout":
            return np.ones(len(batch))
        # 1 where a prompt has n̄ rollouts; rewards may be missing, or another part may move them
        return self.run.mean_rollouts / batch.trials_P
