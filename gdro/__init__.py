"""Group distributionally robust GRPO (Panaganti et al., arXiv 2601.19280) and beyond.

Difficulty bins, and methods that decide which prompts are trained on, with how many rollouts and
what weight. What is exported here needs numpy, scipy and pydantic; `gdro.trainer` brings it to TRL.
"""

from gdro import metrics, theory
from gdro.bins import DifficultyBins
from gdro.checks import options
from gdro.controller import GDROController, Plan
from gdro.groups import StaticGroups
from gdro.method import Method
from gdro.methods.pivotal import Pivotal
from gdro.methods.prompt_gdro import PromptAdversary, PromptGDRO
from gdro.methods.rollout_gdro import RolloutAdversary, RolloutGDRO
from gdro.registry import find_method, method_names, register
from gdro.rounds import next_plan, sample_in_rounds

__version__ = "0.3.0"
__all__ = [
    "DifficultyBins",
    "GDROController",
    "Method",
    "Pivotal",
    "Plan",
    "PromptAdversary",
    "PromptGDRO",
    "RolloutAdversary",
    "RolloutGDRO",
    "StaticGroups",
    "find_method",
    "method_names",
    "metrics",
    "next_plan",
    "options",
    "register",
    "sample_in_rounds",
    "theory",
]
