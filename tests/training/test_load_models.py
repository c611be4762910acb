"""Loading: three families, full and LoRA, trained by GDROTrainer; seeds, dtypes, Unsloth."""

import sys

import peft
import pytest
import torch
import transformers
from datasets import Dataset
from tiny_run import arguments

from gdro.trainer import GDROConfig, GDROTrainer
from gdro_lab.models import load_model
from gdro_lab.tasks.pretrained import merged_model


def vowels(completions, **kwargs):
    """A reward that random models earn unevenly, so that there is something to learn."""
    texts = [text if isinstance(text, str) else text[0]["content"] for text in completions]
    return [sum(text.count(vowel) for vowel in "aeiou") / 4 for text in texts]


def make_trainer(loaded, folder, *, chat=False, **change):
    texts = [f"Spell {number}." for number in range(12)]
    rows = [{"prompt": [{"role": "user", "content": text}] if chat else text} for text in texts]
    options = {"gdro_method": "both", "per_device_train_batch_size": 8, "max_steps": 2}
    return GDROTrainer(
        loaded.model,
        vowels,
        args=arguments(GDROConfig, folder, **options | change),
        train_dataset=Dataset.from_list(rows),
        processing_class=loaded.tokenizer,
        peft_config=loaded.peft_config,
    )


def trainable(model):
    named = model.named_parameters()
    return {name: weight.detach().clone() for name, weight in named if weight.requires_grad}


@pytest.mark.parametrize(
    ("family", "kind", "options"),
    [
        ("Llama", "full", {}),
        ("Mistral", "full", {}),
        ("Llama", "lora", {}),
        ("Qwen3", "lora", {"gradient_checkpointing": True}),  # on chats
    ],
)
def test_every_family_trains_two_steps(folders, tmp_path, family, kind, options):
    loaded = load_model(folders[family], kind=kind, seed=3, dtype="float32", **options)
    assert type(loaded.model).__name__ == f"{family}ForCausalLM"
    trainer = make_trainer(loaded, tmp_path, chat=bool(options), **options)
    before = trainable(trainer.model)
    assert all(("lora_" in name) == (kind == "lora") for name in before)
    trainer.train()
    assert loaded.model.is_gradient_checkpointing == bool(options)
    after = trainable(trainer.model)
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert all(torch.isfinite(weight).all() for weight in after.values())
    assert [row["rollouts_spent"] for row in trainer.record] == [8, 8]
    assert trainer.state.log_history[-1]["step"] == 2


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_equal_seeds_give_adapters_of_equal_bits_in_float32(folders, tmp_path, dtype):
    def adapter(seed, tag):
        torch.rand(7)  # whatever random numbers were drawn before
        loaded = load_model(folders["Llama"], kind="lora", seed=seed, dtype=dtype)
        wanted = torch.bfloat16 if dtype else torch.float32
        assert {weight.dtype for weight in loaded.model.parameters()} == {wanted}
        torch.rand(7)  # also before the trainer, which seeds before it makes the adapter
        return trainable(make_trainer(loaded, tmp_path / tag, seed=seed).model)

    first, again, other = adapter(3, "a"), adapter(3, "b"), adapter(4, "c")
    assert {weight.dtype for weight in first.values()} == {torch.float32}
    assert all(torch.equal(first[name], again[name]) for name in first)
    # B starts at 0 in every adapter, A does not
    drawn = [name for name in first if "lora_A" in name]
    assert drawn
    assert all(not torch.equal(first[name], other[name]) for name in drawn)


def test_a_trained_adapter_is_saved_and_merged(folders, tmp_path):
    options = {"r": 4, "target_modules": ["q_proj"]}
    loaded = load_model(folders["Mistral"], kind="lora", seed=3, dtype="float32", lora=options)
    assert loaded.tokenizer.padding_side == "left"
    trainer = make_trainer(loaded, tmp_path / "run")
    trainer.train()
    trainer.save_model(str(tmp_path / "adapter"))
    merged = merged_model(folders["Mistral"], tmp_path / "adapter", tmp_path / "merged")
    assert transformers.AutoTokenizer.from_pretrained(merged).chat_template is not None
    ids = torch.arange(2, 12)[None]
    with torch.no_grad():
        pair = (folders["Mistral"], merged)
        plain, adapted = (load_model(folder, seed=0).model(ids).logits for folder in pair)
        ours = trainer.model.eval()(ids).logits
    torch.testing.assert_close(adapted, ours)
    assert not torch.allclose(adapted, plain)
    saved = peft.PeftConfig.from_pretrained(tmp_path / "adapter")
    assert (saved.r, saved.lora_alpha, saved.target_modules) == (4, 64, {"q_proj"})


def test_unsloth_must_come_before_trl(folders, monkeypatch):
    monkeypatch.delitem(sys.modules, "unsloth", raising=False)
    with pytest.raises(ImportError, match="unsloth"):
        load_model(folders["Qwen3"], kind="unsloth-lora", seed=0)


UNSLOTH = {"kind": "unsloth-lora", "fast_inference": True}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"kind": "full", "lora": {}}, "lora"),
        ({"fast_inference": True}, "fast_inference"),
        ({"quantization": "4bit", "kind": "unsloth-full"}, "quantization"),
        ({"kind": "unsloth-lora", "standby": True}, "standby"),
        (UNSLOTH | {"lora": {"use_dora": True}}, "use_dora"),
        ({"kind": "unsloth-full", "attn_implementation": "eager"}, "attn_implementation"),
    ],
)
def test_bad_arguments_are_refused(folders, change, named):
    with pytest.raises(ValueError, match=named):
        load_model(**{"source": folders["Qwen3"], "seed": 0} | change)
