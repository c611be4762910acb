"""Loading: three families, full and LoRA, trained by GDROTrainer; seeds, dtypes, extras, Unsloth."""

import importlib.util
import subprocess
import sys
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
pytest.importorskip("trl")
pytest.importorskip("math_verify")

from tiny_models import FAMILIES, save_tiny_model  # noqa: E402

from gdro import models  # noqa: E402
from gdro.models import load_model  # noqa: E402
from gdro.tasks.math import load_math, reward_for  # noqa: E402
from gdro.trainer import GDROConfig, GDROTrainer  # noqa: E402

FIXTURES = Path(__file__).parent / "fixtures" / "math"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {family: save_tiny_model(family, root / family) for family in FAMILIES}


@pytest.fixture(scope="module")
def reward():
    with reward_for("dapo", workers=1) as reward:
        yield reward


def vowels(completions, **kwargs):
    """A reward that random models earn unevenly, so that there is something to learn."""
    return [sum(text.count(vowel) for vowel in "aeiou") / 4 for text in completions]


def make_trainer(loaded, reward, folder, *, style="text", rewards=(vowels,), **change):
    data = load_math("dapo", FIXTURES / "dapo.jsonl", style=style, check_answers=False)
    options = {
        "output_dir": str(folder),
        "gdro_method": "both",
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 12,
        "max_steps": 2,
        "learning_rate": 1e-3,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "remove_unused_columns": False,
        "seed": 3,
    }
    return GDROTrainer(
        loaded.model,
        [reward, *rewards],
        args=GDROConfig(**options | change),
        train_dataset=data,
        processing_class=loaded.tokenizer,
        peft_config=loaded.peft_config,
    )


def trainable(model):
    named = model.named_parameters()
    return {name: weight.detach().clone() for name, weight in named if weight.requires_grad}


@pytest.mark.parametrize("kind", ["full", "lora"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_trains_two_steps(folders, reward, tmp_path, family, kind):
    loaded = load_model(folders[family], kind=kind, seed=3, dtype="float32")
    assert type(loaded.model).__name__ == f"{family}ForCausalLM"
    trainer = make_trainer(loaded, reward, tmp_path)
    before = trainable(trainer.model)
    assert all(("lora_" in name) == (kind == "lora") for name in before)
    trainer.train()
    after = trainable(trainer.model)
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert all(torch.isfinite(weight).all() for weight in after.values())
    assert [row["rollouts_spent"] for row in trainer.record] == [8, 8]
    metrics = trainer.state.log_history[-1]
    assert metrics["step"] == 2
    assert reward.counts.total() >= 16


def test_chat_prompts_train_too(folders, reward, tmp_path):
    def vowels_of_chat(completions, **kwargs):
        return vowels([completion[0]["content"] for completion in completions])

    loaded = load_model(folders["Qwen3"], seed=3)
    trainer = make_trainer(loaded, reward, tmp_path, style="chat", rewards=[vowels_of_chat])
    trainer.train()
    assert len(trainer.record) == 2


def test_equal_seeds_give_adapters_of_equal_bits(folders, reward, tmp_path):
    def adapter(seed, tag):
        torch.rand(7)  # whatever random numbers were drawn before
        loaded = load_model(folders["Llama"], kind="lora", seed=seed)
        torch.rand(7)  # … also between the model and its trainer, which seeds before it makes the adapter
        return trainable(make_trainer(loaded, reward, tmp_path / tag, seed=seed).model)

    first, again, other = adapter(3, "a"), adapter(3, "b"), adapter(4, "c")
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
    # B starts at 0 in every adapter, A does not
    drawn = [name for name in first if "lora_A" in name]
    assert drawn
    assert all(not torch.equal(first[name], other[name]) for name in drawn)


def test_a_trained_adapter_is_saved_and_loaded_again(folders, reward, tmp_path):
    loaded = load_model(folders["Mistral"], kind="lora", seed=3, dtype="float32", lora={"r": 4})
    trainer = make_trainer(loaded, reward, tmp_path / "run")
    trainer.train()
    trainer.save_model(str(tmp_path / "adapter"))
    base = transformers.AutoModelForCausalLM.from_pretrained(folders["Mistral"])
    ids = torch.arange(2, 12)[None]
    with torch.no_grad():
        plain = base(ids).logits
        adapted = peft.PeftModel.from_pretrained(base, tmp_path / "adapter")(ids).logits
        ours = trainer.model.eval()(ids).logits
    torch.testing.assert_close(adapted, ours)
    assert not torch.allclose(adapted, plain)
    assert peft.PeftConfig.from_pretrained(tmp_path / "adapter").r == 4


def test_checkpointing_changes_memory_and_not_gradients(folders):
    gradients = []
    for checkpointing in (False, True):
        model = load_model(folders["Qwen3"], seed=0, gradient_checkpointing=checkpointing).model.train()
        assert model.is_gradient_checkpointing == checkpointing
        ids = torch.arange(2, 34)[None]
        model(ids, labels=ids, use_cache=False).loss.backward()
        gradients.append([weight.grad for weight in model.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed)


def test_a_checkpointed_adapter_trains(folders, reward, tmp_path):
    loaded = load_model(folders["Qwen3"], kind="lora", seed=3, gradient_checkpointing=True)
    trainer = make_trainer(loaded, reward, tmp_path, gradient_checkpointing=True, bf16=True)
    before = trainable(trainer.model)
    trainer.train()
    after = trainable(trainer.model)
    assert any(not torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("kind", "dtype", "wanted"),
    [
        ("full", None, torch.float32),
        ("full", "bfloat16", torch.bfloat16),
        ("lora", None, torch.bfloat16),
        ("lora", "float32", torch.float32),
    ],
)
def test_dtypes(folders, reward, tmp_path, kind, dtype, wanted):
    loaded = load_model(folders["Qwen3"], kind=kind, dtype=dtype, seed=0)
    assert {weight.dtype for weight in loaded.model.parameters()} == {wanted}
    if kind == "lora":
        adapters = trainable(make_trainer(loaded, reward, tmp_path).model).values()
        assert {weight.dtype for weight in adapters} == {torch.float32}


def test_loading_options_reach_the_libraries(folders):
    loaded = load_model(
        str(folders["Qwen3"]),
        kind="lora",
        seed=0,
        attention="eager",
        lora={"r": 4, "target_modules": ["q_proj"]},
    )
    assert loaded.model.config._attn_implementation == "eager"
    assert loaded.tokenizer.padding_side == "left"
    assert (loaded.peft_config.r, loaded.peft_config.lora_alpha) == (4, 64)
    assert loaded.peft_config.target_modules == {"q_proj"}
    assert loaded.peft_config.task_type == "CAUSAL_LM"
    assert load_model(folders["Qwen3"], seed=0).peft_config is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "qlora"}, "kind is 'qlora'; give one of"),
        ({"dtype": "float16"}, "dtype is 'float16'; give one of"),
        ({"kind": "full", "lora": {}}, "lora is given for kind 'full'; leave it out"),
        ({"kind": "unsloth-full", "lora": {}}, "lora is given for kind 'unsloth-full'"),
        ({"kind": "unsloth-lora", "attention": "eager"}, "Unsloth brings its own"),
        ({"kind": "lora", "lora": {"rank": 4}}, "lora is {'rank': 4}: .*see peft.LoraConfig"),
        ({"seed": -1}, "seed is -1; give an integer of at least 0"),
        ({"max_length": 0}, "max_length is 0; give an integer of at least 1"),
    ],
)
def test_bad_arguments_are_refused(folders, change, message):
    with pytest.raises(ValueError, match=message):
        load_model(**{"source": folders["Qwen3"], "seed": 0} | change)


# Unsloth


def fake_unsloth(asked):
    """A module with the two calls of Unsloth's that are used, noting how they were made."""

    def from_pretrained(**kwargs):
        asked["load"] = kwargs
        folder = kwargs["model_name"]
        return (
            transformers.AutoModelForCausalLM.from_pretrained(folder),
            transformers.AutoTokenizer.from_pretrained(folder),
        )

    def get_peft_model(model, **kwargs):
        asked["lora"] = kwargs
        return model

    fast = types.SimpleNamespace(from_pretrained=from_pretrained, get_peft_model=get_peft_model)
    module = types.ModuleType("unsloth")
    module.FastLanguageModel = fast
    return module


@pytest.mark.parametrize("kind", ["unsloth-full", "unsloth-lora"])
def test_unsloth_is_called_as_the_kind_says(folders, monkeypatch, kind):
    asked = {}
    monkeypatch.setitem(sys.modules, "unsloth", fake_unsloth(asked))
    options = {"lora": {"r": 8}} if kind == "unsloth-lora" else {}
    loaded = load_model(
        folders["Qwen3"], kind=kind, seed=5, gradient_checkpointing=True, max_length=77, **options
    )
    assert loaded.peft_config is None
    assert asked["load"] == {
        "model_name": folders["Qwen3"],
        "max_seq_length": 77,
        "dtype": torch.bfloat16,
        "load_in_4bit": False,
        "full_finetuning": kind == "unsloth-full",
        "use_gradient_checkpointing": "unsloth",
        "random_state": 5,
    }
    wanted = {"random_state": 5, "use_gradient_checkpointing": "unsloth"}
    wanted |= {"r": 8, "lora_alpha": 64, "lora_dropout": 0.0}
    assert asked.get("lora") == (wanted if kind == "unsloth-lora" else None)


def test_unsloth_after_trl_is_an_error(folders, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        models.importlib.util,
        "find_spec",
        lambda name: find_spec("json") if name == "unsloth" else find_spec(name),
    )
    monkeypatch.delitem(sys.modules, "unsloth", raising=False)
    with pytest.raises(ImportError, match=r"trl was imported before unsloth.*restart"):
        load_model(folders["Qwen3"], kind="unsloth-lora", seed=0)


def test_a_trainer_made_before_unsloth_is_an_error(folders, monkeypatch):
    import trl

    monkeypatch.setitem(sys.modules, "unsloth", fake_unsloth({}))
    monkeypatch.setattr(trl, "GRPOTrainer", type("UnslothGRPOTrainer", (), {}))
    with pytest.raises(ImportError, match=r"gdro\.trainer was imported before unsloth"):
        load_model(folders["Qwen3"], kind="unsloth-lora", seed=0)


@pytest.mark.parametrize(
    ("kind", "package", "extra"),
    [("lora", "peft", "train"), ("unsloth-lora", "unsloth", "gpu")],
)
def test_a_missing_package_names_its_extra(folders, monkeypatch, kind, package, extra):
    monkeypatch.delitem(sys.modules, package, raising=False)
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=rf"{package} is not installed; .*'gdro\[{extra}\]'"):
        load_model(folders["Qwen3"], kind=kind, seed=0)


def test_loading_alone_imports_neither_trl_nor_transformers():
    code = "import sys, gdro.models; assert not {'trl', 'transformers', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
