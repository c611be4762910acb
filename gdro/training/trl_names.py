"""What `gdro.trainer` overrides or reads of TRL and transformers without their documentation promising it.

All such names are here, each with the arguments that our calls pass on. They are checked when `gdro.trainer`
is imported, so that a TRL without them is refused at once, and not in the middle of a run.
"""

import inspect
from typing import Any

SUPPORTED = ">=1.14.2,<1.17,!=1.15.0"  # as in pyproject.toml

# methods of GRPOTrainer: what our calls give by position, and by name
CALLS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # TRL's
    "_generate_and_score_completions": (("inputs",), ()),
    "_generate": (("prompts",), ()),  # returns what `generated` makes
    "_generate_single_turn": (("prompt_ids", "images", "multimodal_fields", "num_generations"), ()),
    "_calculate_rewards": (("inputs", "prompts", "completions", "completion_ids_list"), ()),
    "_get_per_token_logps_and_entropies": (
        ("model", "input_ids", "attention_mask", "logits_to_keep"),
        ("batch_size",),
    ),
    "_compute_loss": (("model", "inputs"), ()),
    "_get_train_sampler": (("dataset",), ()),
    # transformers'
    "_get_dataloader": (("dataset",), ("description", "batch_size", "sampler_fn", "is_training")),
    "_save_checkpoint": (("model", "trial"), ()),
    "_load_optimizer_and_scheduler": (("checkpoint",), ()),
    "_load_from_checkpoint": (("resume_from_checkpoint",), ()),
    "_get_output_dir": ((), ("trial",)),
}
# attributes that a GRPOTrainer has once it is made; our `_tag_names` replaces one of the class
ATTRIBUTES = (
    "_metrics",  # {"train": {name: values until the next log}}
    "_logs",  # the last generation batch, for the table of completions
    "_pending_extra_logs",  # columns for that table from the reward functions
    "_step",  # micro-steps done
    "_entropy_bonus_enabled",
    "aux_loss_enabled",
    "top_entropy_quantile",
)


def rollouts_of(output: tuple) -> list[tuple]:
    """What `_generate` returned, by rollout: prompt ids, completion ids, completion, log-probs or None."""
    prompt_ids, completion_ids, _, completions, logprobs, *_ = output
    logprobs = logprobs or [None] * len(prompt_ids)
    return list(zip(prompt_ids, completion_ids, completions, logprobs, strict=True))


def generated(rollouts: list[tuple], tool_mask: list | None = None) -> tuple:
    """What `_generate` returns for such rollouts, as text without tools."""
    prompt_ids, completion_ids, completions, logprobs = map(list, zip(*rollouts, strict=True))
    known = None if logprobs[0] is None else logprobs
    return prompt_ids, completion_ids, tool_mask, completions, known, {}, None, []


def check_calls(trainer_class: type) -> None:
    """ImportError where a GRPOTrainer lacks a method, or has it with other arguments."""
    for name, (positional, named) in CALLS.items():
        method = getattr(trainer_class, name, None)
        if method is None:
            raise ImportError(f"GRPOTrainer has no {name}: {_remedy()}")
        try:
            inspect.signature(method).bind(None, *positional, **dict.fromkeys(named))
        except TypeError as error:
            raise ImportError(
                f"GRPOTrainer.{name}{inspect.signature(method)}: {error}; {_remedy()}"
            ) from None
    if not hasattr(trainer_class, "_tag_names"):
        raise ImportError(f"GRPOTrainer has no _tag_names: {_remedy()}")


def check_attributes(trainer: Any) -> None:
    """ImportError where a GRPOTrainer, once made, lacks an attribute."""
    for name in ATTRIBUTES:
        if not hasattr(trainer, name):
            raise ImportError(f"GRPOTrainer has no {name}: {_remedy()}")


def _remedy() -> str:
    import trl

    return f"gdro.trainer works with TRL {SUPPORTED}, this is {trl.__version__}; install 'trl{SUPPORTED}'"
