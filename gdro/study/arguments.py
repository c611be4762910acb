"""From a variant's training settings to a GDROConfig, by TRL's own parser."""

from pathlib import Path
from typing import TYPE_CHECKING, get_type_hints

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError

from gdro.study.profiles import Profile
from gdro.training.resumable import check_resumable

if TYPE_CHECKING:
    from gdro.trainer import GDROConfig

STRICT = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)


def training_arguments(
    profile: Profile, variant: str, seed: int, folder: str | Path, lengths: tuple[int, int], world: int = 1
) -> "GDROConfig":
    """Return a variant's GDROConfig; ValueError for unknown fields and refused values.

    lengths: the most tokens of a prompt and of a completion. world: the number of processes that train.
    """
    from transformers import HfArgumentParser

    from gdro.trainer import GDROConfig, check_training

    chosen, settings, on_gpu = profile.variants[variant], profile.train_of(variant), torch.cuda.is_available()
    micro_batch, accumulated = settings.local_batch(world)
    ours = {  # what the rest of the profile determines: `train` may not name these
        "output_dir": str(folder),
        "seed": seed,
        "gradient_accumulation_steps": accumulated,
        "steps_per_generation": accumulated * settings.updates_per_step,
        "max_completion_length": lengths[1],
        "gradient_checkpointing": profile.model_of(variant).gradient_checkpointing,
        "gdro_method": chosen.method,
        "gdro_preset": chosen.preset,
        "gdro_options": chosen.options,
        "group_column": chosen.groups,
        "save_strategy": "steps",
        "load_best_model_at_end": False,  # the last is evaluated: the best of noisy ones looks too good
    }
    defaults = {  # what `train` may override
        "save_total_limit": 2,
        "report_to": "none",
        "trim_batches": True,  # the same savings for every method, so that their seconds compare
        "disable_tqdm": True,
        "use_cpu": not on_gpu,
        "bf16": on_gpu,
        "ddp_backend": None if on_gpu or world == 1 else "gloo",
        "ddp_find_unused_parameters": False,
        "vllm_max_model_length": sum(lengths) if settings.use_vllm else None,
    }
    given = settings.model_dump(exclude={"prompts_per_step", "updates_per_step", "eval_prompts"})
    given["per_device_train_batch_size"] = micro_batch
    types = get_type_hints(GDROConfig)
    try:
        for name, value in given.items():
            if name in ours:
                raise ValueError(f"{name} follows from the rest of the profile; leave it out")
            # TRL's parser checks no types: a text in place of a number would fail late, or not at all
            if name in types:
                TypeAdapter(types[name], config=STRICT).validate_python(value)
            check_resumable(name, value)
        args = HfArgumentParser(GDROConfig).parse_dict(defaults | given | ours)[0]
        args._n_gpu = min(args.n_gpu, 1)  # as transformers does itself where one process has one GPU
        check_training(args, profile.controller_of(variant))
        return args
    except ValidationError as error:
        why = error.errors()[0]["msg"]
        raise ValueError(f"correct train of variant {variant!r}: {name} is {value!r}: {why}") from error
    except (ValueError, TypeError) as error:
        raise ValueError(f"correct train of variant {variant!r}: {error}") from error
