"""What models compute in: bfloat16 where it is fast, float32 for the tiny ones."""

import platform

import pytest
import torch

from gdro_lab.experiments.training import Lengths, training_arguments
from gdro_lab.machine import arithmetic, describe_machine


@pytest.fixture
def processor(monkeypatch):
    """Pretend a processor with these flags, whose kernels PyTorch has chosen."""

    def pretend(flags, kernels="AVX512"):
        found = {"cpu_name": "a processor", **dict.fromkeys(flags, True), "avx10_1": False}
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found, raising=False)
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: kernels)

    return pretend


@pytest.mark.parametrize(
    ("flags", "kernels", "chosen"),
    [
        (["avx2", "avx512_f", "avx512_bf16"], "AVX512", "bfloat16"),
        (["avx2", "amx_bf16"], "AVX512", "bfloat16"),
        (["avx2", "avx512_f"], "AVX512", "float32"),
        (["avx2"], "AVX2", "float32"),
        (["avx2", "avx512_f", "avx512_bf16", "amx_bf16"], "AVX2", "float32"),  # the numerics' own
        ([], "DEFAULT", "float32"),
    ],
)
def test_a_pretrained_model_takes_bfloat16_where_it_is_fast(processor, flags, kernels, chosen):
    processor(flags, kernels)
    assert arithmetic(pretrained=True) == chosen
    assert arithmetic(pretrained=False) == "float32"
    described = describe_machine(pretrained=True)
    assert described["processor"] == {"name": "a processor", "flags": flags}
    assert described["arithmetic"] == chosen


@pytest.mark.parametrize("pretrained", [True, False])
def test_training_follows_the_machine_unless_it_is_told(processor, profile_of, pretrained):
    processor(["avx2", "avx512_bf16"])
    model = {"source": "some/hub-id"} if pretrained else {}
    profile = profile_of(model=model)
    assert profile.is_pretrained == pretrained
    lengths = Lengths(8, 8)
    assert training_arguments(profile.run("grpo", 0), "unused", lengths).bf16 == pretrained
    told = profile_of(model=model, train={"max_steps": 6, "prompts_per_step": 8, "bf16": False})
    assert not training_arguments(told.run("grpo", 0), "unused", lengths).bf16


@pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of x86 processors")
def test_pytorch_has_the_flags_that_decide():
    assert {"avx2", "avx512_bf16", "amx_bf16"} <= set(torch.cpu.get_capabilities())
