"""A method of your own, in one file: rollouts in proportion to the failure rate.

python examples/own_method.py
"""

import numpy as np

from gdro import GDROController, Method, options, register
from gdro.checks import Positive
from gdro.method import Prompts


@register("failures")
@options
class Failures(Method):
    """Rollouts in proportion to the estimated failure rate; the controller keeps the budget."""

    floor: Positive = 0.1
    """Weight of a prompt that never fails; one that always fails has this weight plus 1."""

    def allocate(self, prompts: Prompts, budget: int, rng: np.random.Generator) -> np.ndarray:
        return self.floor + 1 - prompts.rate_P


def mean_rollouts(method: str, rates_P: np.ndarray, steps: int = 30) -> np.ndarray:
    """Rollouts of each prompt over the second half of the steps, (P,)."""
    controller = GDROController(method, mean_rollouts=4)
    rng = np.random.default_rng(0)
    plans = []
    for _ in range(steps):
        plan = controller.plan(np.arange(len(rates_P)))
        group_ids_R = np.repeat(np.arange(len(plan)), plan.rollouts)
        controller.observe(plan, group_ids_R, rng.random(len(group_ids_R)) < rates_P[group_ids_R])
        plans.append(plan.rollouts)
    return np.mean(plans[steps // 2 :], axis=0)


if __name__ == "__main__":
    rates_P = np.repeat([1.0, 0.5, 0.0], 8)
    print(f"{'pass rate':10}" + "".join(f"{rate:8}" for rate in rates_P[::8]))
    for name in ("grpo", "rollout", "failures"):
        print(
            f"{name:10}"
            + "".join(f"{n:8.1f}" for n in mean_rollouts(name, rates_P).reshape(3, 8).mean(1))
        )
