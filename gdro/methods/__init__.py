"""The methods of this project, one file each; importing this package registers them all."""

from gdro.methods import (
    both,
    grpo,
    pivotal,
    pkpo,
    prompt_gdro,
    replay,
    rollout_gdro,
    rollout_prompts,
)

__all__ = [
    "both",
    "grpo",
    "pivotal",
    "pkpo",
    "prompt_gdro",
    "replay",
    "rollout_gdro",
    "rollout_prompts",
]
