"""One toy game as a loop around a `GDROController`: what an own method plays, to be read beside the engine.

Axes: as in `gdro.toy`.
"""

import numpy as np

from gdro.beliefs import as_uids
from gdro.toy.games import HELD_OUT, Game, draw_directions, draw_numbers, draw_offsets


class PlainGame:
    """One game with one seed."""

    def __init__(self, game: Game, seed: int) -> None:
        if game.method == "oracle" or game.score == "cumulative":
            raise ValueError("game must have another method than 'oracle' and score 'ema'; use gdro.toy.play")
        world = game.world
        self.game, self.world, self.controller = game, world, game.controller(game.method, seed)
        self.offset_D, self.held_out_offset_E = draw_offsets(world, seed)
        sizes = (world.prompts, world.skills * HELD_OUT, world.answers, world.capacity)
        self.directions_ADF, self.held_out_AEF = draw_directions(*sizes, seed)
        self.skill_D, self.skill_E = world.skill_D, np.repeat(np.arange(world.skills), HELD_OUT)
        self.memory_F, self.strength_K = np.zeros(world.capacity), np.zeros(world.skills)
        self.rng, self.uids = np.random.default_rng((seed, 2)), as_uids(np.arange(world.prompts))
        self.steps_played = 0
        self.kept: list = []  # (prompt, answers and advantages of its rollouts) until the next gradient step

    def step(self) -> None:
        """Draw a batch, plan, sample, observe, learn."""
        game, controller = self.game, self.controller
        rollouts_RP, data_D, _, words_F = (numbers[0] for numbers in draw_numbers(game, [self.rng]))
        batch = controller.draw(self.uids, game.batch)
        if batch is None:  # the next of the epoch's random order
            place = self.steps_played % (self.world.prompts // game.batch)
            if place == 0:
                self.epoch = data_D.argsort()
            batch = self.epoch[place * game.batch : (place + 1) * game.batch]

        plan = controller.plan(batch)
        ladders = [self.policy(self.directions_ADF[:, d], self.offset_D[d], self.skill_D[d]) for d in batch]
        rollouts = plan.rollouts * 0
        further: np.ndarray | None = plan.rollouts
        while further is not None:  # a method with rounds sees the rewards and may ask for more
            rollouts = rollouts + further
            answers = [
                np.searchsorted(p.cumsum()[:-1], rollouts_RP[:n, i], side="right")
                for i, (p, n) in enumerate(zip(ladders, rollouts, strict=True))
            ]
            group_ids_R, rewards_R = np.repeat(np.arange(len(batch)), rollouts), np.concatenate(answers) == 0
            further = controller.extend(plan, group_ids_R, rewards_R)

        observed = controller.observe(plan, group_ids_R, rewards_R, losses=1.0 - rewards_R)
        advantages = np.split(observed.advantages, rollouts.cumsum()[:-1])
        self.kept += zip(batch.tolist(), answers, advantages, strict=True)
        if observed.ready:
            self.learn(words_F)
            self.kept = []
        self.steps_played += 1

    def policy(self, directions_AF: np.ndarray, offset: float, skill: int | np.integer) -> np.ndarray:
        """Probabilities of the answers, (A,)."""
        z_A = np.sqrt(1 - self.world.transfer) * (directions_AF @ self.memory_F)
        z_A[0] += offset + np.sqrt(self.world.transfer) * self.strength_K[skill]
        odds_A = np.exp(z_A - z_A.max())
        return odds_A / odds_A.sum()

    def learn(self, words_F: np.ndarray) -> None:
        """One gradient step on the mean over rollouts of A_j log π(answer_j)."""
        world, game = self.world, self.game
        step_F, gained_K, variance = np.zeros(world.capacity), np.zeros(world.skills), 0.0
        for d, answers, advantages in self.kept:
            pulls = game.step_size * advantages / (game.batch * game.mean_rollouts)
            if not pulls.any():
                continue
            p_A = self.policy(self.directions_ADF[:, d], self.offset_D[d], self.skill_D[d])
            pull_A = np.bincount(answers, pulls, world.answers) - pulls.sum() * p_A
            step_F += np.sqrt(1 - world.transfer) * (pull_A @ self.directions_ADF[:, d])
            gained_K[self.skill_D[d]] += np.sqrt(world.transfer) * pull_A[0]
            variance += pulls @ pulls  # of the answers' own words
        self.memory_F += step_F + world.noise * np.sqrt(variance / world.capacity) * words_F
        self.strength_K += gained_K

    def measure(self) -> tuple[np.ndarray, ...]:
        """As `Table.measure`, without q."""
        prompts = zip(self.held_out_AEF.swapaxes(0, 1), self.held_out_offset_E, self.skill_E, strict=True)
        p_KE = np.array([self.policy(*prompt)[0] for prompt in prompts]).reshape(-1, HELD_OUT)
        return p_KE.mean(axis=1)[None], (1 - (1 - p_KE) ** 8).mean(axis=1)[None], np.full((1, 1), np.nan)
