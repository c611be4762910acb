"""The prior of prompts that were never sampled: its regression, and what it is worth to a draw."""

import numpy as np
import pytest
from helpers import batch_of, visit
from scipy.integrate import quad
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import betabinom, norm

from gdro import GDROController
from gdro.prior import PromptPrior, sigmoid

NUMBER = 3000  # of prompts, each sampled once, as in a first epoch
ROLLOUTS = 4


def world(slope, seed=0):
    """Lengths of prompts, and pass rates that depend on them by `slope` and on much else."""
    rng = np.random.default_rng(seed)
    lengths = rng.normal(4, 0.5, NUMBER)
    logits = -2.5 - slope * (lengths - 4) / 0.5 + rng.normal(0, 0.8, NUMBER)
    return lengths, sigmoid(logits)


def play(controller, rates, batches, seed=1):
    """Sample batches of 16 prompts, drawn among those not sampled yet; hits of each group."""
    rng = np.random.default_rng(seed)
    left = np.arange(len(rates))
    groups = []
    for _ in range(batches):
        places = controller.draw(left, 16)
        uids = left[:16] if places is None else left[places]
        plan = controller.plan(uids)
        ids = np.repeat(np.arange(16), plan.rollouts)
        correct = rng.random(len(ids)) < rates[uids][ids]
        controller.observe(plan, ids, correct.astype(float))
        groups += [np.bincount(ids[correct], minlength=16)]
        left = np.setdiff1d(left, uids)
    return np.concatenate(groups), left


def log_likelihood(rates, alpha, beta):
    """Of what four rollouts of each prompt bring, per prompt, under its Beta prior."""
    hits = np.random.default_rng(2).binomial(ROLLOUTS, rates)
    return betabinom.logpmf(hits, ROLLOUTS, alpha, beta).mean()


def taught(slope):
    """A prior after 60 batches, with the prompts that it has not seen and all rates."""
    lengths, rates = world(slope)
    prior = PromptPrior(np.arange(NUMBER), {"length": lengths})
    controller = GDROController("grpo", ROLLOUTS, prior=prior)
    _, left = play(controller, rates, 60)
    return prior, left, rates


def loss_of(x, share, correlation, before, precision):
    """Of coefficients: the log-loss of a batch and the distance to where they were."""
    worth = ROLLOUTS / (1 + (ROLLOUTS - 1) * correlation)

    def penalized(w):
        z = x @ w
        losses = np.logaddexp(0, z) - share * z
        return 0.5 * (w - before) @ precision @ (w - before) + worth * losses.sum()

    return penalized


def test_the_first_batch_moves_the_coefficients_to_the_optimum_that_scipy_finds():
    rng = np.random.default_rng(0)
    values = rng.normal(size=30)
    prior = PromptPrior(np.arange(30), {"length": values, "family": ["a", "b", "c"] * 10})
    groups = [(rng.random(ROLLOUTS) < sigmoid(value)).astype(float) for value in values]
    x = prior.features(range(30))
    share = np.array([group.mean() for group in groups])
    variance = 0.25
    excess = ((share - 0.5) ** 2 - variance / ROLLOUTS).sum()
    spread = 30 * variance * (1 - 1 / ROLLOUTS)
    # by hand: two prompts' worth of ρ = ½ beside the thirty
    rho = min((excess + 1.0) / (spread + 2.0), 0.5)
    prior.update(batch_of(*groups))
    assert prior.correlation == pytest.approx(rho)
    penalized = loss_of(x, share, rho, np.zeros(x.shape[1]), np.eye(x.shape[1]))
    best = minimize(penalized, np.zeros(x.shape[1]), method="BFGS", options={"gtol": 1e-9})
    assert prior.mean == pytest.approx(best.x, abs=1e-5)


@pytest.mark.parametrize(("slope", "least", "correlation"), [(2.0, 0.1, 0.8), (0.0, -0.02, -1)])
def test_prompts_never_seen_are_predicted_better_where_length_predicts(slope, least, correlation):
    """Than by any one prior for all; and little is lost where it means nothing."""
    prior, left, rates = taught(slope)
    alpha, beta = prior.predict(left)
    one_for_all = minimize(
        lambda log: -log_likelihood(rates[left], *np.exp(log)), [0.0, 0.0], method="Nelder-Mead"
    )
    predicted = log_likelihood(rates[left], alpha, beta)
    assert predicted > -one_for_all.fun + least
    assert predicted > log_likelihood(rates[left], 0.5, 0.5)  # what all have without a prior
    # nearly as well as by the rates' own distribution, which no one knows
    assert np.corrcoef(alpha / (alpha + beta), rates[left])[0, 1] > correlation


@pytest.mark.parametrize(("slope", "least"), [(2.0, 0.05), (0.0, -0.02)])
def test_pivotal_meets_more_mixed_groups_in_a_first_epoch(slope, least):
    """Of 40 batches; without a prior the draw among prompts that were never sampled is blind."""
    gains = []
    for seed in range(6):
        lengths, rates = world(slope, seed)
        shares = []
        for prior in (None, PromptPrior(np.arange(NUMBER), {"length": lengths})):
            controller = GDROController("pivotal", ROLLOUTS, prior=prior)
            hits, _ = play(controller, rates, 40, seed)
            shares.append(((hits > 0) & (hits < ROLLOUTS)).mean())
        gains.append(shares[1] - shares[0])
    assert np.mean(gains) > least


def test_prompts_have_a_bin_before_their_first_visit_once_anything_is_known():
    lengths, rates = world(slope=2.0)
    prior = PromptPrior(np.arange(NUMBER), {"length": lengths})
    controller = GDROController("rollout", ROLLOUTS, prior=prior)
    assert (controller.plan(np.arange(16)).prompts.bins_P == -1).all()
    _, left = play(controller, rates, 20)
    prompts = controller.plan(left[:16]).prompts
    assert (prompts.bins_P >= 0).all()
    order = np.argsort(prompts.rate_P)
    assert (np.diff(prompts.bins_P[order]) >= 0).all()  # bins follow the predicted rates


def test_a_state_of_other_features_is_refused():
    lengths, _ = world(slope=0.0)
    one = PromptPrior(np.arange(NUMBER), {"length": lengths})
    other = PromptPrior(np.arange(NUMBER), {"tokens": lengths})
    with pytest.raises(ValueError, match="tokens"):
        other.load_state_dict(one.state_dict())


@pytest.mark.parametrize(
    ("uids", "columns", "named"),
    [
        ([1, 2], {}, "columns"),
        ([1, 2], [1.0, 2.0], "columns"),
        ([1, 2], {"length": [1e200, -1e200]}, "length"),
        ([1, 2], {"length": [1.0]}, "length"),
        ([1, 2], {"length": [1.0, None]}, "length"),
        ([1, 2], {"length": [1.0, np.inf]}, "length"),
        ([1, 2], {"family": ["a", 3]}, "family"),
        ([1, 2], {"length": []}, "length"),
        ([1, 1], {"length": [1.0, 2.0]}, "uids"),
        ([], {"length": []}, "uids"),
    ],
)
def test_columns_that_say_nothing_are_refused(uids, columns, named):
    with pytest.raises(ValueError, match=named):
        PromptPrior(uids, columns)


@pytest.mark.parametrize("share", [0.2, 0.5, 1.0])
def test_the_coefficients_are_an_optimum_where_pass_rates_change_abruptly(share):
    """Full steps of Newton's method swing further and further there."""
    rng = np.random.default_rng(0)
    prior = PromptPrior(np.arange(256), {"length": rng.normal(size=256)})
    prior.update(batch_of(*[[0] * ROLLOUTS] * 256))
    earlier = 0.97 * prior.precision + 0.03 * np.eye(2)
    before = prior.mean.copy()
    groups = (rng.random((256, ROLLOUTS)) < share).astype(float)
    prior.update(batch_of(*groups))
    x = prior.features(np.arange(256))
    penalized = loss_of(x, groups.mean(axis=1), prior.correlation, before, earlier)
    best = minimize(penalized, before, method="BFGS", options={"gtol": 1e-6})
    assert penalized(prior.mean) == pytest.approx(best.fun, rel=1e-3)


def test_a_prior_of_another_controller_and_a_state_with_one_are_refused():
    prior = PromptPrior([1, 2], {"length": [1.0, 2.0]})
    state = GDROController("grpo", prior=prior).state_dict()
    with pytest.raises(ValueError, match="prior"):
        GDROController("grpo", prior=prior)
    with pytest.raises(ValueError, match="prior"):
        GDROController("grpo").load_state_dict(state)


def test_what_is_no_prior_and_prompts_that_it_does_not_know_are_refused():
    with pytest.raises(ValueError, match="prior"):
        GDROController("grpo", prior={"length": [1.0]})
    controller = GDROController("grpo", prior=PromptPrior([1, 2], {"length": [1.0, 2.0]}))
    visit(controller, [1, 2], [1, 0])
    with pytest.raises(ValueError, match="3"):
        controller.plan([1, 3])


def test_a_prediction_is_the_mean_and_the_spread_of_an_uncertain_rate():
    prior = PromptPrior(np.arange(3), {"x": [0.0, 1.0, 2.0]})
    prior.visits = 1
    prior.mean = np.array([1.0, 0.5])
    prior.precision = np.diag([12.0, 12.0])
    prior.excess, prior.spread = 0.0, 1000.0  # prompts that look alike have the same rate
    alpha_P, beta_P = prior.predict(np.arange(3))
    for x, alpha, beta in zip(prior.features(np.arange(3)), alpha_P, beta_P, strict=True):
        normal = norm(x @ prior.mean, np.sqrt((x**2).sum() / 12))
        rate = quad(lambda z, of=normal: expit(z) * of.pdf(z), -12, 12)[0]
        square = quad(lambda z, of=normal: expit(z) ** 2 * of.pdf(z), -12, 12)[0]
        assert alpha / (alpha + beta) == pytest.approx(rate, abs=0.002)
        # both are approximations
        correlation = prior.correlation + (square - rate**2) / (rate * (1 - rate))
        assert 1 / (1 + alpha + beta) == pytest.approx(correlation, rel=0.1)
