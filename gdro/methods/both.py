"""Prompt-GDRO and Rollout-GDRO at once; the paper evaluates each alone and leaves this open."""

from typing import Any, ClassVar

from gdro import checks
from gdro.methods.prompt_gdro import PromptGDRO
from gdro.methods.rollout_gdro import RolloutGDRO
from gdro.registry import register


@register("both")
@checks.options
class Both(PromptGDRO, RolloutGDRO):
    """Both games of the paper (arXiv 2601.19280), with the arguments of both.

    The order of the two matters: `PromptGDRO` calls the next by super(), `RolloutGDRO` is the last.
    """

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": PromptGDRO.presets["paper"] | RolloutGDRO.presets["paper"]
    }
    state: ClassVar[tuple[str, ...]] = ("prompt_adversary", "rollout_adversary")
