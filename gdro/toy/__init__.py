"""Learners small enough to play thousands of games at once.

A prompt has a few possible answers, one of them correct, and the policy is a softmax over them:

    z_correct = offset + √c · strength(skill) + √(1−c) · ⟨ε_correct, θ⟩,      z_wrong = √(1−c) · ⟨ε_wrong, θ⟩

The strength of a skill carries over to prompts never trained on (`transfer` c is the part of a lesson that
does); θ is a memory of `capacity` numbers in which prompts interfere, because the random directions ε
overlap. Every sampled answer also has words of its own: its advantage moves θ in a random direction of
length `noise`, which averages out over many rollouts and makes a large step and a small n costly. Skills
differ in how often they come (`tail`) and how hard they start (`spread`).

`play` plays the methods in `METHODS` as arrays, thousands of games at once on the pure functions of
`gdro.arms` and `gdro.methods`, and any other `gdro.Method` one game at a time with a `GDROController`.
All games of one seed see the same random numbers whatever their method, so differences are paired.

Axes: M games, S seeds, G columns (every game with every seed; in results G is games), C checkpoints,
K skills, D prompts of the data set, P prompts of a batch, A answers (0 is correct), F memory, E held-out
prompts, B bins, N arms.
"""

from gdro.toy.games import METHODS, Game, Results, World
from gdro.toy.playing import play

__all__ = ["METHODS", "Game", "Results", "World", "play"]
