"""Evaluation while training: vLLM answers all held-out prompts in one call.

TRL samples one evaluation batch after another, and a batch is as small as its scoring needs it: 256 prompts
in batches of 4 are 64 calls, each of which waits for its own longest completion. Here the first batch of an
evaluation asks the engine for the completions of all of them. Rewards and scores stay TRL's, batch by batch.
"""

from collections import deque
from typing import TYPE_CHECKING, Any

from accelerate.utils import gather_object
from datasets import Dataset

from gdro.training.rounds import own_share
from gdro.training.trl_names import generated, rollouts_of

if TYPE_CHECKING:
    from trl import GRPOTrainer as Trainer
else:
    Trainer = object  # `GDROTrainer` puts this class in front of TRL's


class OneEvaluationCall(Trainer):
    """The part of `GDROTrainer` that evaluates; with generation by transformers it does nothing."""

    _held_out: list[Any] | None = None  # prompts of the evaluation that is running
    _sampled: dict[str, deque[tuple]] | None = None  # of each of them, the completions

    def evaluation_loop(self, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        """TRL's evaluation of a data set."""
        rows, others = dataloader.dataset, self.tools or self.rollout_func
        is_text = isinstance(rows, Dataset) and not {"image", "images"} & set(rows.column_names)
        if self.use_vllm and is_text and not others:
            self._held_out = list(rows["prompt"])
        try:
            return super().evaluation_loop(dataloader, *args, **kwargs)
        finally:
            self._held_out = self._sampled = None

    def _generate(self, prompts: list[Any]) -> tuple:
        if self.model.training or self._held_out is None:
            return super()._generate(prompts)
        if self._sampled is None:
            mine = own_share(self._held_out, self.accelerator)
            mine = [prompt for prompt in mine for _ in range(self.num_generations_eval)]
            sampled = zip(map(str, mine), rollouts_of(super()._generate(mine)), strict=True)
            self._sampled = {}  # by text, since a prompt may be a list of messages, which is no key
            for prompt, rollout in gather_object(list(sampled)):
                self._sampled.setdefault(prompt, deque()).append(rollout)
        found = []
        for prompt in prompts:
            own = self._sampled[str(prompt)]
            found.append(own[0])
            own.rotate(-1)  # the last batch of several processes may repeat a prompt to be full
        return generated(found)
