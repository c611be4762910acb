"""Learners small enough to play thousands of games at once.

A prompt has a few possible answers, one of them right, and the policy is a softmax over them. The logit
of the right answer is what the prompt's skill has learned plus what was learned of this very prompt:

    z_right = offset + √c · strength(skill) + √(1−c) · ⟨ε_right, θ⟩,      z_wrong = √(1−c) · ⟨ε_wrong, θ⟩

The strength of a skill carries over to prompts never trained on (`transfer` c says how much of a
lesson does); θ is a memory of `capacity` numbers in which prompts get in each other's way, because
the random directions ε overlap. Besides, every sampled answer comes in words of its own: its advantage
also moves θ in a random direction of length `noise`, which averages out over many rollouts and walks at
random over few. That is what makes a large step and a small n costly. Skills differ in how often they
come (`tail`) and how hard they start (`spread`).

GRPO samples answers and climbs with group-normalized advantages, as `gdro.trainer` does with plain
gradient steps on-policy; the controllers are those of `gdro`, with a leading axis of games, and
`gdro.toy.plain` plays one game with the very objects. All games of one seed see the same random
numbers whatever their method, so differences between methods are paired.

Axes: M games, S seeds, G columns (every game with every seed), C checkpoints, K skills, D prompts of the data
set, P prompts of a batch, A answers (0 is right), F memory, E held-out prompts, B bins, N arms. In what
`play` returns G is games, as given.
"""

from gdro.toy.engine import play
from gdro.toy.games import METHODS, Game, Results, World, even_edges

__all__ = ["METHODS", "Game", "Results", "World", "even_edges", "play"]
