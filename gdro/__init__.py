"""Group distributionally robust GRPO.

Difficulty bins and two adversaries for GRPO training: Prompt-GDRO reweights the bins, Rollout-GDRO
moves a fixed rollout budget between them (Panaganti et al., arXiv 2601.19280). What is exported here
needs numpy and scipy alone; `gdro.trainer` brings it to TRL.
"""

from gdro import metrics, theory
from gdro.bins import DifficultyBins
from gdro.controller import GDROController
from gdro.prompt_gdro import PromptGDRO
from gdro.rollout_gdro import RolloutGDRO

__version__ = "0.1.0"
__all__ = [
    "DifficultyBins",
    "GDROController",
    "PromptGDRO",
    "RolloutGDRO",
    "metrics",
    "theory",
]
