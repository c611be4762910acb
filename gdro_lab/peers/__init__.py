"""Methods of other papers in the same interface, and oracles, by what they change.

Importing this package registers them all; `gdro` finds it by the entry point `gdro.methods`.
"""

from gdro_lab.peers import advantages, composed, draws, replay, rollouts, rounds

__all__ = ["advantages", "composed", "draws", "replay", "rollouts", "rounds"]
