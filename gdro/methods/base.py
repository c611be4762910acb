"""The seam: one class a method, one registry. Override the one or two functions that your method is about.

    @register("failures")
    class Failures(Method):
        def allocate(self, prompts, budget, rng):
            return 1.1 - prompts.rate_P        # rollouts in proportion to the failure rate

The controller then guarantees the exact budget, the bounds on rollouts, finite numbers, determinism, and that
results do not depend on the order of the batch: a method sees prompts in the order of their uid keys.

Axes: P the prompts of the object at hand (the data set in `draw`, the planned batch in `allocate`, those that
came back in a `Batch`), R rollouts, B bins, D prompts seen so far.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any, ClassVar, TypeVar

import numpy as np

from gdro.core.beliefs import FadingCounts, resized
from gdro.core.checks import build, check_choice, check_int, check_number, check_options, option
from gdro.core.limits import LARGEST
from gdro.core.saved import Saved

EPSILON = 1e-4  # of (3), as in TRL


def read_only(array: np.ndarray) -> np.ndarray:
    """The array itself, which from now on refuses to be written to."""
    array.flags.writeable = False
    return array


def derived(compute: Callable[[Any], np.ndarray]) -> cached_property[np.ndarray]:
    """A property computed when first asked for, and read-only."""
    return cached_property(wraps(compute)(lambda owner: read_only(compute(owner))))


@dataclass(frozen=True)
class Run:
    """What a method may know of the run: sizes, budget, and how (3) is computed."""

    num_bins: int
    mean_rollouts: float  # n̄, rollouts per prompt over a batch
    n_min: int  # bounds on a prompt's rollouts
    n_max: int
    seed: int = option(0, check_int, 0)
    advantage_std: str = option("population", check_choice, ("population", "sample"))
    scale_rewards: str = option("group", check_choice, ("group", "batch", "none"))
    advantage_clip: float | None = option(
        None, check_number, 0, LARGEST, open_low=True, also=[None], remedy="None clips nothing"
    )

    def __post_init__(self) -> None:
        check_options(self, "GDROController")


@dataclass(kw_only=True, eq=False, frozen=True)
class Prompts:
    """What is known of P prompts before they are sampled. All arrays are read-only."""

    keys_P: np.ndarray  # 64-bit keys of the uids, in increasing order
    rows_P: np.ndarray  # a stable index for each prompt, for a method's own arrays (see `Method.at_least`)
    bins_P: np.ndarray  # −1: not seen yet
    successes_P: np.ndarray  # counts that fade with the visits
    failures_P: np.ndarray
    memo: dict[str, Any] = field(default_factory=dict)  # from `allocate` to the batch of the same plan

    def __post_init__(self) -> None:
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                read_only(value)

    def __len__(self) -> int:
        return len(self.keys_P)

    @derived
    def alpha_P(self) -> np.ndarray:
        """First parameter of the Beta posterior of the pass rates."""
        return self.successes_P + FadingCounts.prior

    @derived
    def beta_P(self) -> np.ndarray:
        """Second parameter of the Beta posterior of the pass rates."""
        return self.failures_P + FadingCounts.prior

    @derived
    def rate_P(self) -> np.ndarray:
        """Posterior mean pass rates; ½ for a prompt without data."""
        return self.alpha_P / (self.alpha_P + self.beta_P)

    @derived
    def seen_P(self) -> np.ndarray:
        """Which prompts have a bin."""
        return self.bins_P >= 0


@dataclass(kw_only=True, eq=False, frozen=True)
class Batch(Prompts):
    """What came back for the prompts of a plan; prompts without rollouts are left out.

    Counts and rates are those before this visit. `bins_P` is the bin before it too, so that a prompt's own
    outcome does not choose the bin it counts in; on a first visit, the bin that it has just reached. In
    `extend`, where the visit is still going on, bins have not moved: `bins_after_P` equals `bins_P`, and a
    prompt on its first visit has −1 in both.
    """

    rollouts_P: np.ndarray  # as planned
    trials_P: np.ndarray  # as observed
    hits_P: np.ndarray  # correct rollouts of this visit
    bins_after_P: np.ndarray  # bins with this visit
    first_visit_P: np.ndarray  # whether a prompt had no bin when it was planned
    group_ids_R: np.ndarray  # position of each rollout's prompt in the arrays above, in increasing order
    rewards_R: np.ndarray
    correct_R: np.ndarray  # whether the reward is above the controller's success_threshold
    given_losses_R: np.ndarray | None  # surrogate losses (6), where the trainer has them
    run: Run

    def sums(self, values_R: np.ndarray) -> np.ndarray:
        """Sum over each prompt's rollouts, (P,)."""
        return np.bincount(self.group_ids_R, values_R, len(self))

    def hard_hits(self) -> tuple[float, float]:
        """Correct rollouts of hard prompts, and how many their own past says.

        Hard: visited before, with a posterior mean pass rate below ½. Where nothing is learned the second is
        no less than the first, since the prior lies above such rates.
        """
        hard_P = (self.successes_P + self.failures_P > 0) & (self.rate_P < 0.5)
        return float(self.hits_P[hard_P].sum()), float((self.trials_P * self.rate_P)[hard_P].sum())

    @derived
    def centred_R(self) -> np.ndarray:
        """Rewards less the mean of their rollout group."""
        return self.rewards_R - (self.sums(self.rewards_R) / self.trials_P)[self.group_ids_R]

    @derived
    def variance_P(self) -> np.ndarray:
        """Unbiased variance of each prompt's rewards; NaN for a single rollout."""
        return self.sums(self.centred_R**2) / np.where(self.trials_P > 1, self.trials_P - 1.0, np.nan)

    @derived
    def group_advantages_R(self) -> np.ndarray:
        """(3) within each rollout group, unweighted."""
        rule = (self.run.advantage_std, self.run.scale_rewards, self.run.advantage_clip)
        return group_advantages(self.rewards_R, self.group_ids_R, len(self), *rule)

    @derived
    def losses_P(self) -> np.ndarray:
        """(7): mean of ℓ_ij (6) over each prompt's rollouts; where no losses were given, ℓ_ij = −A_ij."""
        losses_R = -self.group_advantages_R if self.given_losses_R is None else self.given_losses_R
        return self.sums(losses_R) / self.trials_P


def group_advantages(
    rewards_R: np.ndarray,
    group_ids_R: np.ndarray,
    num_groups: int,
    std: str = "population",
    scale: str = "group",
    clip: float | None = None,
) -> np.ndarray:
    """(3): A_ij = (r_ij − μ_i) / (σ_i + ε) within rollout groups of any sizes, (R,).

    Args:
        std: "population" divides squares by n as (3) prints, "sample" by n − 1 as TRL does.
        scale: "group" divides by σ_i, "batch" by the standard deviation of all rewards, "none" by 1.
        clip: bound on |A|, None for none.
    """
    sizes_P = np.maximum(np.bincount(group_ids_R, minlength=num_groups), 1)
    means_P = np.bincount(group_ids_R, rewards_R, num_groups) / sizes_P
    advantages_R = rewards_R - means_P[group_ids_R]
    freedom = 0 if std == "population" else 1
    if scale == "group":
        squares_P = np.bincount(group_ids_R, advantages_R**2, num_groups)
        sigma_P = np.sqrt(squares_P / np.maximum(sizes_P - freedom, 1))
        advantages_R = advantages_R / (sigma_P[group_ids_R] + EPSILON)
    elif scale == "batch":
        sigma = rewards_R.std(ddof=freedom) if len(rewards_R) > 1 else 0.0
        advantages_R = advantages_R / (sigma + EPSILON)
    return advantages_R if clip is None else np.clip(advantages_R, -clip, clip)


class Method(Saved):
    """A rule for using rollouts. Every function has a neutral default, which together are GRPO.

    What the functions are given is read-only. What a method learns must be in attributes that `state` names,
    arrays with a row for each prompt in `by_prompt` too (see `gdro.core.saved.Saved`): these come back from a
    checkpoint, and are put back when a step is refused half-way.
    """

    name: ClassVar[str] = ""
    n_min: int | None = None  # bound on a prompt's rollouts in place of the controller's
    rounds: bool = False  # whether `allocate` may leave budget for `extend`
    presets: ClassVar[dict[str, dict[str, Any]]] = {}  # options by the name of a preset

    @property
    def label(self) -> str:
        """The registered name, or that of the class."""
        return self.name or type(self).__name__

    def start(self, run: Run) -> None:
        """Called once by the controller, before anything else; makes the state."""
        self.run = run

    # A method that overrides `draw` or `allocate` need not declare so too.

    @property
    def draws(self) -> bool:
        """Whether the method chooses the prompts."""
        return type(self).draw is not Method.draw

    @property
    def moves_rollouts(self) -> bool:
        """Whether prompts may get unequal numbers of rollouts."""
        return type(self).allocate is not Method.allocate

    @property
    def needs_losses(self) -> bool:
        """Whether `observe` should be given the surrogate losses (6); without them they are −A_ij."""
        return False

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray | None:
        """Positions in `pool` of the next prompts, (size,); None leaves the order to the trainer."""
        return None

    def allocate(self, prompts: Prompts, budget: int, rng: np.random.Generator) -> np.ndarray:
        """Rollouts of each prompt, (P,) numbers ≥ 0: the controller scales and rounds them to the budget."""
        return np.full(len(prompts), budget / len(prompts))

    def extend(self, batch: Batch, left: int, rng: np.random.Generator) -> np.ndarray | None:
        """Further rollouts within the step, (P,) integers with a sum of at most `left`; None to stop."""
        return None

    def weights(self, batch: Batch) -> np.ndarray:
        """Factor on each prompt's advantages, (P,)."""
        return np.ones(len(batch))

    def advantages(self, batch: Batch) -> np.ndarray:
        """Advantage of each rollout before it is weighted, (R,)."""
        return batch.group_advantages_R

    def ready(self, batch: Batch) -> bool:
        """Whether to take the optimizer step now; False adds this batch's rollouts to those of the next."""
        return True

    def update(self, batch: Batch) -> None:
        """Learn from what came back."""

    def report(self) -> dict[str, Any]:
        """Entries for the record's row: "weight", "probability", "price", "demand", or names of your own."""
        return {}

    def at_least(self, array: np.ndarray, rows_P: np.ndarray) -> np.ndarray:
        """`array` with zeros added up to the largest of the rows, so that these can index it."""
        missing = int(rows_P.max(initial=-1)) + 1 - len(array)
        return array if missing <= 0 else resized(array, len(array) + max(missing, len(array) // 2))


METHODS: dict[str, type[Method]] = {}
AnyMethod = TypeVar("AnyMethod", bound=type[Method])


def register(name: str) -> Callable[[AnyMethod], AnyMethod]:
    """Class decorator that puts a `Method` into the registry under `name`.

    Defining the same class again, as in a notebook cell, replaces it; another class of that name is refused.
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"register takes a name, @register('mine'), got {name!r}")

    def add(method: AnyMethod) -> AnyMethod:
        if not (isinstance(method, type) and issubclass(method, Method)):
            raise TypeError(f"register({name!r}) decorates a subclass of Method, got {method!r}")
        known = METHODS.get(name, method)
        if known.__qualname__ != method.__qualname__:
            raise ValueError(f"method name {name!r} is taken by {known.__qualname__}; choose another name")
        method.name, METHODS[name] = name, method
        return method

    return add


def make_method(method: str | Method, preset: str, options: Mapping[str, Any]) -> Method:
    """A method from its name, or the object itself; options override those of the preset."""
    if isinstance(method, Method):
        if hasattr(method, "run"):
            raise ValueError(f"method {method.label!r} serves another controller; make a new one for each")
        if options:
            raise ValueError(f"options must be given to the method's own constructor, got {sorted(options)}")
        return method
    check_choice("method", method, tuple(METHODS))
    chosen = dict(METHODS[method].presets.get(preset, {}))
    for name, value in options.items():
        nested = isinstance(chosen.get(name), dict) and isinstance(value, Mapping)
        chosen[name] = {**chosen[name], **value} if nested else value
    return build(f"options of method {method!r}", METHODS[method], chosen)
