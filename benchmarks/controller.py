"""The controller beside the same in plain Python (dicts and loops), in one run.

    python benchmarks/controller.py

plan + observe of method "both", draw of method "pivotal": the best milliseconds of processor time
of several calls, the two in turn, and bytes held a prompt. The run stops if the plain version comes
to other weights or another price.
"""

import heapq
import itertools
import math
import random
import sys
import time

import numpy as np

from gdro import GDROController
from gdro.state import Stateful
from gdro.uids import as_uids

MEAN = 4
ARMS = range(2, 13)
BINS = range(10)


class Plain:
    """Method "both" with its defaults, for prompts that all have a record."""

    def __init__(self, counts):
        self.counts = counts  # uid: (successes, failures), fading by 1 − 1/20
        self.bin_of = {uid: self.bin_at(self.rate(uid)) for uid in counts}
        self.score = [0.0] * 10
        self.arm_score = [0.0] * 10
        self.visits = [0] * 10
        self.price = 0.0

    def rate(self, uid):
        s, f = self.counts[uid]
        return (s + 0.5) / (s + f + 1)

    def bin_at(self, rate):
        return min(max(int(rate * 10 + 1e-11), 0), 9)

    def debiased(self, scores, ema):
        known = {b: scores[b] / (1 - (1 - ema) ** self.visits[b]) for b in BINS if self.visits[b]}
        mean = sum(known.values()) / max(len(known), 1)
        return [known.get(b, mean) for b in BINS]

    def plan(self, uids):
        counts = {b: n for b in BINS if (n := sum(self.bin_of[uid] == b for uid in uids))}
        variances = self.debiased(self.arm_score, 0.4)
        mean = sum(variances) / 10
        best = {0: (0.0, ())}
        self.demand = 0.0
        for b, count in counts.items():
            loss = [
                MEAN**2 * variances[b] / mean / n + self.price * n if mean else self.price * n
                for n in ARMS
            ]
            odds = [math.exp(-0.65 * (x - min(loss))) for x in loss]
            p = [0.99 * odd / sum(odds) + 0.01 / len(loss) for odd in odds]
            self.demand += count * sum(map(lambda p, n: p * n, p, ARMS)) / len(uids)
            following = {}
            for spent, (value, chosen) in best.items():
                for n, q in zip(ARMS, p, strict=True):
                    if (total := spent + count * n) <= MEAN * len(uids):
                        candidate = value + count * math.log(q)
                        if total not in following or candidate > following[total][0]:
                            following[total] = (candidate, (*chosen, n))
            best = following
        arm_of = dict(zip(counts, best[max(best)][1], strict=True))
        return [arm_of[self.bin_of[uid]] for uid in uids]

    def observe(self, uids, group_ids, rewards):
        groups = [[] for _ in uids]
        for group, reward in zip(group_ids, rewards, strict=True):
            groups[group].append(reward)
        sums = {b: [0, 0.0, 0.0] for b in BINS}
        for uid, group in zip(uids, groups, strict=True):
            n = len(group)
            hits = sum(group)
            into = sums[self.bin_of[uid]]
            into[0] += n
            into[1] += n - hits
            into[2] += hits * (n - hits) / (n - 1)
            s, f = self.counts[uid]
            self.counts[uid] = (0.95 * s + hits, 0.95 * f + n - hits)
            low = self.bin_at(self.rate(uid) - 0.03)
            high = self.bin_at(self.rate(uid) + 0.03 - 2e-12)
            self.bin_of[uid] = min(max(self.bin_of[uid], low), high)
        for b, (n, wrong, variance) in sums.items():
            if n:
                self.score[b] += 0.12 * (wrong / n - self.score[b])
                self.arm_score[b] += 0.4 * (variance / n - self.arm_score[b])
                self.visits[b] += 1
        self.price += 0.05 * (self.demand - MEAN)
        omega = [min(math.exp(0.65 * score), 15.0) for score in self.debiased(self.score, 0.12)]
        weights = [omega[self.bin_of[uid]] for uid in uids]
        mean = sum(weights) / len(weights)
        advantages = []
        for weight, group in zip(weights, groups, strict=True):
            centre = sum(group) / len(group)
            sigma = math.sqrt(sum((r - centre) ** 2 for r in group) / len(group)) + 1e-4
            advantages += [weight / mean * (r - centre) / sigma for r in group]
        return [weight / mean for weight in weights], advantages

    def draw(self, size, k=5):
        value = {}
        for uid, (s, f) in self.counts.items():
            a = s + 0.5
            b = f + 0.5
            value[uid] = (
                a / (a + b + k - 1) * math.prod((b + j) / (a + b + j) for j in range(k - 1))
            )
        total = sum(value.values())
        even = 0.1 / len(value)
        return heapq.nsmallest(
            size, value, lambda uid: random.expovariate(0.9 * value[uid] / total + even)
        )


def timed(call, *arguments):
    start = time.process_time()
    gave = call(*arguments)
    return 1e3 * (time.process_time() - start), gave


def bytes_held(owner):
    """Bytes of the arrays and dictionaries in an object, and in those that it keeps a state of."""
    held = 0
    for part in vars(owner).values():
        if isinstance(part, np.ndarray):
            held += part.nbytes
        elif isinstance(part, Stateful):
            held += bytes_held(part)
        elif isinstance(part, dict):
            entries = itertools.chain(part.keys(), part.values())
            held += sys.getsizeof(part) + sum(map(sys.getsizeof, entries))
    return held


def step(ours, plain, uids, rates, rng):
    """Milliseconds of plan + observe, of ours and of the plain version."""
    a, plan = timed(ours.plan, uids)
    b, _ = timed(plain.plan, uids.tolist())
    ids = np.repeat(np.arange(len(uids)), plan.rollouts)
    rewards = (rng.random(len(ids)) < rates[uids][ids]).astype(float)
    c, batch = timed(ours.observe, plan, ids, rewards)
    d, (weights, _) = timed(plain.observe, uids.tolist(), ids.tolist(), rewards.tolist())
    # counts are kept in 32 bits, so single prompts on an edge may differ by a bin
    assert np.mean(np.abs(batch.weights / weights - 1) > 0.01) < 0.01
    assert abs(ours.method.rollout_adversary.price - plain.price) < 1e-6
    return a + c, b + d


def main():
    print(
        f"{'':24}{'prompts':>10}{'numpy ms':>10}{'plain ms':>10}{'ratio':>7}{'bytes a prompt':>16}"
    )
    rng = np.random.default_rng(0)
    for known in (14_100, 1_000_000):
        rates = rng.random(known)
        trials = np.full(known, 20)
        pool = as_uids(np.arange(known))
        hits = rng.binomial(trials, rates)
        ours = GDROController("both")
        drawing = GDROController("pivotal")
        for controller in (ours, drawing):
            controller.bins.update(pool, hits, trials)
        plain = Plain({uid: (s, 20 - s) for uid, s in enumerate(hits.tolist())})
        for size, steps in ((256, 60), (8192, 4)):
            batches = [rng.choice(known, size, replace=False) for _ in range(steps)]
            mine, theirs = np.min([step(ours, plain, uids, rates, rng) for uids in batches], axis=0)
            line = f"plan + observe {size:5} × 4{known:>10,}{mine:10.2f}{theirs:10.1f}"
            print(f"{line}{theirs / mine:7.0f}{bytes_held(ours.bins) / known:16.0f}")
        pairs = [(timed(drawing.draw, pool, 256)[0], timed(plain.draw, 256)[0]) for _ in range(4)]
        mine, theirs = np.min(pairs, axis=0)
        print(f"{'draw 256':24}{known:>10,}{mine:10.2f}{theirs:10.1f}{theirs / mine:7.0f}")


if __name__ == "__main__":
    main()
