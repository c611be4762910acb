"""Learners small enough to play thousands of games.

A prompt has a few possible answers, one of them correct, and the policy is a softmax over them:

    z_correct = offset + √c · strength(skill) + √(1−c) · ⟨d_correct, θ⟩
    z_wrong   = √(1−c) · ⟨d_wrong, θ⟩

The strength of a skill carries over to prompts never trained on (`transfer` c is the part of an
update that does); θ is a memory of `capacity` numbers in which prompts interfere, because the
random directions d overlap. Every sampled answer also adds gradient noise: its advantage moves θ in
a random direction of norm `noise`. Skills differ in how frequent they are (`tail`) and how hard
they are at first (`spread`).

`play` plays any `gdro.Method` with a `GDROController`. All games of a seed see the same random
numbers whatever their method, so differences are paired.

Axes: G games, S seeds, C checkpoints, K skills, D prompts of the data set, P prompts of a batch, R
rollouts, A answers (0 is correct), F memory, E held-out prompts, B bins.
"""

from gdro_lab.toy.games import TOY_METHODS, Game, World
from gdro_lab.toy.player import Player, Results, play

__all__ = ["TOY_METHODS", "Game", "Player", "Results", "World", "play"]
