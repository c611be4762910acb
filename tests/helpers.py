"""What tests of the controller and of the methods share: batches by hand, one step, one visit."""

import json
from dataclasses import fields, is_dataclass

import numpy as np

from gdro import find_method
from gdro.method import Batch, Run
from gdro.registry import METHODS, make_method

CERTAIN = 1e9  # posterior counts at which a sample is the mean


def own_methods():
    """Names of the package's own methods and of those of two examples.

    Tests register others, which depend on what is run.
    """
    ours = ("gdro.", "peers", "drawing_peers")
    return sorted(name for name, kind in METHODS.items() if kind.__module__.startswith(ours))


def write_lines(path, rows):
    """Write rows as lines of JSON; the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def answers(split):
    return [row["answer"] for row in split.rows]


def state_of(controller):
    """What a checkpoint holds, as text."""

    def plain(array):
        return [array.dtype.str, array.tolist()]

    return json.dumps(controller.state_dict(), default=plain)


def come_back(plan, seed, rates):
    """Rollouts of a plan as (group_ids, rewards), for prompts that succeed at the given rates."""
    group_ids = np.repeat(np.arange(len(plan)), plan.rollouts)
    rates_R = np.asarray(rates)[group_ids]
    return group_ids, np.random.default_rng(seed).random(len(group_ids)) < rates_R


def play(controller, seed, uids, rates):
    plan = controller.plan(uids)
    group_ids, rewards = come_back(plan, seed, rates)
    losses = np.random.default_rng(seed).normal(size=len(rewards))
    return plan, controller.observe(plan, group_ids, rewards, losses=losses)


def visit(controller, uids, hits):
    """One batch: of 4 rollouts the first `hits` of each prompt are correct; advantages, (P, 4)."""
    plan = controller.plan(uids)
    groups = np.repeat(np.arange(len(uids)), plan.rollouts)
    place = np.arange(len(groups)) % 4
    rewards = (place < np.asarray(hits)[groups]).astype(float)
    return controller.observe(plan, groups, rewards).advantages.reshape(len(uids), 4)


def run_of(**changes):
    return Run(**{"num_bins": 3, "mean_rollouts": 4, "n_min": 2, "n_max": 12, "seed": 0} | changes)


def method_of(name, **given):
    """A method that has started; what is neither a setting nor an option is set as an attribute."""
    kind = find_method(name)
    names = {one.name for one in fields(kind)} if is_dataclass(kind) else set()
    settings = {key: given.pop(key) for key in ("mean_rollouts", "n_min", "n_max") if key in given}
    method = make_method(name, "default", {k: v for k, v in given.items() if k in names})
    vars(method).update({k: v for k, v in given.items() if k not in names})
    method.begin(run_of(**settings))
    return method


def prompts_of(rates, bins=None):
    """Prompts whose posterior means are the rates, for certain."""
    return batch_of(*[[0]] * len(rates), rates=rates, bins=bins)


def first_drawn(method, pool, times=4000):
    """The position of each of so many draws of one prompt."""
    rng = np.random.default_rng(0)
    return np.array([method.draw(pool, 1, rng)[0] for _ in range(times)])


def batch_of(*groups, rates=None, bins=None, successes=0.0, failures=0.0):
    """A batch with one list of 0/1 rewards a prompt, and what was known of the prompts before."""
    rows, trials = np.arange(len(groups)), np.array([len(g) for g in groups])
    if rates is not None:
        rates = np.asarray(rates)
        successes, failures = rates * CERTAIN - 0.5, (1 - rates) * CERTAIN - 0.5
    rewards = np.concatenate([np.asarray(g, float) for g in groups])
    bins = rows * 0 if bins is None else np.asarray(bins)
    return Batch(
        uids_P=rows,
        rows_P=rows,
        bins_P=bins,
        bins_after_P=bins,
        had_no_bin_P=bins < 0,
        successes_P=np.broadcast_to(successes, rows.shape).copy(),
        failures_P=np.broadcast_to(failures, rows.shape).copy(),
        rollouts_P=trials,
        trials_P=trials,
        hits_P=np.array([sum(g) for g in groups]),
        group_ids_R=np.repeat(rows, trials),
        rewards_R=rewards,
        correct_R=rewards > 0,
        given_losses_R=None,
        run=run_of(),
    )
