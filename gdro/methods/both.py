"""Both adversaries at once: Prompt-GDRO weights or draws the prompts, Rollout-GDRO divides the rollouts.

The paper evaluates each alone and leaves the combination open.
"""

from dataclasses import dataclass
from typing import ClassVar

from gdro.methods.base import register
from gdro.methods.prompt_gdro import PromptMethod
from gdro.methods.rollout_gdro import RolloutMethod


@register("both")
@dataclass(eq=False)
class Both(PromptMethod, RolloutMethod):
    """Takes the arguments of `PromptMethod` and of `RolloutMethod`; each game calls the next (super)."""

    presets: ClassVar = {"paper": PromptMethod.presets["paper"] | RolloutMethod.presets["paper"]}
    state = ("prompt_gdro", "rollout_gdro")
