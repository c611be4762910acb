"""GRPO: prompts as they come, rollouts and weights even. Bins are kept for the record only."""

from gdro.methods.base import Method, register


@register("grpo")
class GRPO(Method):
    """Every default of `Method`, unchanged."""
