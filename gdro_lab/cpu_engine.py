"""vLLM on a CPU, in TRL's mode "colocate": an engine that takes the weights of each step.

On a CPU vLLM packs each matrix for its kernels when it loads it. It discards most originals, so
that TRL has nothing to load new weights into. For an output matrix that is tied to the embedding it
keeps the original, which takes new weights, but still computes with the packed one.
An engine made in `reloadable` computes with the matrices themselves.

No environment variable is needed: in this mode vLLM binds no threads
(VLLM_CPU_OMP_THREADS_BIND is read where it starts processes of its own), so several trainings can
share a machine. Give each of them `vllm_gpu_memory_utilization`, here a share of the main memory,
and call `torch.set_num_threads` before the trainer is made: vLLM's engine switches it off.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from trl import GRPOConfig

BLOCK_SIZE = 32
"""Tokens of a block of the cache, on a CPU. Only whole blocks are shared: with vLLM's 128, the
rollouts of a short prompt would each compute it again."""


@contextmanager
def reloadable(args: GRPOConfig) -> Iterator[None]:
    """An engine that TRL makes inside this block takes new weights, also on a CPU.

    It runs without compilation, which takes longer than it saves: SmolLM2-135M is ready in 4 s in
    place of 42 on two cores, and samples no slower.

    Nothing changes where no engine is made in this process, or not on a CPU, and vLLM is as it was
    after the block.

    Raises:
        ValueError: in the block, for a model with weights that are not matrices, such as experts
            and convolutions, which vLLM packs in place.
    """
    if not args.use_vllm or args.vllm_mode != "colocate" or not is_on_cpu():
        yield
        return
    from trl.generation import vllm_generation
    from vllm.model_executor.layers import utils
    from vllm.model_executor.models.interfaces import is_mixture_of_experts

    make_engine = vllm_generation.LLM
    pack_matrix = utils.dispatch_cpu_unquantized_gemm

    def make_eager_engine(**options: Any) -> Any:
        engine = make_engine(**options, enforce_eager=True, block_size=BLOCK_SIZE)
        model = engine.llm_engine.model_executor.driver_worker.model_runner.model
        if is_mixture_of_experts(model):
            raise ValueError(
                f"vllm_mode='colocate' on a CPU needs a model without experts, got {type(model)}"
            )
        return engine

    vllm_generation.LLM = make_eager_engine
    utils.dispatch_cpu_unquantized_gemm = keep_matrix
    try:
        yield
    finally:
        vllm_generation.LLM = make_engine
        utils.dispatch_cpu_unquantized_gemm = pack_matrix


def is_on_cpu() -> bool:
    """Whether vLLM is installed, and its platform is a CPU."""
    try:
        from vllm.platforms import current_platform
    except ImportError:  # TRL says how to install it
        return False
    return current_platform.is_cpu()


def keep_matrix(layer: Any, remove_weight: bool) -> None:
    """Let a layer of vLLM multiply by its weight as it is; in place of vLLM's own function."""
    if layer.weight.dim() != 2:
        raise ValueError(
            f"vllm_mode='colocate' on a CPU needs a model of matrices, got {type(layer).__name__} "
            f"with a weight of shape {tuple(layer.weight.shape)}"
        )
    layer.cpu_linear = nn.functional.linear
