"""The methods of this project, one file each; importing this package registers them all."""

from gdro.methods import both, grpo, pivotal, prompt_gdro, replay, rollout_gdro

__all__ = ["both", "grpo", "pivotal", "prompt_gdro", "replay", "rollout_gdro"]
