"""One toy game as a loop around a `GDROController`, and `play`, which measures many.

Axes: as in `gdro_lab.toy`.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from scipy.special import softmax

from gdro.checks import check_array
from gdro.rounds import sample_in_rounds
from gdro.uids import as_uids
from gdro_lab.toy.games import HELD_OUT, Game, draw_directions, draw_numbers, draw_offsets


class Results(NamedTuple):
    """What `play` measured; leading axes games (in the order given), seeds, checkpoints.

    accuracy, pass_at_8: (G, S, C, K), exact probabilities on held-out prompts, mean by skill.
    probability: (G, S, C, B), q of Prompt-GDRO; NaN where a game has none or fewer bins.
    share: (G, K) of the training prompts.
    """

    accuracy: np.ndarray
    pass_at_8: np.ndarray
    probability: np.ndarray
    share: np.ndarray


def play(games: Game | Iterable[Game], seeds: Iterable[int], checkpoints: Iterable[int]) -> Results:
    """Play every game with every seed, equal games once, and measure at the given steps.

    Args:
        games: they may differ in anything but the number of skills.
        seeds: integers ≥ 0.
        checkpoints: increasing steps ≥ 0, the last is the length of the games.
    """
    games = [games] if isinstance(games, Game) else list(games)
    seeds = list(seeds)
    steps = check_array("checkpoints", list(checkpoints), low=0, whole=True)
    check_array("distances of checkpoints", np.diff(steps), low=1)
    skills = games[0].world.skills
    check_array("skills of the games", [game.world.skills for game in games], None, skills, skills)
    number = {game: i for i, game in enumerate(dict.fromkeys(games))}
    shape = (len(number), len(seeds), len(steps))
    most_bins = max([skills] + [game.num_bins for game in games])
    measured = [np.full((*shape, width), np.nan) for width in (skills, skills, most_bins)]
    for game, g in number.items():
        for s, seed in enumerate(seeds):
            player = Player(game, seed)
            for c, step in enumerate(steps):
                while player.steps_played < step:
                    player.step()
                for result, values in zip(measured, player.measure(), strict=True):
                    result[g, s, c, : len(values)] = values
    place_G = [number[game] for game in games]
    shares_GK = [np.bincount(game.world.skill_D) / game.world.prompts for game in games]
    accuracy, pass_at_8, probability = (result[place_G] for result in measured)
    return Results(accuracy, pass_at_8, probability, np.stack(shares_GK))


class Player:
    """One game with one seed."""

    def __init__(self, game: Game, seed: int) -> None:
        world = game.world
        self.game = game
        self.world = world
        self.controller = game.controller(game.method, seed)
        self.offset_D, self.held_out_offset_E = draw_offsets(world, seed)
        self.directions_ADF, self.held_out_AEF = draw_directions(
            world.prompts, world.skills * HELD_OUT, world.answers, world.capacity, seed
        )
        self.skill_D = world.skill_D
        self.skill_E = np.repeat(np.arange(world.skills), HELD_OUT)
        self.memory_F = np.zeros(world.capacity)
        self.strength_K = np.zeros(world.skills)
        self.rng = np.random.default_rng((seed, 2))
        self.uids = as_uids(np.arange(world.prompts))
        self.steps_played = 0
        # prompts, answers, advantages until the next gradient step
        self.kept: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def step(self) -> None:
        """Draw a batch, plan, sample, observe, learn."""
        game = self.game
        controller = self.controller
        rollouts_RP, data_D, slots_P, noise_F = draw_numbers(game, self.rng)
        p_AD = self.policy(self.directions_ADF, self.offset_D, self.skill_D)
        if hasattr(controller.method, "inform"):
            controller.method.inform(data_D, slots_P, p_AD[0])
        drawn_P = controller.draw(self.uids, game.batch)
        if drawn_P is None:  # the next of the epoch's random order
            place = self.steps_played % (self.world.prompts // game.batch)
            if place == 0:
                self.epoch = data_D.argsort()
            drawn_P = self.epoch[place * game.batch : (place + 1) * game.batch]

        plan = controller.plan(drawn_P)
        # inverse transform sampling: an answer is the number of cumulated probabilities below it
        below_RPA = rollouts_RP[..., None] >= p_AD.cumsum(axis=0)[:-1, drawn_P].T
        answers_PR = below_RPA.sum(axis=-1).T  # as many as any plan may ask for
        used_P = np.zeros(game.batch, np.int64)
        rounds: list[np.ndarray] = []  # answers of each

        def sample_and_reward(group_ids_R: np.ndarray) -> np.ndarray:
            """The next answers of these prompts, in increasing order; reward 1 if correct."""
            # among those of the prompt in this round
            turn_R = np.arange(len(group_ids_R)) - group_ids_R.searchsorted(group_ids_R)
            rounds.append(answers_PR[group_ids_R, used_P[group_ids_R] + turn_R])
            np.add.at(used_P, group_ids_R, 1)
            return 1.0 * (rounds[-1] == 0)

        samples = sample_in_rounds(controller, plan, sample_and_reward)
        answers_R = np.concatenate(rounds)
        observed = controller.observe(
            plan,
            samples.group_ids_R,
            samples.rewards_R,
            # 1 for wrong and 0 for correct: the default losses −A have mean 0 in every group
            losses=1.0 * (answers_R != 0),
        )
        self.kept.append((drawn_P[samples.group_ids_R], answers_R, observed.advantages))
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
        world = self.world
        prompts_R, answers_R, advantages_R = map(np.concatenate, zip(*self.kept, strict=True))
        pulls_R = self.game.step_size * advantages_R / len(advantages_R)
        pull_AD = np.zeros(p_AD.shape)
        np.add.at(pull_AD, (answers_R, prompts_R), pulls_R)
        pull_AD -= pull_AD.sum(axis=0) * p_AD
        self.memory_F += np.sqrt(1 - world.transfer) * np.einsum(
            "ad,adf->f", pull_AD, self.directions_ADF
        )
        # Gaussian directions of all rollouts add up to one, with the sum of their variances
        self.memory_F += world.noise * np.sqrt(pulls_R @ pulls_R / world.capacity) * noise_F
        self.strength_K += np.sqrt(world.transfer) * np.bincount(self.skill_D, pull_AD[0])

    def measure(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Accuracy and pass@8 on held-out prompts, mean by skill, (K,), exact; and q, (B,)."""
        p_E = self.policy(self.held_out_AEF, self.held_out_offset_E, self.skill_E)[0]
        p_KE = p_E.reshape(-1, HELD_OUT)
        adversary = getattr(self.controller.method, "prompt_adversary", None)
        q_B = adversary.probabilities() if adversary else np.zeros(0)
        return p_KE.mean(axis=1), (1 - (1 - p_KE) ** 8).mean(axis=1), q_B
