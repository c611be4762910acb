"""One toy game as a loop around a `GDROController`, for any method. Read it before the engine.

Axes: as in `gdro_lab.toy`, R rollouts.
"""

import numpy as np
from scipy.special import softmax

from gdro.bins import as_uids
from gdro_lab.toy.games import HELD_OUT, Game, draw_directions, draw_numbers, draw_offsets


class PlainGame:
    """One game with one seed."""

    def __init__(self, game: Game, seed: int) -> None:
        if game.method == "oracle" or game.score == "cumulative":
            raise ValueError(
                "game must have another method than 'oracle' and score 'ema'; use gdro_lab.toy.play"
            )
        world = game.world
        self.game, self.world, self.controller = game, world, game.controller(game.method, seed)
        self.offset_D, self.held_out_offset_E = draw_offsets(world, seed)
        sizes = (world.prompts, world.skills * HELD_OUT, world.answers, world.capacity)
        self.directions_ADF, self.held_out_AEF = draw_directions(*sizes, seed)
        self.skill_D, self.skill_E = world.skill_D, np.repeat(np.arange(world.skills), HELD_OUT)
        self.memory_F, self.strength_K = np.zeros(world.capacity), np.zeros(world.skills)
        self.rng, self.uids = np.random.default_rng((seed, 2)), as_uids(np.arange(world.prompts))
        self.steps_played = 0
        self.kept: list = []  # prompts, answers, advantages until the next gradient step

    def step(self) -> None:
        """Draw a batch, plan, sample, observe, learn."""
        game, controller = self.game, self.controller
        rollouts_RP, data_D, _, noise_F = (numbers[0] for numbers in draw_numbers(game, [self.rng]))
        batch = controller.draw(self.uids, game.batch)
        if batch is None:  # the next of the epoch's random order
            place = self.steps_played % (self.world.prompts // game.batch)
            if place == 0:
                self.epoch = data_D.argsort()
            batch = self.epoch[place * game.batch : (place + 1) * game.batch]

        plan = controller.plan(batch)
        p_AD = self.policy(self.directions_ADF, self.offset_D, self.skill_D)
        # inverse transform sampling: an answer is the number of rungs of the cumulated distribution
        # below it
        below_RPA = rollouts_RP[..., None] >= p_AD.cumsum(axis=0)[:-1, batch].T
        answers_PR = below_RPA.sum(axis=-1).T  # as many as any plan may ask for
        rollouts = plan.rollouts * 0
        further: np.ndarray | None = plan.rollouts
        while further is not None:  # a method with rounds sees the rewards and may ask for more
            rollouts = rollouts + further
            group_ids_R = np.repeat(np.arange(len(batch)), rollouts)
            answers_R = answers_PR[np.arange(answers_PR.shape[1]) < rollouts[:, None]]
            further = controller.extend(plan, group_ids_R, answers_R == 0)

        # 1 for wrong and 0 for correct: the default losses −A have mean 0 in every group, so no
        # difficulty.
        observed = controller.observe(
            plan, group_ids_R, answers_R == 0, losses=1.0 * (answers_R != 0)
        )
        self.kept.append((batch[group_ids_R], answers_R, observed.advantages))
        if observed.ready:
            self.learn(p_AD, noise_F)
            self.kept = []
        self.steps_played += 1

    def policy(
        self, directions_AXF: np.ndarray, offset_X: np.ndarray, skill_X: np.ndarray
    ) -> np.ndarray:
        """Probabilities of the answers to prompts X, (A, X)."""
        z_AX = np.sqrt(1 - self.world.transfer) * (directions_AXF @ self.memory_F)
        z_AX[0] += offset_X + np.sqrt(self.world.transfer) * self.strength_K[skill_X]
        return softmax(z_AX, axis=0)

    def learn(self, p_AD: np.ndarray, noise_F: np.ndarray) -> None:
        """One gradient step on the mean over rollouts of A_j log π(answer_j)."""
        world, game = self.world, self.game
        prompts_R, answers_R, advantages_R = map(np.concatenate, zip(*self.kept, strict=True))
        pulls_R = game.step_size * advantages_R / len(advantages_R)
        pull_AD = np.zeros(p_AD.shape)
        np.add.at(pull_AD, (answers_R, prompts_R), pulls_R)
        pull_AD -= pull_AD.sum(axis=0) * p_AD
        self.memory_F += np.sqrt(1 - world.transfer) * np.einsum(
            "ad,adf->f", pull_AD, self.directions_ADF
        )
        # the noise: Gaussian directions of all rollouts add up to one, with the sum of their
        # variances
        self.memory_F += world.noise * np.sqrt(pulls_R @ pulls_R / world.capacity) * noise_F
        self.strength_K += np.sqrt(world.transfer) * np.bincount(self.skill_D, pull_AD[0])

    def measure(self) -> tuple[np.ndarray, ...]:
        """As `Table.measure`, without q."""
        p_E = self.policy(self.held_out_AEF, self.held_out_offset_E, self.skill_E)[0]
        p_KE = p_E.reshape(-1, HELD_OUT)
        return (
            p_KE.mean(axis=1)[None],
            (1 - (1 - p_KE) ** 8).mean(axis=1)[None],
            np.full((1, 1), np.nan),
        )
