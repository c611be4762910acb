"""The machine that a model runs on: what it computes in, and what a record says of it."""

from typing import Any, Literal

Arithmetic = Literal["float32", "bfloat16"]

# Without instructions of its own for bfloat16, a processor takes eight times as long as in float32.
BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16")
# A manifest lists which of these the processor has, since libraries choose their kernels by them.
RECORDED_FLAGS = ("avx2", "avx512_f", *BFLOAT16_FLAGS, "amx_fp16", "neon", "bf16", "sve")


def arithmetic(*, pretrained: bool) -> Arithmetic:
    """What models compute in on this machine: float32, or bfloat16 where that is faster.

    On a GPU, bfloat16. On a processor, bfloat16 for a pretrained model where the processor has
    instructions for it, unless `gdro_lab.numerics` restricts PyTorch to AVX2: its attention in
    bfloat16 then fails on processors with AMX. Our tiny models stay in float32, because their
    tables are equal everywhere.
    """
    import torch

    if torch.cuda.is_available():
        return "bfloat16"
    flags = processor_flags()
    has_bfloat16 = any(flag in flags for flag in BFLOAT16_FLAGS)
    is_free = torch.backends.cpu.get_cpu_capability() == "AVX512"
    if pretrained and has_bfloat16 and is_free:
        return "bfloat16"
    return "float32"


def fast_attention() -> str | None:
    """The attention of transformers that trains fastest here; None for its own choice.

    On a processor PyTorch's fused attention multiplies many small blocks one by one: forward and
    backward of 1,024 tokens of SmolLM2-135M take 2.6 s with it and 2.1 s without.
    """
    import torch

    return None if torch.cuda.is_available() else "eager"


def processor_flags() -> list[str]:
    """Those of `RECORDED_FLAGS` that the processor has; none where torch is older than 2.11."""
    capabilities = _capabilities()
    return [flag for flag in RECORDED_FLAGS if capabilities.get(flag)]


def describe_machine(*, pretrained: bool) -> dict[str, Any]:
    """Device, threads, processor and arithmetic, for a manifest."""
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "device": device,
        "threads": torch.get_num_threads(),
        "processor": {"name": _capabilities().get("cpu_name"), "flags": processor_flags()},
        "arithmetic": arithmetic(pretrained=pretrained),
    }


def _capabilities() -> dict[str, Any]:
    import torch

    if not hasattr(torch.cpu, "get_capabilities"):
        return {}
    return dict(torch.cpu.get_capabilities())
