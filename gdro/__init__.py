"""Group distributionally robust GRPO.

Difficulty bins and methods that decide which prompts are trained on, with how many rollouts and what weight
(Panaganti et al., arXiv 2601.19280, and beyond). What is exported here needs numpy and scipy alone;
`gdro.trainer` brings it to TRL.
"""

from gdro.controller import GDROController, Plan
from gdro.core import metrics, theory
from gdro.core.bins import DifficultyBins
from gdro.core.groups import StaticGroups
from gdro.methods import METHODS, Method, register
from gdro.methods.prompt_gdro import PromptGDRO
from gdro.methods.rollout_gdro import RolloutGDRO

__version__ = "0.2.0"
__all__ = [
    "METHODS",
    "DifficultyBins",
    "GDROController",
    "Method",
    "Plan",
    "PromptGDRO",
    "RolloutGDRO",
    "StaticGroups",
    "metrics",
    "register",
    "theory",
]
