"""One training step of the controller beside the same step in plain Python, in one run.

    python benchmarks/controller.py

A step is plan + observe for 256 prompts × 4 rollouts, 10 bins, method "both". For each preset, kind of uid
and number of prompts known: median milliseconds of either half, of the step in plain Python (dicts and
loops, the joint arm choice searched over (bin, spent) with a dict), the ratio of the two, and bytes held
for each prompt. Before anything is timed, the plain version is checked to come to the same rollouts, weights
and price. The two are timed in turns, so that a busy machine slows both.
"""

import argparse
import math
import time

import numpy as np

from gdro import GDROController

PROMPTS, MEAN_ROLLOUTS = 256, 4


class PlainController:
    """What `GDROController` does in method "both" under its two presets, for prompts already known."""

    edges = tuple(b / 10 for b in range(1, 10))
    bins, k, history, hysteresis = range(10), 8, 50, 0.03
    arms = range(2, 13)
    eta, gamma, prompt_ema, clip, max_weight = 0.65, 0.01, 0.12, 5.0, 15.0
    arm_ema, price_lr, bonus, share_floor = 0.4, 0.05, 0.01, 0.05

    def __init__(self, preset):
        self.printed = preset == "paper"
        self.records, self.bin_of = {}, {}
        self.scores = dict.fromkeys(self.bins, 0.0)
        self.visits = dict.fromkeys(self.bins, 0)
        self.arm_scores = {(b, n): 0.0 for b in self.bins for n in self.arms}
        self.arm_visits = dict.fromkeys(self.bins, 0)
        self.price, self.clock = 0.0, 0

    # Who is hard

    def book(self, uids, successes, trials):
        """A visit to each prompt, then its bin."""
        if self.printed:
            self._queue_rollouts(sorted(zip(uids, successes, trials, strict=True)))
        for uid, s, n in zip(uids, successes, trials, strict=True):
            if not self.printed:
                right, wrong = self.records.get(uid, (0.0, 0.0))
                keep = 1 - 1 / self.history
                self.records[uid] = (keep * right + s, keep * wrong + n - s)
            self.bin_of[uid] = self._moved(self.bin_of.get(uid), self._estimate(uid))

    def _queue_rollouts(self, visits):
        """Blocks of k rollouts, one outcome each; of a visit that is cut, chance says which came first."""
        self.clock += 1
        rng = np.random.default_rng(self.clock)
        left = {uid: (s, n) for uid, s, n in visits}
        while any(n for _, n in left.values()):
            for uid, (s, n) in left.items():
                outcomes, queued_right, queued = self.records.get(uid, ([], 0, 0))
                take = min(self.k - queued, n)
                hits = int(rng.hypergeometric(s, n - s, take))
                queued_right, queued = queued_right + hits, queued + take
                if queued == self.k:
                    outcomes = [*outcomes, queued_right > 0][-self.history :]
                    queued_right, queued = 0, 0
                self.records[uid] = (outcomes, queued_right, queued)
                left[uid] = (s - hits, n - take)

    def _estimate(self, uid):
        if self.printed:
            outcomes, _, _ = self.records[uid]
            return sum(outcomes) / len(outcomes)
        right, wrong = self.records[uid]
        all_wrong = 1.0
        for i in range(self.k):
            all_wrong *= (0.5 + wrong + i) / (1 + right + wrong + i)
        return 1 - all_wrong

    def _moved(self, current, estimate):
        def bin_at(value):
            return sum(value + 1e-12 >= edge for edge in self.edges)

        if current is None:
            return bin_at(estimate)
        lowest, highest = bin_at(estimate - self.hysteresis), bin_at(estimate + self.hysteresis - 2e-12)
        return min(max(current, lowest), highest)

    # The compute adversary

    def strategy(self, b, scale):
        """log p_b(n) for each arm."""
        losses = {n: self._arm_score(b, n) * scale + self.price * n for n in self.arms}
        least = min(losses.values())
        odds = {n: math.exp(-self.eta * (loss - least)) for n, loss in losses.items()}
        total = sum(odds.values())
        return {
            n: math.log((1 - self.gamma) * odd / total + self.gamma / len(self.arms))
            for n, odd in odds.items()
        }

    def _arm_score(self, b, n):
        if self.printed:
            return self.arm_scores[b, n]
        if self.arm_visits[b]:
            return self.arm_scores[b, n] / (1 - (1 - self.arm_ema) ** self.arm_visits[b])
        seen = [other for other in self.bins if self.arm_visits[other]]
        return sum(self._arm_score(other, n) for other in seen) / max(len(seen), 1)

    def _strategies(self):
        scale = 1.0
        if not self.printed:
            average = sum(self._arm_score(b, 2) * 2 for b in self.bins) / len(self.bins)
            scale = MEAN_ROLLOUTS**2 / average if average > 0 else 0.0
        return {b: self.strategy(b, scale) for b in self.bins}

    def plan(self, uids):
        counts = dict.fromkeys(self.bins, 0)
        for uid in uids:
            counts[self.bin_of[uid]] += 1
        counts = {b: count for b, count in counts.items() if count}
        self.strategies = self._strategies()
        self.gains = {
            b: {n: gain(log_p if self.printed else count * log_p, n, count) for n, log_p in strategy.items()}
            for b, strategy in self.strategies.items()
            if (count := counts.get(b))
        }
        self.rollouts = joint_arms(self.gains, counts, MEAN_ROLLOUTS * len(uids))
        return [self.rollouts[self.bin_of[uid]] for uid in uids]

    def _update_arms(self, counts, observed):
        demand = sum(
            count * sum(math.exp(log_p) * n for n, log_p in self.strategies[b].items())
            for b, count in counts.items()
        ) / sum(counts.values())
        for b, value in observed.items():
            for n in self.arms:
                loss = value / n
                if self.printed:
                    played = value if n == self.rollouts[b] else 0.0
                    loss = (played - self.bonus) / math.exp(self.strategies[b][n])
                self.arm_scores[b, n] = (1 - self.arm_ema) * self.arm_scores[b, n] + self.arm_ema * loss
            self.arm_visits[b] += 1
        if not self.printed:  # as printed the budget, met every step, drives the price
            self.price += self.price_lr * (demand - MEAN_ROLLOUTS)

    # The data adversary

    def weight(self, b):
        return min(math.exp(self.eta * max(-self.clip, min(self.clip, self._score(b)))), self.max_weight)

    def _score(self, b):
        if self.printed:
            return self.scores[b]
        if self.visits[b]:
            return self.scores[b] / (1 - (1 - self.prompt_ema) ** self.visits[b])
        seen = [other for other in self.bins if self.visits[other]]
        return sum(self._score(other) for other in seen) / max(len(seen), 1)

    def weights(self, uids, rollouts):
        weights = [self.weight(self.bin_of[uid]) for uid in uids]
        if self.printed:  # every prompt counts the same, however many rollouts it got
            return [weight * MEAN_ROLLOUTS / n for weight, n in zip(weights, rollouts, strict=True)]
        mean = sum(weights) / len(weights)
        return [weight / mean for weight in weights]

    # One step

    def observe(self, uids, group_ids, rewards, losses=None):
        groups = {place: [] for place in range(len(uids))}
        for place, reward in zip(group_ids, rewards, strict=True):
            groups[place].append(reward)
        loss_sums = dict.fromkeys(range(len(uids)), 0.0)
        if losses is not None:
            for place, loss in zip(group_ids, losses, strict=True):
                loss_sums[place] += loss
        successes, trials = [], []
        signals = {b: [] for b in self.bins}
        utilities = {b: [] for b in self.bins}
        for place, uid in enumerate(uids):
            rewards_here, b = groups[place], self.bin_of[uid]
            n = len(rewards_here)
            s = sum(reward > 0 for reward in rewards_here)
            mean = sum(rewards_here) / n
            variance = sum((reward - mean) ** 2 for reward in rewards_here) / (n - 1)
            successes.append(s)
            trials.append(n)
            weight = 1 if self.printed else n
            signals[b].append((weight, loss_sums[place] / n if self.printed else 1 - s / n))
            utilities[b].append((weight, loss_sums[place] / n if self.printed else variance))
        self.book(uids, successes, trials)

        counts = {b: len(values) for b, values in signals.items() if values}
        for b, count in counts.items():
            loss = weighted_mean(signals[b])
            if self.printed:
                loss /= max(count / len(uids), self.share_floor)
            self.scores[b] = (1 - self.prompt_ema) * self.scores[b] + self.prompt_ema * loss
            self.visits[b] += 1
        self._update_arms(counts, {b: weighted_mean(utilities[b]) for b in counts})


def weighted_mean(pairs):
    return sum(weight * value for weight, value in pairs) / sum(weight for weight, _ in pairs)


def gain(value, n, count):
    """What an arm adds to a joint choice: its value, in whole billionths (a tie is a tie), then evenness."""
    return round(value * 1e9), -count * (n - MEAN_ROLLOUTS) ** 2


def joint_arms(gains, counts, budget):
    """{bin: arm} of greatest gain that spends the budget, by a dict of the best choice for each spending."""
    best = {0: (0, 0, ())}  # spent: (value, evenness, arms so far)
    for b, count in counts.items():
        following = {}
        for spent, (value, even, chosen) in best.items():
            for n, (more_value, more_even) in gains[b].items():
                total = spent + count * n
                if total > budget:
                    break
                candidate = (value + more_value, even + more_even)
                known = following.get(total)
                if known is None or candidate > known[:2]:
                    following[total] = (*candidate, (*chosen, n))
        best = following
    return dict(zip(counts, best[max(best)][2], strict=True))


class Batches:
    """The same prompts, rewards and losses for both."""

    def __init__(self, known, kind, seed=0):
        self.rng = np.random.default_rng(seed)
        self.uids = (
            np.arange(known) if kind == "integer" else np.array([f"prompt-{i:07}" for i in range(known)])
        )
        self.rates = 1 - self.rng.random(known) ** (1 / 8)  # pass@8 is even over (0, 1): all bins are full

    def visits(self):
        trials = np.full(len(self.uids), 80)
        return self.uids.tolist(), self.rng.binomial(trials, self.rates), trials

    def prompts(self):
        self.chosen = self.rng.choice(len(self.uids), PROMPTS, replace=False)
        return self.uids[self.chosen].tolist()

    def rollouts(self, rollouts):
        group_ids = np.repeat(np.arange(PROMPTS), rollouts)
        rewards = (self.rng.random(len(group_ids)) < self.rates[self.chosen][group_ids]).astype(float)
        return group_ids, rewards, self.rng.normal(size=len(rewards))


def known_to(controller, batches):
    uids, successes, trials = batches.visits()
    if isinstance(controller, PlainController):
        controller.book(uids, successes.tolist(), trials.tolist())
    else:
        controller.bins.update(uids, successes, trials)
    return controller


def check(preset, steps=40):
    """Both play the same steps: joint choices of one worth (a tie may fall either way), the same weights."""
    batches = Batches(1000, "integer")
    visits = batches.visits()
    ours, plain = GDROController(preset=preset), PlainController(preset)
    ours.bins.update(*visits)
    plain.book(visits[0], visits[1].tolist(), visits[2].tolist())
    same = 0
    for step in range(steps):
        uids = batches.prompts()
        rollouts = ours.plan(uids)
        same += plain.plan(uids) == rollouts.tolist()
        chosen = {plain.bin_of[uid]: int(n) for uid, n in zip(uids, rollouts, strict=True)}
        worth, plain_worth = (
            [sum(gains) for gains in zip(*(plain.gains[b][n] for b, n in choice.items()), strict=True)]
            for choice in (chosen, plain.rollouts)
        )
        if rollouts.sum() != MEAN_ROLLOUTS * PROMPTS or abs(worth[0] - plain_worth[0]) > 100:  # 1e-7
            raise SystemExit(f"{preset}, step {step}: the plain version finds a better choice")
        plain.rollouts = chosen
        group_ids, rewards, losses = batches.rollouts(rollouts)
        ours.observe(uids, group_ids, rewards, losses=losses if preset == "paper" else None)
        plain.observe(
            uids, group_ids.tolist(), rewards.tolist(), losses.tolist() if preset == "paper" else None
        )
        if not np.allclose(ours.weights(uids), plain.weights(uids, rollouts), rtol=1e-5, atol=0):
            raise SystemExit(f"{preset}, step {step}: the plain version gives other weights")
        if not np.isclose(ours.rollout.price, plain.price, rtol=1e-5):
            raise SystemExit(f"{preset}, step {step}: the plain version comes to another price")
    print(f"{preset}: the plain version gives the same weights and price in {steps} of {steps} steps, and")
    print(f"  rollouts of the same worth; the same rollouts in {same}, the others being ties")


def milliseconds(controller, batches, preset):
    """Of plan and of observe, for one step; each gets its data in the form it works on."""
    uids = batches.prompts()
    start = time.perf_counter()
    rollouts = controller.plan(uids)
    planned = time.perf_counter()
    data = batches.rollouts(rollouts)
    if isinstance(controller, PlainController):
        data = [values.tolist() for values in data]
    group_ids, rewards, losses = data
    losses = losses if preset == "paper" else None
    generated = time.perf_counter()
    controller.observe(uids, group_ids, rewards, losses=losses)
    return 1e3 * (planned - start), 1e3 * (time.perf_counter() - generated)


def measure(preset, kind, known, steps, plain_every):
    batches = Batches(known, kind)
    ours = known_to(GDROController(preset=preset), batches)
    plain = known_to(PlainController(preset), batches) if plain_every else None
    mine, theirs = [], []
    for step in range(steps):
        mine.append(milliseconds(ours, batches, preset))
        if plain_every and step % plain_every == 0:
            theirs.append(sum(milliseconds(plain, batches, preset)))
    plan, observe = np.median(mine, axis=0)
    step = float(np.median(np.sum(mine, axis=1)))
    line = f"{preset:8} {kind:8} {known:>9,} {plan:8.2f} {observe:8.2f} {step:8.2f}"
    plain_ms = float(np.median(theirs)) if theirs else math.nan
    columns = f"{plain_ms:9.1f} {plain_ms / step:7.0f}" if theirs else f"{'–':>9} {'–':>7}"
    print(f"{line} {columns} {ours.bins.nbytes() / len(ours.bins):9.0f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=300, help="steps timed for each line")
    steps = parser.parse_args().steps
    for preset in ("default", "paper"):
        check(preset)
    print(f"plan + observe, {PROMPTS} prompts × {MEAN_ROLLOUTS} rollouts, 10 bins, method 'both'; medians")
    print(f"{'':18}{'prompts':>9} {'plan':>8} {'observe':>8} {'step':>8} {'plain':>9} {'':7} {'bytes a':>9}")
    print(f"{'preset   uids':18}{'known':>9}" + 3 * f" {'ms':>8}" + f" {'ms':>9} {'ratio':>7} {'prompt':>9}")
    for preset in ("default", "paper"):
        for kind in ("integer", "string"):
            measure(preset, kind, 14_100, steps, plain_every=10)
        measure(preset, "integer", 1_000_000, steps, plain_every=0)


if __name__ == "__main__":
    main()
