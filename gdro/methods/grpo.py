"""GRPO, to which every other method is compared."""

from gdro.method import Method
from gdro.registry import register


@register("grpo")
class GRPO(Method):
    """Every default of `Method`, unchanged: prompts as they come, rollouts and weights even."""
