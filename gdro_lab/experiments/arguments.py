"""A variant's settings as TRL's arguments, and what is refused of them before anything is made."""

from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

import torch

from gdro.checks import Refusal, check
from gdro_lab.experiments.profile import Profile
from gdro_lab.machine import arithmetic

if TYPE_CHECKING:  # Unsloth comes before TRL
    from gdro.trainer import GDROConfig

NOT_RESUMED = {"sync_ref_model", "save_only_model", "ignore_data_skip", "auto_find_batch_size"}
"""Options of TRL with which a run that was killed would not resume to the same weights."""
UNUSED = {
    "deepspeed": "shard by `launch: {config: fsdp2}`",
    # a run would depend on the hub, which is asked before the first step
    "push_to_hub": "upload the folder of the model when it is trained",
}
"""Options of TRL that a profile may not name, and what to do in place of them."""
OURS = {"prompts_per_step", "updates_per_step", "eval_prompts"}
"""Fields of `train` that TRL does not know."""


class Lengths(NamedTuple):
    """The most tokens of a training's texts."""

    prompt: int
    completion: int


def training_arguments(
    profile: Profile,
    variant: str,
    seed: int,
    folder: str | Path,
    lengths: Lengths,
    processes: int = 1,
    **changes: Any,
) -> "GDROConfig":
    """A variant's GDROConfig, with `changes`; Refusal for unknown fields and refused values."""
    from transformers import HfArgumentParser

    from gdro.trainer import GDROConfig
    from gdro.trl.config import check_training, make_controller

    chosen = profile.train_of(variant).model_dump(exclude=OURS)
    fixed = _fixed_arguments(profile, variant, seed, folder, lengths, processes)
    # a profile may name this one itself; `local_batch` has used its value already
    chosen["per_device_train_batch_size"] = fixed.pop("per_device_train_batch_size")
    _check_options(chosen, fixed, get_type_hints(GDROConfig))
    defaults = _default_arguments(profile, variant, lengths, processes)
    options = defaults | chosen | fixed | changes
    args = HfArgumentParser(GDROConfig).parse_dict(options)[0]  # type: ignore[arg-type]
    args._n_gpu = min(args.n_gpu, 1)  # as transformers does where one process has one GPU
    # the data with these columns is not read yet; bins change nothing checked here
    plain = copy(args)
    plain.group_column = None
    plain.pass_rate_column = None
    check_training(args, make_controller(plain))
    return args


def _fixed_arguments(
    profile: Profile,
    variant: str,
    seed: int,
    folder: str | Path,
    lengths: Lengths,
    processes: int,
) -> dict[str, Any]:
    """What the rest of the profile determines: `train` may not name these."""
    chosen = profile.variant(variant)
    settings = profile.train_of(variant)
    micro_batch, accumulated = settings.local_batch(processes)
    return {
        "output_dir": str(folder),
        "seed": seed,
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": accumulated,
        "steps_per_generation": accumulated * settings.updates_per_step,
        "max_completion_length": lengths.completion,
        "gradient_checkpointing": profile.model_of(variant).gradient_checkpointing,
        "gdro_method": chosen.method,
        "gdro_preset": chosen.preset,
        "gdro_options": chosen.options,
        "group_column": chosen.groups,
        "save_strategy": "steps",
        # the last checkpoint is evaluated: the best of noisy ones looks too good
        "load_best_model_at_end": False,
    }


def _default_arguments(
    profile: Profile, variant: str, lengths: Lengths, processes: int
) -> dict[str, Any]:
    """What `train` may override."""
    on_gpu = torch.cuda.is_available()
    is_pretrained = profile.model_of(variant).source is not None
    uses_vllm = profile.train_of(variant).use_vllm
    return {
        "save_total_limit": 2,
        "report_to": "none",
        "trim_batches": True,  # the same savings for every method, so that their seconds compare
        "disable_tqdm": True,
        "use_cpu": not on_gpu,
        "bf16": arithmetic(pretrained=is_pretrained) == "bfloat16",
        "ddp_backend": None if on_gpu or processes == 1 else "gloo",
        "ddp_find_unused_parameters": False,
        "vllm_max_model_length": sum(lengths) if uses_vllm else None,
    }


def _check_options(chosen: dict[str, Any], fixed: dict[str, Any], types: dict[str, Any]) -> None:
    """Refuse options of `train` that are set elsewhere, do not resume, or have another type."""
    for name, value in chosen.items():
        if name in {*fixed, *NOT_RESUMED, *UNUSED}:
            why = UNUSED.get(name, "the rest of the profile determines it, or it would not resume")
            raise Refusal(f"{name} must be left out: {why}, got {value!r}")
        if name in types:  # TRL's parser checks no types: a text for a number would fail late
            check(name, value, types[name])
