"""A training rehearsed: all objects of TRL, transformers and peft are made, and one step is taken.

So each of them refuses its own values, before anything of the training is written. A stand-in takes
the model's place, three rows the data's; it takes half a second.
"""

import io
import os
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch

from gdro.checks import Refusal
from gdro.trl.models import LORA_DEFAULTS
from gdro_lab.experiments.arguments import Lengths, training_arguments
from gdro_lab.experiments.profile import Profile
from gdro_lab.failures import at_the_door
from gdro_lab.tasks.base import character_tokenizer
from gdro_lab.tasks.gguf import is_gguf
from gdro_lab.tasks.pretrained import PACKAGED
from gdro_lab.tasks.tiny import TINY_CONFIGS

if TYPE_CHECKING:
    from transformers import PretrainedConfig

PROMPTS = 2
# engines and kernels, which take longer to start than the step; trackers; columns of the data,
# which is not read yet; and the method, so that an error in one of your own ends its own job alone
LEFT_OUT: dict[str, Any] = {
    "gdro_method": "grpo",
    "gdro_preset": "default",
    "gdro_options": None,
    "use_vllm": False,
    "use_liger_kernel": False,
    "torch_compile": False,
    "report_to": "none",
    "group_column": None,
}


def check_arguments(profile: Profile, variants: Sequence[str]) -> None:
    """Refuse (Refusal) what TRL, peft or transformers would refuse of these variants."""
    from transformers.integrations.integration_utils import get_reporting_integration_callbacks

    for name in variants:
        try:
            with at_the_door():
                args = training_arguments(profile, name, 0, "unused", Lengths(1, 1))
                for tracker in get_reporting_integration_callbacks(args.report_to):
                    tracker()  # says whether it is installed
                _check_model(profile, name)
                if _can_rehearse(profile, name):
                    rehearse(profile, name)
        except Refusal as error:
            raise Refusal(f"variant {name!r}: {error}") from error


def _can_rehearse(profile: Profile, variant: str) -> bool:
    """Whether this process may train: Unsloth has a trainer of its own."""
    is_unsloth = profile.model_of(variant).is_unsloth
    was_launched = "WORLD_SIZE" in os.environ  # by a process that has rehearsed
    # or it would keep a part of the GPU, while those that it launches train
    leaves_gpu = profile.launch.processes > 1 and torch.cuda.is_available()
    return not (is_unsloth or was_launched or leaves_gpu)


def _check_model(profile: Profile, variant: str) -> None:
    """Refuse what transformers do not take, or LoRA on the real model's modules.

    The model is made without its weights.
    """
    import peft
    from transformers import AutoModelForCausalLM

    model = profile.model_of(variant)
    config = _config_of(profile, model.source)
    if config is None or model.is_unsloth:  # with its own model classes
        return
    attention = model.attn_implementation
    if attention is not None and "/" in attention:  # a kernel of the hub
        attention = None
    with torch.device("meta"):
        bare = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    if model.kind == "lora":
        options = {"target_modules": "all-linear"} | LORA_DEFAULTS | dict(model.lora or {})
        lora = peft.LoraConfig(task_type="CAUSAL_LM", **options)
        # "pissa" and its like compute the first weights from the model's, which are not there
        if not isinstance(lora.init_lora_weights, str):
            with torch.device("meta"):
                peft.get_peft_model(bare, lora)


def _config_of(profile: Profile, source: str | None) -> "PretrainedConfig | None":
    """The configuration of the model to train; None where it is still to be unpacked."""
    from transformers import AutoConfig, Qwen3Config

    if source is None:
        return Qwen3Config(**TINY_CONFIGS[profile.base.size], vocab_size=16)
    if source in PACKAGED or is_gguf(source):
        return None
    with at_the_door(f"model.source {source!r} cannot be loaded"):
        return AutoConfig.from_pretrained(source)


def rehearse(profile: Profile, variant: str) -> None:
    """Take one step with a variant's arguments, in a folder that is then removed."""
    import transformers
    from datasets import Dataset

    from gdro.trainer import GDROTrainer

    rollouts = PROMPTS * profile.train_of(variant).num_generations
    sizes: dict[str, Any] = {
        "per_device_train_batch_size": rollouts,
        "gradient_accumulation_steps": 1,
        "steps_per_generation": 1,
        "max_steps": 1,
        "save_strategy": "no",
    }
    rows = Dataset.from_list([{"prompt": f"{i}=", "uid": i, "answer": "1"} for i in range(3)])
    silence = io.StringIO()
    with TemporaryDirectory() as folder, redirect_stdout(silence), redirect_stderr(silence):
        tokenizer = character_tokenizer("0123456789=")
        small = transformers.Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            intermediate_size=16,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        transformers.Qwen3ForCausalLM(small).save_pretrained(folder)
        args = training_arguments(
            profile, variant, 0, Path(folder, "run"), Lengths(2, 2), **sizes, **LEFT_OUT
        )
        trainer = GDROTrainer(
            # by its folder, from which TRL loads a reference model, too
            transformers.Qwen3ForCausalLM.from_pretrained(folder),
            half_right,
            args=args,
            train_dataset=rows,
            eval_dataset=None if args.eval_strategy == "no" else rows,
            processing_class=tokenizer,
        )
        trainer.leaves_page = False
        trainer.train()


def half_right(completions: Sequence[Any], answer: Sequence[str], **columns: Any) -> list[float]:
    """Half of the completions are correct; like a real reward, it needs the column `answer`."""
    return [float(place % 2) for place, _ in enumerate(answer)]
