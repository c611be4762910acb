"""What a generation needs: vLLM's stop tokens, sharded weights."""

from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule


def send_stop_tokens(vllm_generation: Any, stops: list[int]) -> None:
    """Tell vLLM all stop tokens: it reads the model's files, and `load_model` adds others."""
    given = vllm_generation.generation_kwargs
    vllm_generation.generation_kwargs = {"stop_token_ids": stops} | given


def reshard(model: nn.Module) -> None:
    """Shard weights again that a forward pass has gathered: TRL could not send them to vLLM."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
