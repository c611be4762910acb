"""The gradient of every step is that of TRL's own trainer, from fewer tokens.

Completions are random bytes, in place of generation; all else is TRL's. Prompts are of unequal
length, so that TRL pads them on the left, and some differ in their last token alone.
"""

import re

import numpy as np
import pytest
import torch
import transformers
from conftest import TRAINS
from peft import LoraConfig, PromptTuningConfig
from processes import REPOSITORY
from scripted import CHATS, text_of
from tiny_models import save_tiny_model
from transformers import TrainerCallback
from trl import GRPOTrainer

from gdro.trl import prefixes
from gdro.trl.order import order_batches
from gdro.trl.trimming import what_trains

pytestmark = TRAINS

LOSSES = ["dapo", "grpo", "bnpo", "dr_grpo", "cispo", "luspo", "sapo", "vespo"]
SENTENCES = ("Spell the number", "Please count up to the number that comes next:", "Say")
ROWS = [{"prompt": f"{SENTENCES[n % 3]} {n}", "answer": str(n), "uid": n} for n in range(9)]


def mixed_or_flat(completions, uid, **columns):
    """Of every third prompt some rollouts are right, of the others none."""
    pairs = zip(map(text_of, completions), uid, strict=True)
    return [float(u % 3 == 0 and sum(map(ord, text)) % 2) for text, u in pairs]


def sampled(trainer, prompt_ids, *args, **kwargs):
    """Completions of 0 to 10 tokens and an end, which the longest lack."""
    trainer.calls = getattr(trainer, "calls", 0) + 1
    rng = np.random.default_rng(trainer.calls)
    end = trainer.processing_class.eos_token_id
    texts = [rng.integers(40, 90, rng.integers(11)).tolist() for _ in prompt_ids]
    return [text if len(text) == 10 else [*text, end] for text in texts], None


def with_tools(prompts, trainer):
    """Rollouts of which a tool has written every third token."""
    ids = [trainer.processing_class(prompt)["input_ids"] for prompt in prompts]
    completions, _ = sampled(trainer, ids)
    masks = [[int(t % 3 > 0) for t in range(len(text))] for text in completions]
    return {"prompt_ids": ids, "completion_ids": completions, "logprobs": None, "env_mask": masks}


class Gradients(TrainerCallback):
    def __init__(self):
        self.steps = []

    def on_pre_optimizer_step(self, args, state, control, model, **given):
        grads = [weight.grad for weight in model.parameters() if weight.requires_grad]
        self.steps.append(torch.cat([grad.flatten().clone() for grad in grads]))


LORA = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
CASES = {
    **{f"{loss}, β {beta:g}": (loss, {"beta": beta}) for loss in LOSSES for beta in (0.0, 0.04)},
    "LoRA": ("dapo", {"peft_config": LORA}),
    "LoRA, β .04": ("grpo", {"peft_config": LORA, "beta": 0.04}),
    "fresh LoRA": ("dapo", {"peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"])}),
    "truncated masked": ("dapo", {"mask_truncated_completions": True}),
    "truncated masked, β .04": ("grpo", {"mask_truncated_completions": True, "beta": 0.04}),
    "tools": ("dapo", {"rollout_func": with_tools}),
    "tools, β .04": ("bnpo", {"rollout_func": with_tools, "beta": 0.04}),
    "sequence level": ("grpo", {"importance_sampling_level": "sequence"}),
    "two iterations": ("dapo", {"num_iterations": 2, "max_steps": 4}),
    "two iterations, β .04": ("grpo", {"num_iterations": 2, "max_steps": 4, "beta": 0.04}),
    "several steps a generation": ("dapo", {"steps_per_generation": 6, "max_steps": 4}),
    "steps across generations": ("grpo", {"steps_per_generation": 3, "max_steps": 4}),
    "generation within a step": (
        "dapo",
        {"steps_per_generation": 2, "gradient_accumulation_steps": 4},
    ),
    "small micro-batches": (
        "dapo",
        {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 12},
    ),
    "one rollout at once": (
        "grpo",
        {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 12, "beta": 0.04},
    ),
    "off-policy mask": ("dapo", {"off_policy_mask_threshold": 0.5, "num_iterations": 2}),
    "entropy quantile": ("dapo", {"top_entropy_quantile": 0.4}),
    "entropy bonus": ("grpo", {"entropy_coef": 0.01}),
    "eager attention": ("dapo", {"attention": "eager"}),
    "Llama": ("dapo", {"family": "Llama"}),
    "chats": ("dapo", {"rows": CHATS, "beta": 0.04}),
}


def gradients(build, method, loss, settings, reward=mixed_or_flat):
    """The trainer after its training, and the gradient of each step."""
    settings = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 3} | settings
    given = {
        name: settings.pop(name) for name in ("peft_config", "rollout_func") if name in settings
    }
    attention = settings.pop("attention", None)
    rows = settings.pop("rows", ROWS)
    before = settings.pop("before", None)
    steps = Gradients()
    given |= {"callbacks": [steps]}
    # by SGD, whose steps are small: Adam divides rounding by the gradient, however small that is
    chosen = {"optim": "sgd", "learning_rate": 0.1, "max_grad_norm": 1e9, "shuffle_dataset": False}
    chosen |= {"loss_type": loss} | settings
    torch.manual_seed(3)  # adapters are random, and TRL 1.14 makes them before it seeds
    trainer = build(method, reward, rows, given=given, seed=3, **chosen)
    if attention:
        trainer.model.set_attn_implementation(attention)
    if before:
        before(trainer)
    trainer.train()
    return trainer, steps.steps


def assert_equal(found, wanted):
    assert len(found) == len(wanted) > 1
    assert max(float(one.norm()) for one in wanted) > 0
    for one, other in zip(found, wanted, strict=True):
        assert float((one - other).norm()) <= 1e-4 * float(other.norm())


@pytest.fixture
def build_sampled(build, monkeypatch):
    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", sampled)

    def made(method, *given, **settings):
        ours = {} if method is None else {"trim_batches": True}
        return build(method, *given, **ours | settings)

    return made


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_trl(name, build_sampled):
    loss, settings = CASES[name]
    _, wanted = gradients(build_sampled, None, loss, settings)
    ours, found = gradients(build_sampled, "grpo", loss, settings)
    assert_equal(found, wanted)
    logs = [row for row in ours.state.log_history if "gdro/batch_tokens" in row]
    shares = [row["gdro/computed_tokens"] / row["gdro/batch_tokens"] for row in logs]
    assert len(shares) == ours.args.max_steps
    # one rollout has nobody to share its prompt with
    assert min(shares) < 1 or name == "one rollout at once"


@pytest.mark.parametrize("has_unscored", [False, True])
def test_equal_rewards_whose_mean_is_not_exact_have_no_advantage(build_sampled, has_unscored):
    """The float32 mean of rewards of .3 is not .3: TRL takes a step along the rounding."""

    def shifted(completions, uid, **columns):
        rewards = [0.3 + value for value in mixed_or_flat(completions, uid)]
        if has_unscored:  # in flat groups, whose advantages stay 0
            rewards = [None if r % 8 == 7 and uid[r] % 3 else v for r, v in enumerate(rewards)]
        return rewards

    settings = {"num_generations": 8, "gradient_accumulation_steps": 4, "max_steps": 3}
    _, wanted = gradients(build_sampled, "grpo", "dapo", settings)
    trainer, found = gradients(build_sampled, "grpo", "dapo", settings, shifted)
    assert_equal(found, wanted)
    log = [row for row in trainer.state.log_history if "gdro/batch_tokens" in row]
    assert log[-1]["gdro/computed_tokens"] == 0  # no prompt of the last step is a third one


@pytest.mark.parametrize("method", ["rollout", "dapo"])
def test_gradients_of_unequal_groups(build_sampled, method):
    _, wanted = gradients(build_sampled, method, "dapo", {"max_steps": 4, "trim_batches": False})
    _, found = gradients(build_sampled, method, "dapo", {"max_steps": 4})
    assert_equal(found, wanted)


def test_without_savings_a_training_is_trls_to_the_bit(build_sampled):
    _, wanted = gradients(build_sampled, None, "dapo", {"beta": 0.04})
    _, found = gradients(build_sampled, "grpo", "dapo", {"beta": 0.04, "trim_batches": False})
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_the_proposal_to_trl_has_its_gradient(build_sampled):
    """The code in docs/trainer.md, as it is printed there."""
    text = (REPOSITORY / "docs" / "trainer.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names = {}
    exec(next(block for block in blocks if "SharedPromptTrainer" in block), names)
    for settings in ({}, {"beta": 0.04}):
        _, wanted = gradients(build_sampled, None, "grpo", settings)
        shared = {"change": names["SharedPromptTrainer"]}
        _, found = gradients(build_sampled, None, "grpo", settings | shared)
        assert_equal(found, wanted)


def with_dropout(trainer):
    trainer.model.model.layers[1].self_attn.attention_dropout = 0.1


APART = {  # what is said, and whether the gradient is TRL's
    "gradient checkpointing": ({"gradient_checkpointing": True}, "gradient_checkpointing", True),
    "a sliding window": ({"family": "Mistral"}, "cache", True),
    "LoRA's dropout": (
        {"peft_config": LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.5)},
        "dropout",
        False,
    ),
    "attention's dropout": ({"before": with_dropout}, "dropout", False),
    "a loss of routers": ({"family": "Qwen3Moe", "router": True}, "routers", True),
}


@pytest.mark.parametrize("name", APART)
def test_where_prompts_are_computed_for_each_rollout(
    name, build_sampled, folders, tmp_path, monkeypatch, caplog
):
    settings, reason, is_trls = APART[name]
    settings = {"beta": 0.04} | settings
    if settings.pop("router", False):
        experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
        experts["output_router_logits"] = True
        folder = save_tiny_model("Qwen3Moe", tmp_path / "experts", **experts)
        monkeypatch.setitem(folders, "Qwen3Moe", folder)
    _, wanted = gradients(build_sampled, None, "grpo", settings)
    with_gradient = []
    shared = prefixes.score_from_leads

    def watched(*given, **named):
        with_gradient.append(torch.is_grad_enabled())
        return shared(*given, **named)

    monkeypatch.setattr(prefixes, "score_from_leads", watched)
    _, found = gradients(build_sampled, "grpo", "grpo", settings)
    # without gradients nothing is checkpointed, and the reference has no dropout
    assert not any(with_gradient)
    is_shared_without = name in ("gradient checkpointing", "attention's dropout")
    assert bool(with_gradient) == is_shared_without
    if is_trls:
        assert_equal(found, wanted)
    said = [record.message for record in caplog.records if "trim_batches" in record.message]
    assert [reason in message for message in said if "prompts" in message] == [True]


def test_batches_with_images_stay_whole(build_sampled):
    trainer = build_sampled("grpo")
    inputs = {"advantages": torch.zeros(4), "num_images": [1, 1, 1, 1]}
    assert what_trains(trainer, inputs) == (inputs, 1.0)
    assert order_batches(trainer, [inputs, inputs]) == [inputs, inputs]
    assert ["images" in what for what in trainer.savings.said] == [True]


SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64}
OTHERS = {  # models that TRL trains and that do not fit
    "short convolutions": (
        transformers.Lfm2Config(**SIZES, layer_types=["conv", "full_attention"]),
        "cache",
    ),
    "a window in some layers": (transformers.Gemma3TextConfig(**SIZES), "cache"),
    "images": (transformers.LlavaConfig(text_config=transformers.LlamaConfig(**SIZES)), "images"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_models_whose_prompts_are_computed_for_each_rollout(name, build_sampled):
    config, reason = OTHERS[name]
    trainer = build_sampled("grpo")
    auto = "AutoModelForImageTextToText" if name == "images" else "AutoModelForCausalLM"
    with torch.device("meta"):
        model = getattr(transformers, auto).from_config(config)
    assert prefixes.why_apart(trainer, trainer.model) == ""
    assert reason in prefixes.why_always_apart(trainer, model)


OFF = {  # models whose texts change with the padding before them
    "learned positions": ({"family": "GPTBigCode"}, "not rotary"),
    "positions by length": (
        {
            "family": "Qwen3",
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
            "max_position_embeddings": 32,
        },
        "scaled by the length",
    ),
    "prompt tuning": (
        {"peft_config": PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)},
        "adapter adds tokens",
    ),
}


@pytest.mark.parametrize("name", OFF)
def test_where_all_of_it_is_off(name, build_sampled, folders, tmp_path, monkeypatch, caplog):
    settings, reason = OFF[name]
    model = {k: v for k, v in settings.items() if k != "peft_config"}
    adapter = {k: v for k, v in settings.items() if k == "peft_config"}
    family = model.pop("family", "Qwen3")
    monkeypatch.setitem(folders, "other", save_tiny_model(family, tmp_path / "other", **model))
    settings = {"beta": 0.04, "family": "other"} | adapter
    _, wanted = gradients(build_sampled, None, "grpo", settings)
    ours, found = gradients(build_sampled, "grpo", "grpo", settings)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    assert not ours.trims
    said = [record.message for record in caplog.records if "trim_batches" in record.message]
    assert [reason in message for message in said] == [True]


ORDERED = {  # what is said of the order
    "bnpo": ({"loss_type": "bnpo"}, "bnpo"),
    "entropy bonus": ({"entropy_coef": 0.01}, "entropy"),
    "entropy quantile": ({"top_entropy_quantile": 0.5}, "entropy"),
    "dapo": ({}, None),
}


@pytest.mark.parametrize("name", ORDERED)
def test_where_rows_keep_their_order(name, build_sampled, caplog):
    settings, reason = ORDERED[name]
    chosen = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 3, "max_steps": 3}
    trainer = build_sampled("grpo", mixed_or_flat, ROWS, **chosen | settings)
    trainer.train()
    said = [record.message for record in caplog.records if "trim_batches" in record.message]
    assert len(said) == (reason is not None)
    assert reason is None or (reason in said[0] and "order" in said[0])
    signals = [int((batch["advantages"] != 0).sum()) for batch in trainer._buffered_inputs]
    assert sum(signals) > 0
    if reason is None:
        assert signals == sorted(signals, reverse=True)
        assert signals[-1] == 0


@pytest.mark.parametrize("has_gradient", [True, False])
def test_a_way_that_differs_is_left(build_sampled, monkeypatch, caplog, has_gradient):
    """A model that forgets its cache, or cuts the gradient through it."""
    selected = transformers.DynamicCache.batch_select_indices

    def wrong(self, rows):
        selected(self, rows)
        for layer in self.layers:
            layer.values = layer.values.detach() if has_gradient else layer.values * 0

    monkeypatch.setattr(transformers.DynamicCache, "batch_select_indices", wrong)
    settings = {"beta": 0.04}
    _, wanted = gradients(build_sampled, None, "grpo", settings)
    ours, found = gradients(build_sampled, "grpo", "grpo", settings)
    assert_equal(found, wanted)
    assert ours.savings.differ
    assert sum("differ from TRL's" in record.message for record in caplog.records) == 1
