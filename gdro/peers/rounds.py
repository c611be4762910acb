"""Peers that look at a pilot before they spend the rest of a step, or that wait. P prompts."""

import math
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from scipy.stats import rankdata

from gdro.budget import exact_rollouts, spread_evenly
from gdro.checks import Count, Length, Share, check, options
from gdro.method import Batch, Method, Prompts, Run
from gdro.registry import register


@options
class Pilot(Method):
    """The same few rollouts for every prompt first; `extend` divides what is left of the budget.

    Pilots count in the budget. What `extend` does not ask for is not spent.
    """

    pilot: Count = 2
    """Rollouts of each prompt in the first round, and in each further one of `reinforce_ada`."""

    def start(self, run: Run) -> None:
        check("pilot", self.pilot, int, ge=run.n_min, lt=math.ceil(run.mean_rollouts))

    def allocate(self, prompts: Prompts, budget: int, rng: np.random.Generator) -> np.ndarray:
        return np.full(len(prompts), self.pilot)

    def rest(
        self, batch: Batch, shares_P: np.ndarray, left: int, rng: np.random.Generator
    ) -> np.ndarray | None:
        """`left` rollouts in proportion to the shares, up to n_max, (P,); once a step."""
        chosen_P = shares_P > 0
        room = self.run.n_max - self.pilot
        total = min(left, room * int(chosen_P.sum()))
        if not total or batch.memo.get("extended"):
            return None
        batch.memo["extended"] = True
        further_P = np.zeros(len(batch), np.int64)
        further_P[chosen_P] = exact_rollouts(shares_P[chosen_P], total, 0, room, rng)
        return further_P


@register("dars")
@options
class DARS(Pilot):
    """DARS (arXiv 2508.13755): after a pilot, rollouts for hard prompts until they catch up.

    Advantages are Dr. GRPO's, r_ij − μ_i: those of n rollouts at accuracy a sum to
    S = Σ|A| = 2 n a (1 − a). A pilot of n rollouts measures a; where a < ½, rollouts are added
    until S reaches that of a prompt at a = ½, n/2, so that Δ = ⌈n (1/(4 a (1 − a)) − 1)⌉: as many
    as n_max allows where a = 0, none where a ≥ ½. Source: the paper, and its public scripts
    (`grpo_use_std=False`, pilot 8, n_max 32; they set a = 0 to 1/(2n), which reaches n_max there).

    The step's whole budget is spent. Where the Δ, which the paper adds on top, ask for more than
    the pilot left, they are scaled down; where they ask for less, the rest goes to all prompts
    evenly. `dars:prompts=48` in the arena leaves more to them. Left out: large batches in
    full-batch epochs (its "breadth"), two updates a batch, dropping groups without a signal, and
    the schedule "hardness", which asks for 2 (1 − a) times as much.
    """

    def extend(self, batch: Batch, left: int, rng: np.random.Generator) -> np.ndarray | None:
        room = self.run.n_max - self.pilot
        # a = 0 asks without bound, and is clipped to n_max below
        a_P = np.clip(batch.hits_P / batch.trials_P, 1e-9, 0.5)
        wanted_P = batch.trials_P * (1 / (4 * a_P * (1 - a_P)) - 1)
        delta_P = np.minimum(np.ceil(wanted_P - 1e-9), room).astype(int)
        spare = left - int(delta_P.sum())
        if spare > 0:
            delta_P = spread_evenly(delta_P, spare, np.full(len(batch), room), rng)
        return self.rest(batch, delta_P, left, rng)

    def advantages(self, batch: Batch) -> np.ndarray:
        return batch.centred_R


@register("pilot_commit")
@options
class PilotCommit(Pilot):
    """Pilot-Commit (arXiv 2605.26606): a pilot decides which prompts get the rest.

    Prompts with low ≤ p̂ ≤ high in the pilot share what is left evenly; easier ones are skipped,
    harder ones wait for a later visit. Without any in the range the rest is not spent. In the paper
    the pilot is 16 of 64 rollouts. Left out: the queue of deferred prompts and drawing until a
    batch is full.
    """

    low: Share = 0.125
    """Least pass rate in the pilot with which a prompt gets more."""
    high: Share = 0.75
    """Largest such pass rate."""

    def extend(self, batch: Batch, left: int, rng: np.random.Generator) -> np.ndarray | None:
        rate_P = batch.hits_P / batch.trials_P
        committed_P = (rate_P >= self.low) & (rate_P <= self.high)
        return self.rest(batch, committed_P.astype(float), left, rng)


@register("reinforce_ada")
@options
class ReinforceAda(Pilot):
    """Reinforce-Ada (arXiv 2510.04996): sample in rounds until a prompt has enough of both signs.

    Each round gives `pilot` more rollouts to every prompt that is not done, up to n_max, while the
    budget lasts; when it does not last for all of them, prompts in random order get theirs. A
    prompt is done ("balanced") with keep/2 correct and keep/2 wrong rollouts. Of each prompt the
    first `keep` rollouts are trained on, half of each sign as far as there are any; the others have
    advantage 0. A_ij = r_ij − μ_i, μ_i the mean of all rollouts of the prompt, without division by
    σ. Source: the paper's algorithm 1 and its public script (`balanced`, `global_stat_est=True`,
    `norm_adv_by_std_in_grpo=False`, rounds of 8, at most 4 rounds, keep 4).

    All rollouts count as spent: give fewer prompts more of them, as `reinforce_ada:prompts=16` does
    in the arena. Left out: the rule that one correct rollout is enough ("positive").
    """

    keep: Length = 4
    """Rollouts of a prompt that are trained on."""

    def extend(self, batch: Batch, left: int, rng: np.random.Generator) -> np.ndarray | None:
        half = self.keep // 2
        wrong_P = batch.trials_P - batch.hits_P
        done_P = (batch.hits_P >= half) & (wrong_P >= self.keep - half)
        room_P = np.clip(self.run.n_max - batch.rollouts_P, 0, self.pilot)
        further_P = np.where(done_P, 0, room_P)
        if not further_P.any():
            return None
        order_P = rng.permutation(len(batch))
        # rollouts that are spent once each prompt has had its turn
        reached_P = np.minimum(further_P[order_P].cumsum(), left)
        further_P[order_P] = np.diff(reached_P, prepend=0)
        return further_P

    def advantages(self, batch: Batch) -> np.ndarray:
        wrong_P = batch.trials_P - batch.hits_P
        wrong_P = np.minimum(wrong_P, self.keep - np.minimum(batch.hits_P, self.keep // 2))
        quota_2P = np.stack([wrong_P, self.keep - wrong_P])  # [0] of wrong, [1] of correct
        quota_R = quota_2P[batch.correct_R.astype(int), batch.group_ids_R]
        kind_R = 2 * batch.group_ids_R + batch.correct_R  # prompt and sign
        turn_R = rankdata(kind_R, "ordinal") - rankdata(kind_R, "min")  # from 0, in order
        return np.where(turn_R < quota_R, batch.centred_R, 0.0)


@register("dapo")
@options
class DAPO(Method):
    """DAPO's dynamic sampling (arXiv 2503.14476): a step waits for enough groups that teach.

    Groups in which all rollouts are correct or all wrong have advantages of 0 and teach nothing.
    Batches are generated until `groups` others were collected, then one optimizer step is taken on
    all of them. Rollouts of discarded groups are `discarded` in the record. Compare by rollouts.

    With `max_batches=1` nothing is sampled again: groups that teach nothing are left out, and
    `denominator` says whether they count in the loss.

    Clip-higher is the trainer's: `epsilon_high` in TRL. Left out: cutting a surplus in the loop,
    which trains on it (in TRL what exceeds the batch is left out), the penalty for length, and the
    mean over kept tokens alone: where a trainer divides by all tokens, a step is smaller by the
    discarded share.
    """

    groups: Count | None = None
    """Groups with both outcomes that a step needs; by default the prompts of a batch."""
    max_batches: Annotated[Count, Field(le=100)] = 10
    """The most batches generated for one step, which is then taken with whatever came."""
    denominator: Literal["all", "kept"] = "all"
    """With `max_batches=1`, over what the loss is a mean: "all" rollouts as in GRPO, so that a
    batch with few groups that teach makes a small step, or those "kept", whose advantages are
    multiplied by all / kept. Rollouts are counted here, and not their tokens."""

    state = ("collected", "batches")

    def __post_init__(self) -> None:
        if self.denominator == "kept" and self.max_batches > 1:
            raise ValueError(
                f"denominator must be 'all' unless max_batches is 1, got {self.max_batches}"
            )

    @property
    def waits(self) -> bool:
        return self.max_batches > 1

    def start(self, run: Run) -> None:
        # since the last optimizer step
        self.collected = 0
        self.batches = 0
        self.discarded = 0  # rollouts of this batch's groups that teach nothing

    def update(self, batch: Batch) -> None:
        teaches_P = (batch.hits_P > 0) & (batch.hits_P < batch.trials_P)
        self.discarded = int(batch.trials_P[~teaches_P].sum())
        self.collected += int(np.count_nonzero(teaches_P))
        self.batches += 1

    def weights(self, batch: Batch) -> np.ndarray:
        teaches_P = batch.sums(np.abs(batch.group_advantages_R)) > 0
        kept = batch.trials_P[teaches_P].sum()
        if self.denominator == "all" or not kept:
            return np.ones(len(batch))
        return np.full(len(batch), batch.trials_P.sum() / kept)

    def report(self) -> dict[str, Any]:
        return {"discarded": self.discarded}

    def ready(self, batch: Batch) -> bool:
        needed = len(batch) if self.groups is None else self.groups
        if self.collected < needed and self.batches < self.max_batches:
            return False
        self.collected = 0
        self.batches = 0
        return True
