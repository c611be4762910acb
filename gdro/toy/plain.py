"""One toy game in plain Python: the loop that `gdro.toy` plays for thousands of games at once.

Lists, loops and the controllers' own objects (`DifficultyBins`, `PromptGDRO`, `RolloutGDRO`), one
prompt and one rollout after the other. It is here to be read beside the engine, to hold the engine to
account (same seed, same game: same result) and to time it against. Axes as in `gdro.toy`.
"""

import math

import numpy as np

from gdro.bins import DifficultyBins
from gdro.groups import StaticGroups
from gdro.prompt_gdro import exponential_weights
from gdro.toy.games import (
    EPSILON,
    HELD_OUT,
    MOVES_ROLLOUTS,
    REWEIGHTS,
    WORLDS,
    Luck,
    draw_directions,
    draw_luck,
    draw_setting,
)


class PlainGame:
    """One game with one seed. `step` plays on, `measure` returns accuracy and pass@8 by skill."""

    def __init__(self, game, seed):
        world = game.world
        self.game, self.steps_played, self.epoch = game, 0, []
        setting = draw_setting(world, seed % WORLDS)
        self.skill, self.offset = setting.skill_D.tolist(), setting.offset_D.tolist()
        self.held_out_offset = setting.held_out_offset_E.tolist()
        directions = draw_directions(
            world.prompts, world.skills * HELD_OUT, world.answers, world.capacity, seed % WORLDS
        )
        # [prompt][answer] → direction
        self.directions, self.held_out_directions = (
            d.reshape(world.answers, -1, world.capacity).swapaxes(0, 1).tolist() for d in directions
        )
        self.rng, self.coin_rng = np.random.default_rng((seed, 2)), np.random.default_rng((seed, 3))
        self.memory, self.strength, self.common = [0.0] * world.capacity, [0.0] * world.skills, 0.0
        self.bins: DifficultyBins = (
            game.make_bins()
            if game.grouping == "difficulty"
            else StaticGroups(range(world.prompts), self.skill, groups=range(world.skills))
        )
        self.prompt = game.make_prompt()
        self.cumulative = [0.0] * game.bins_in_all
        self.coin = ScriptedCoin()
        self.rollout = game.make_rollout()
        self.rollout._generator = lambda: self.coin  # type: ignore[method-assign]
        self.rollouts_B = np.full(game.bins_in_all, game.mean_rollouts)

    def step(self):
        """Draw a batch, plan, sample, observe, learn."""
        luck, words = draw_luck([self.rng], self.game)
        self.luck, self.words = Luck(*(part[0] for part in luck)), words[0].tolist()
        self.coin.script(*self.coin_rng.random((2, self.game.bins_in_all)).tolist())
        batch = self._draw()
        chances = [self._answer_chances(self._logits(d, self.directions[d], self.offset[d])) for d in batch]
        rollouts = self._plan(batch, chances)
        counts = []
        for chance, n, luck in zip(chances, rollouts, self.luck.rollouts.T.tolist(), strict=True):
            count = [0] * len(chance)
            for j in range(n):
                count[sampled_answer(chance, luck[j])] += 1
            counts.append(count)
        self._observe(batch, [count[0] for count in counts], rollouts)
        self._learn(batch, counts, rollouts)
        self.steps_played += 1

    def measure(self):
        accuracy, pass_at_8 = [], []
        for skill in range(self.game.world.skills):
            right = []
            for e in range(skill * HELD_OUT, (skill + 1) * HELD_OUT):
                logits = self._logits(None, self.held_out_directions[e], self.held_out_offset[e], skill)
                right.append(self._answer_chances(logits)[0])
            accuracy.append(sum(right) / HELD_OUT)
            pass_at_8.append(sum(1 - (1 - p) ** 8 for p in right) / HELD_OUT)
        return accuracy, pass_at_8

    # The learner

    def _logits(self, prompt, directions, offset, skill=None):
        world = self.game.world
        skill = self.skill[prompt] if skill is None else skill
        logits = []
        for direction in directions:
            overlap = 0.0
            for weight, number in zip(direction, self.memory, strict=True):
                overlap += weight * number
            logits.append(math.sqrt(1 - world.transfer) * overlap)
        own = math.sqrt(1 - world.sharing) * self.strength[skill] + math.sqrt(world.sharing) * self.common
        logits[0] += offset + math.sqrt(world.transfer) * own
        return logits

    def _answer_chances(self, logits):
        odds = [math.exp(logit - max(logits)) for logit in logits]
        return [odd / sum(odds) for odd in odds]

    def _learn(self, batch, counts, rollouts):
        world, game = self.game.world, self.game
        weights = self._weights(batch)
        variance = 0.0  # of the answers' own words: as in `gdro.toy`
        memory_step, gained = [0.0] * world.capacity, [0.0] * world.skills
        for slot, (d, count, n) in enumerate(zip(batch, counts, rollouts, strict=True)):
            rewards = [1.0] * count[0] + [0.0] * (n - count[0])
            mean = sum(rewards) / n
            deviation = math.sqrt(sum((r - mean) ** 2 for r in rewards) / max(n - 1, 1))
            for answer, times in enumerate(count):
                advantage = ((1.0 if answer == 0 else 0.0) - mean) / (deviation + EPSILON)
                pull = weights[slot] * times * advantage / n * game.step_size / game.batch
                if pull == 0.0:
                    continue
                variance += pull**2 / times
                for f, number in enumerate(self.directions[d][answer]):
                    memory_step[f] += math.sqrt(1 - world.transfer) * pull * number
                if answer == 0:
                    gained[self.skill[d]] += math.sqrt(world.transfer) * pull
        length = world.noise * math.sqrt(variance / world.capacity)
        for f, number in enumerate(memory_step):
            self.memory[f] += number + length * self.words[f]
        for skill, gain in enumerate(gained):
            self.strength[skill] += math.sqrt(1 - world.sharing) * gain
            self.common += math.sqrt(world.sharing) * gain

    # The controllers

    def _draw(self):
        if self.game.method == "resample":
            return self._resample()
        steps_in_epoch = self.game.world.prompts // self.game.batch
        place = self.steps_played % steps_in_epoch
        if place == 0:
            lots = self.luck.data.tolist()
            self.epoch = sorted(range(len(lots)), key=lots.__getitem__)
        return self.epoch[place * self.game.batch : (place + 1) * self.game.batch]

    def _resample(self):
        lots, prompts = self.luck.data.tolist(), self.game.world.prompts
        members: list[list[int]] = [[] for _ in range(self.game.bins_in_all + 1)]
        for d, b in enumerate(self.bins.assign(np.arange(prompts)).tolist()):
            members[b + 1].append(d)
        q = [q if group else 0.0 for q, group in zip(self._probabilities(), members[1:], strict=True)]
        played = 1 - len(members[0]) / prompts
        chances = [len(members[0]) / prompts] + [played * x / sum(q) if sum(q) else 0.0 for x in q]
        ladder = np.cumsum(chances) / sum(chances)
        batch, turn = [], [0] * len(members)
        for number in self.luck.slot_bins.tolist():
            b = sum(rung <= number for rung in ladder)
            members[b].sort(key=lots.__getitem__)
            batch.append((b, members[b][turn[b] % len(members[b])]))
            turn[b] += 1
        return [d for b, d in sorted(batch, key=lambda pair: pair[0])]

    def _plan(self, batch, chances):
        game, mean = self.game, self.game.mean_rollouts
        if game.method not in MOVES_ROLLOUTS:
            return [mean] * len(batch)
        if game.method == "oracle":
            return self._oracle([p[0] * (1 - p[0]) for p in chances])
        bins = self.bins.assign(np.array(batch)).tolist()
        counts = np.bincount([b for b in bins if b >= 0], minlength=game.bins_in_all)
        self.rollouts_B = np.full(game.bins_in_all, mean)
        if not counts.any():
            return [mean] * len(batch)
        budget = mean * int(counts.sum())
        self.coin.counts = counts.tolist()
        self.rollouts_B = self.rollout.allocate(counts, budget)
        return [int(self.rollouts_B[b]) if b >= 0 else mean for b in bins]

    def _oracle(self, variances):
        game = self.game
        rollouts = [game.n_min] * len(variances)
        for _ in range((game.mean_rollouts - game.n_min) * len(variances)):
            gains = [
                (v + 1e-12) / (n * (n + 1)) if n < game.n_max else -math.inf
                for v, n in zip(variances, rollouts, strict=True)
            ]
            rollouts[gains.index(max(gains))] += 1
        return rollouts

    def _observe(self, batch, right, rollouts):
        game, uids = self.game, np.array(batch)
        if game.method in ("grpo", "oracle"):
            return
        bins = self.bins.assign(uids)
        self.bins.update(uids, np.array(right), np.array(rollouts))
        bins = np.where(bins < 0, self.bins.assign(uids), bins)
        failure = [1 - c / n for c, n in zip(right, rollouts, strict=True)]
        if game.score == "cumulative":
            for b, loss in zip(bins.tolist(), failure, strict=True):
                if b >= 0:
                    self.cumulative[b] += loss * game.bins_in_all / game.batch
        self.prompt.update(bins, failure)
        if game.method in MOVES_ROLLOUTS and (bins >= 0).any():
            seen = failure
            if game.method != "rollout_loss":
                seen = [_reward_variance(c, n) for c, n in zip(right, rollouts, strict=True)]
            observed = []
            for b in range(game.bins_in_all):
                own = [value for value, of in zip(seen, bins, strict=True) if of == b and value == value]
                observed.append(sum(own) / len(own) if own else math.nan)
            counts = np.bincount(bins[bins >= 0], minlength=game.bins_in_all)
            self.rollout.update(counts, np.where(counts > 0, self.rollouts_B, 0), np.array(observed))

    def _probabilities(self):
        game = self.game
        if game.score == "ema":
            return self.prompt.probabilities().tolist()
        weights = exponential_weights(np.array(self.cumulative), game.eta, game.clip)
        return ((1 - game.gamma) * weights / weights.sum() + game.gamma / len(weights)).tolist()

    def _weights(self, batch):
        game = self.game
        if game.method not in REWEIGHTS:
            return [1.0] * len(batch)
        by_bin = self.prompt.weights()
        if game.score == "cumulative":
            by_bin = exponential_weights(np.array(self.cumulative), game.eta, game.clip)
            by_bin = np.minimum(by_bin, game.max_weight)
        bins = self.bins.assign(np.array(batch)).tolist()
        seen = [float(by_bin[b]) for b in bins if b >= 0]
        mean = sum(seen) / len(seen) if seen else 1.0
        weights = [float(by_bin[b]) if b >= 0 else mean for b in bins]
        return [w * len(weights) / sum(weights) for w in weights]


class ScriptedCoin:
    """Stands in for `RolloutGDRO`'s generator and reads its chances from a step's luck.

    counts: prompts of each bin. The engine takes bins from few prompts to many, so they are put in that
    order; what is drawn from has the same law in any.
    """

    counts: list[int]

    def script(self, coins, draws):
        self.coins, self.draws, self.to_come = coins, draws, []

    def permutation(self, bins):
        self.to_come = sorted(bins.tolist(), key=lambda b: (self.counts[b], self.coins[b]))
        return np.array(self.to_come)

    def choice(self, size, p):
        """`Generator.choice` by inversion, with the number of the bin whose turn it is."""
        ladder = np.cumsum(p)
        return int((ladder / ladder[-1] <= self.draws[self.to_come.pop()]).sum())


def sampled_answer(chances, number):
    """The first answer whose rung lies above the uniform number."""
    rung = 0.0
    for answer, chance in enumerate(chances[:-1]):
        rung += chance
        if number < rung:
            return answer
    return len(chances) - 1


def _reward_variance(right, n):
    rate = right / n
    return rate * (1 - rate) * n / (n - 1) if n > 1 else math.nan
