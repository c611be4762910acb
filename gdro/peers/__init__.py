"""Methods of other papers in the same interface, and oracles, by what they change.

Importing this package registers them all; `gdro.find_method` does so for a name not known yet.
"""

from gdro.peers import advantages, draws, replay, rollouts, rounds

__all__ = ["advantages", "draws", "replay", "rollouts", "rounds"]
