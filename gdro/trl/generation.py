"""How completions are asked for, where the groups of prompts are not equally large."""

from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule

from gdro.trl.logs import Logs


class RowByRow(Logs):
    """GRPOTrainer whose engine samples each row on its own where groups may be unequal."""

    def _generate_single_turn(
        self,
        prompt_ids: list[list[int]],
        images: list[list | None] | None,
        multimodal_fields: dict[str, Any],
        num_generations: int,
        **kwargs: object,
    ) -> tuple[list[list[int]], list[list[float]] | None]:
        """TRL's, timed, with one completion of each row where groups may be unequal.

        Returns:
            The token ids of the completions, and their log-probabilities.

        Raises:
            ValueError: for images, where the method samples in rounds or replays.
        """
        method = self.controller.method
        in_rounds = method.samples_again
        # images that TRL found in the messages of a prompt
        if images is not None and self.model.training and (in_rounds or method.replays):
            raise ValueError(
                f"gdro_method={self.controller.name!r} works only with text, got images"
            )
        # A vLLM server takes every n-th row and samples n completions of it, since TRL lays the
        # rows of a prompt side by side. Groups are unequal here: each row is sampled for itself.
        if self.model.training and (method.moves_rollouts or in_rounds):
            num_generations = 1
        if self.use_vllm and self.is_fsdp_enabled:
            reshard(self.model)
        with self._timed("generate"):
            return super()._generate_single_turn(
                prompt_ids, images, multimodal_fields, num_generations, **kwargs
            )

    def _send_stop_tokens(self) -> None:
        """Tell vLLM all stop tokens: it reads the model's files, and `load_model` adds others."""
        options = self.vllm_generation.generation_kwargs
        self.vllm_generation.generation_kwargs = {"stop_token_ids": self.eos_token_ids} | options


def reshard(model: nn.Module) -> None:
    """Shard again what a forward without a backward has gathered, which TRL cannot send to vLLM."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
