"""The compute adversary (section 3.3): bins and a budget in, rollouts per bin out, at a price.

Axes: B bins, N arms (the rollout counts n_min … n_max a prompt may get). The pure functions are
equations (20)–(21), the EXP3.P strategies and the exact joint choice of arms; `RolloutGDRO` holds
the arm scores and the shadow price. **Where a rollout count is decided: `RolloutGDRO.allocate`.**
"""

import numpy as np

from gdro.bins import check_settings
from gdro.prompt_gdro import check_adversary, debiased, ema_scores

WORD = np.dtype(np.int64).itemsize
UNREACHABLE = -(2**62)  # below any sum of keys, and far enough from overflow to add one


def arm_log_probabilities(losses_BN, eta, gamma):
    """log p_b(n) of exponential weights over arm losses, mixed with a uniform share γ. (..., B, N)."""
    scores_BN = -eta * np.asarray(losses_BN, float)
    scores_BN -= scores_BN.max(axis=-1, keepdims=True)
    odds_BN = np.exp(scores_BN)
    total_B = odds_BN.sum(axis=-1, keepdims=True)
    if gamma == 0:
        return scores_BN - np.log(total_B)  # exact where the odds underflow
    return np.log((1 - gamma) * odds_BN / total_B + gamma / odds_BN.shape[-1])


def exp3p_losses(chosen_losses_B, chosen_arms_B, chances_BN, bonus):
    """EXP3.P's estimated arm losses, (1[n chosen]·L − bonus)/p floored into every arm, (B, N).

    chosen_losses_B: loss of the arm each bin played, NaN for a bin that played none (its row is NaN).
    chances_BN: (B, N), the chance with which each arm was to be played. Dividing by it makes the
    estimate unbiased when bonus is 0; bonus > 0 keeps every arm optimistic by bonus/p
    (Auer et al. 2002, Bubeck and Cesa-Bianchi 2012, section 3.2). NaN for an arm of chance 0, which
    the budget ruled out and of which nothing can be said.
    """
    chosen_BN = np.arange(chances_BN.shape[-1]) == np.asarray(chosen_arms_B)[..., None]
    losses_BN = np.where(chosen_BN, np.asarray(chosen_losses_B, float)[..., None], 0.0) - bonus
    losses_BN = np.divide(losses_BN, chances_BN, out=np.full(chances_BN.shape, np.nan), where=chances_BN > 0)
    return np.where(np.isnan(chosen_losses_B)[..., None], np.nan, losses_BN)


def price_step(price, spent, mean_rollouts, price_lr):
    """μ ← μ + α_μ (n̂ − n̄), (21)."""
    return price + price_lr * (spent - mean_rollouts)


def best_joint_arms(values_BN, counts_B, arms_N, budget):
    """Arms that maximize Σ_b values_b(n_b) among those with Σ_b c_b n_b = budget, exactly.

    values_BN: (B, N). counts_B: (B,) prompts, positive. arms_N: (N,) consecutive integers.
    budget: rollouts of the whole batch. Returns (rollouts (B,), rollouts left over). Nothing is left
    over where some choice meets the budget; otherwise the choice spends the most that stays below it.

    Dynamic programming over bins × budget. Ties go to the choice nearest to an even split, smallest
    Σ_b c_b (n_b − budget/Σc)². What ties even then is decided by the bins' own counts and values: the
    bins are put in the order of those before the search, so their numbering has no say.
    """
    counts_B = np.asarray(counts_B, np.int64)
    arms_N = np.asarray(arms_N, np.int64)
    prompts = int(counts_B.sum())
    spare = int(budget) - prompts * int(arms_N[0])  # beyond the smallest arm everywhere
    if spare < 0:
        raise ValueError(
            f"budget {budget} is below the smallest arm {arms_N[0]} for each of {prompts} prompts; "
            "raise mean_rollouts or lower n_min"
        )
    values_BN = np.asarray(values_BN, float)
    order = np.lexsort((*values_BN.T, counts_B))
    counts_B = counts_B[order]
    keys_BN = _tie_broken_keys(values_BN[order], counts_B, arms_N, budget / prompts)
    steps_N = arms_N - arms_N[0]

    # tables[b][pad + s]: key of the best arms of the first b bins that spend s
    counts = counts_B.tolist()
    pad, reach = counts[-1] * int(steps_N[-1]), 0
    table = np.full(pad + spare + 1, UNREACHABLE)
    table[pad] = 0
    tables = [table]
    for keys_N, count in zip(keys_BN, counts, strict=True):
        reach = min(spare, reach + count * int(steps_N[-1]))
        fits = min(len(arms_N), spare // count + 1)
        before = np.ndarray(  # a view whose row j reads the table j·count places back
            (fits, reach + 1), np.int64, table, pad * WORD, (-count * WORD, WORD)
        )
        table = table.copy()
        np.maximum.reduce(before + keys_N[:fits, None], out=table[pad : pad + reach + 1])
        tables.append(table)

    spent = int(np.flatnonzero(table[pad:] > UNREACHABLE // 2)[-1])
    left_over, chosen = spare - spent, np.empty(len(counts), np.int64)
    for b in reversed(range(len(counts))):
        chosen[b] = (tables[b][pad + spent - counts[b] * steps_N] + keys_BN[b]).argmax()
        spent -= counts[b] * int(chosen[b])
    rollouts = np.empty_like(chosen)
    rollouts[order] = arms_N[chosen]
    return rollouts, left_over


def _tie_broken_keys(values_BN, counts_B, arms_N, mean):
    """Integers whose sums order choices by value and, where that ties, by evenness. (B, N).

    In integers a sum is exact in any order, so a tie is an equality and not a matter of rounding.
    Evenness takes the low bits (mean to a quarter rollout), the value all that remain of 60: with
    256 prompts a grid of about 1e-9.
    """
    uneven_BN = counts_B[:, None] * (4 * arms_N - round(4 * mean)) ** 2
    low_bits = int(uneven_BN.max(axis=1).sum()).bit_length()
    largest_sum = np.abs(values_BN).max(axis=1).sum()
    high_bits = 60 - low_bits - max(int(np.ceil(np.log2(largest_sum + 1))), 1)
    return (np.rint(values_BN * 2.0**high_bits).astype(np.int64) << low_bits) - uneven_BN


def sample_joint_arms(log_p_BN, counts_B, arms_N, budget, rng):
    """Arms drawn from Π_b p_b(n_b), given that Σ_b c_b n_b = budget.

    As `best_joint_arms`, with sums in place of maxima (forward filtering, backward sampling).
    Returns (rollouts (B,), left over, chances (B, N)): the chance of each arm under the very
    distribution that was sampled, which is what an importance weight must divide by. A strategy's
    chance below e^(−600/B) is taken to be that, so that no product of B of them underflows to
    "out of reach".
    """
    counts_B = np.asarray(counts_B, np.int64)
    steps_N = np.asarray(arms_N, np.int64) - arms_N[0]
    spare = int(budget - counts_B.sum() * arms_N[0])
    p_BN = np.exp(np.maximum(log_p_BN, -600.0 / len(counts_B)))
    forward = _spend_distributions(p_BN, counts_B, steps_N, spare)
    backward = _spend_distributions(p_BN[::-1], counts_B[::-1], steps_N, spare)[::-1]
    spent = int(np.flatnonzero(forward[-1] > 0)[-1])

    chances_BN = np.zeros_like(p_BN)
    for b, count in enumerate(counts_B):
        for arm, step in enumerate(steps_N):
            rest = spent - int(count * step)
            if rest >= 0:
                ways = forward[b][: rest + 1] @ backward[b + 1][rest::-1]
                chances_BN[b, arm] = p_BN[b, arm] * ways
    chances_BN /= chances_BN.sum(axis=1, keepdims=True)

    rollouts, remaining = np.empty(len(counts_B), np.int64), spent
    for b in reversed(range(len(counts_B))):
        before = remaining - counts_B[b] * steps_N
        weights = np.where(before >= 0, p_BN[b] * forward[b][np.maximum(before, 0)], 0.0)
        arm = int(rng.choice(len(steps_N), p=weights / weights.sum()))
        rollouts[b] = arms_N[arm]
        remaining = int(before[arm])
    return rollouts, spare - spent, chances_BN


def _spend_distributions(p_BN, counts_B, steps_N, spare):
    """[b][s]: chance, up to a factor, that the first b bins spend s beyond the smallest arm."""
    tables = [np.eye(1, spare + 1)[0]]
    for p_N, count in zip(p_BN, counts_B, strict=True):
        table = np.zeros(spare + 1)
        for p, step in zip(p_N, steps_N, strict=True):
            shift = int(count * step)
            if shift <= spare:
                table[shift:] += p * tables[-1][: spare + 1 - shift]
        tables.append(table / table.sum())
    return tables


class RolloutGDRO:
    """EXP3.P over rollout counts in each bin, joined by an exact budget and a shadow price.

    n_min, n_max: smallest and largest arm. mean_rollouts: n̄, the budget per prompt, in [n_min, n_max].
    eta, gamma: step size and uniform share of the strategies. ema: weight of the newest arm loss.
    price_lr: α_μ of (21).

    utility, what an arm is worth:
      "variance"  −v_b/n, (28), v_b the variance of the bin's rewards. Known for every arm once v_b is,
                  so all arms learn from each step and nothing need be explored. Taken relative to the
                  average bin, v_b/v̄ · n̄²/n, so that the price is about 1 at balance whatever the
                  rewards' scale; the allocation does not depend on that.
      "loss"      Ĵ_b(n) of (17)–(18), as printed: only the arm played is seen, so its loss is divided
                  by the chance of having played it (EXP3.P).
    selection, how the arms are joined:
      "argmax"    the joint choice of greatest probability among those that meet the budget
      "sample"    a draw from the product of the strategies, given that the budget is met
      None        "argmax" for "variance", "sample" for "loss" (a bandit that never samples learns
                  nothing of the arms it does not play)
    joint: "prompts" counts a bin's log-probability once for each of its prompts, which makes argmax
      under "variance" the minimizer of (28), that is (30), but for the floor that gamma puts under
      improbable arms; "bins" once for each bin, as printed.
    debias: scores start from the data, as in `PromptGDRO`; False starts every arm at 0, as printed.
    price_driver: "demand", what the strategies would spend before the budget is imposed; "realized",
      what was spent, as printed: the budget is met every step, so that price never moves.
    """

    def __init__(
        self,
        num_bins: int = 10,
        n_min: int = 2,
        n_max: int = 12,
        mean_rollouts: float = 4,
        eta: float = 0.65,
        gamma: float = 0.01,
        ema: float = 0.4,
        price_lr: float = 0.05,
        utility: str = "variance",
        selection: str | None = None,
        joint: str = "prompts",
        price_driver: str = "demand",
        bonus: float = 0.01,
        debias: bool = True,
        seed: int = 0,
    ):
        check_adversary(num_bins, eta, gamma, ema)
        for name, arm in (("n_min", n_min), ("n_max", n_max)):
            if not isinstance(arm, int | np.integer) or isinstance(arm, bool) or arm < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {arm!r}")
        if n_min > n_max:
            raise ValueError(f"n_min must not exceed n_max, got {n_min} > {n_max}; swap or equal them")
        if not n_min <= mean_rollouts <= n_max:
            raise ValueError(
                f"mean_rollouts must lie in [n_min, n_max] = [{n_min}, {n_max}], got {mean_rollouts}; "
                "no allocation could meet that budget"
            )
        for name, value in (("price_lr", price_lr), ("bonus", bonus)):
            if not 0 <= value < np.inf:
                raise ValueError(f"{name} must be ≥ 0 and finite, got {value}; 0 switches it off")
        check_choice("utility", utility, ("variance", "loss"))
        check_choice("selection", selection, (None, "argmax", "sample"))
        check_choice("joint", joint, ("prompts", "bins"))
        check_choice("price_driver", price_driver, ("demand", "realized"))
        self.num_bins, self.n_min, self.n_max = num_bins, n_min, n_max
        self.mean_rollouts, self.eta, self.gamma, self.ema = mean_rollouts, eta, gamma, ema
        self.price_lr, self.utility, self.joint = price_lr, utility, joint
        self.selection = selection or ("argmax" if utility == "variance" else "sample")
        self.price_driver, self.bonus, self.seed = price_driver, bonus, seed
        self.debias = debias

        self.arms = np.arange(n_min, n_max + 1)
        self.price = 0.0
        self.infeasible_steps = 0  # steps whose bins admitted no exact choice of arms
        self._ema_BN = np.zeros((num_bins, len(self.arms)))
        self._visits_BN = np.zeros(self._ema_BN.shape, np.int64)
        self._step = 0
        self._log_p_BN: np.ndarray | None = None  # kept until the scores or the price move
        self._chances_BN = self.probabilities()

    def losses(self) -> np.ndarray:
        """Arm losses L_b(n) = −Ĵ_b(n) + μ n, (20), at the present price, (B, N)."""
        scores_BN = self._ema_BN
        if self.debias:
            scores_BN = debiased(self._ema_BN, self._visits_BN, self.ema)
        if self.utility == "variance":
            average = (scores_BN[:, 0] * self.arms[0]).mean()  # v̄, from v_b/n at the first arm
            scores_BN = scores_BN * (self.mean_rollouts**2 / average if average > 0 else 0.0)
        return scores_BN + self.price * self.arms

    def probabilities(self) -> np.ndarray:
        """Strategies p_b(n) before the budget is imposed, (B, N); each row sums to one."""
        return np.exp(self._log_probabilities())

    def _log_probabilities(self):
        if self._log_p_BN is None:
            self._log_p_BN = arm_log_probabilities(self.losses(), self.eta, self.gamma)
        return self._log_p_BN

    def demand(self, bin_counts) -> float:
        """Mean rollouts a prompt would get if every bin played its own strategy."""
        return self._demand(self._checked_counts(bin_counts))

    def _demand(self, counts_B):
        return float(counts_B @ (self.probabilities() @ self.arms) / counts_B.sum())

    def allocate(self, bin_counts, budget: int | None = None) -> np.ndarray:
        """Rollouts for each prompt of each bin, (B,) integers, 0 for a bin without prompts.

        bin_counts: (B,) prompts of the batch. budget: rollouts in all, default n̄ × prompts. They are
        spent exactly, Σ_b c_b n_b = budget, wherever some choice of arms does so; where none does,
        the most below the budget is spent, `infeasible_steps` counts it, and the caller hands what
        is left to single prompts (`GDROController.plan`).
        Raises ValueError if the budget is not whole or lies outside [n_min, n_max] per prompt.
        """
        counts_B = self._checked_counts(bin_counts)
        budget = self._checked_budget(counts_B, budget)
        present, samples = np.flatnonzero(counts_B), self.selection == "sample"
        # bins alike in everything are told apart by a coin, not by their number
        alike = len(set(counts_B[present].tolist())) < len(present)
        rng = self._generator() if samples or alike else None
        shuffled = present if rng is None else rng.permutation(present)
        counts, log_p = counts_B[shuffled], self._log_probabilities()[shuffled]
        if not samples:
            values = log_p * counts[:, None] if self.joint == "prompts" else log_p
            chosen, left_over = best_joint_arms(values, counts, self.arms, budget)
            chances = np.exp(log_p)
        else:
            chosen, left_over, chances = sample_joint_arms(log_p, counts, self.arms, budget, rng)
        self._chances_BN = np.full((self.num_bins, len(self.arms)), np.nan)
        self._chances_BN[shuffled] = chances
        self.infeasible_steps += left_over > 0
        rollouts_B = np.zeros(self.num_bins, np.int64)
        rollouts_B[shuffled] = chosen
        return rollouts_B

    def _generator(self):
        return np.random.default_rng((self.seed, self._step))

    def update(self, bin_counts, rollouts, observed, spent: float | None = None) -> float:
        """Learn from a step, then move the price. Returns the demand the strategies had before.

        bin_counts: (B,) prompts of the step. rollouts: (B,) as `allocate` gave them. observed: (B,),
        NaN where there is none: the variance of the bin's rewards under utility "variance", the mean
        loss −Ĵ_b(n_b) of (18) under "loss". spent: rollouts per prompt in all, where single prompts
        got others than their bin's; by default Σ_b c_b n_b / Σ_b c_b.
        """
        counts_B = self._checked_counts(bin_counts)
        rollouts_B = np.asarray(rollouts)
        observed_B = np.asarray(observed, float)
        if observed_B.shape != (self.num_bins,) or rollouts_B.shape != (self.num_bins,):
            raise ValueError(
                f"rollouts and observed must have one value for each of {self.num_bins} bins, "
                f"got shapes {rollouts_B.shape} and {observed_B.shape}"
            )
        demand = self._demand(counts_B)
        if spent is None:
            spent = float(counts_B @ rollouts_B / counts_B.sum())
        new_BN = self._arm_losses(observed_B, rollouts_B)
        self._ema_BN = ema_scores(self._ema_BN, new_BN, self.ema)
        self._visits_BN += ~np.isnan(new_BN)
        driver = demand if self.price_driver == "demand" else spent
        self.price = price_step(self.price, driver, self.mean_rollouts, self.price_lr)
        self._step += 1
        self._log_p_BN = None
        return demand

    def _arm_losses(self, observed_B, rollouts_B):
        if self.utility == "variance":
            return observed_B[:, None] / self.arms
        observed_B = np.where(rollouts_B > 0, observed_B, np.nan)
        arms_played = np.maximum(rollouts_B - self.n_min, 0)
        return exp3p_losses(observed_B, arms_played, self._chances_BN, self.bonus)

    def _checked_counts(self, bin_counts):
        counts_B = np.asarray(bin_counts)
        is_counts = counts_B.shape == (self.num_bins,) and counts_B.dtype.kind in "iu"
        if not is_counts or counts_B.min() < 0 or not counts_B.any():
            raise ValueError(
                f"bin_counts must be {self.num_bins} integers ≥ 0, not all zero, got {counts_B}; "
                "count the prompts of each bin with numpy.bincount(bin_ids, minlength=num_bins)"
            )
        return counts_B.astype(np.int64)

    def _checked_budget(self, counts_B, budget):
        prompts = int(counts_B.sum())
        wanted = self.mean_rollouts * prompts if budget is None else budget
        whole = as_whole(wanted)
        if whole is None or not self.n_min * prompts <= whole <= self.n_max * prompts:
            raise ValueError(
                f"budget must be a whole number of rollouts between n_min and n_max for each of "
                f"{prompts} prompts, got {wanted}; change mean_rollouts or the batch size"
            )
        return whole

    def state_dict(self) -> dict:
        """Settings and price as plain values, scores as arrays."""
        return {
            "settings": self._settings(),
            "price": float(self.price),
            "step": self._step,
            "infeasible_steps": int(self.infeasible_steps),
            "ema": self._ema_BN.copy(),
            "visits": self._visits_BN.copy(),
            "chances": self._chances_BN.copy(),
        }

    def load_state_dict(self, state: dict) -> None:
        """Inverse of `state_dict`; ValueError if the state is of other settings."""
        check_settings("RolloutGDRO", self._settings(), state["settings"])
        self.price, self._step = float(state["price"]), int(state["step"])
        self.infeasible_steps = int(state["infeasible_steps"])
        self._ema_BN = np.array(state["ema"])
        self._visits_BN = np.array(state["visits"])
        self._chances_BN = np.array(state["chances"])
        self._log_p_BN = None

    def _settings(self):
        names = (
            "num_bins n_min n_max mean_rollouts eta gamma ema price_lr utility selection joint "
            "price_driver bonus debias seed"
        )
        return {name: getattr(self, name) for name in names.split()}


def as_whole(value):
    """The integer that `value` is but for rounding (4.1 × 30 comes out below 123), None if it is none."""
    nearest = round(value)
    return nearest if abs(value - nearest) <= 1e-9 * max(abs(value), 1.0) else None


def check_choice(name, value, choices):
    """ValueError unless `value` is one of the named choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {choices}, got {value!r}")
