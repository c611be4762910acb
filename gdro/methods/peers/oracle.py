"""The pivotal draw with true pass rates: how much knowing them exactly would be worth. For reference only.

P_i = (1 − ε) p_i (1 − p_i)^(k−1) / Σ p (1 − p)^(k−1) + ε/D, as in `pivotal`, with p from the caller. Weights
and advantages are GRPO's, so that the draw alone is compared.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gdro.core.checks import check_array, check_int, check_number, option
from gdro.methods.base import Method, Prompts, register
from gdro.methods.draws import mostly_in_proportion

Rates = Callable[[np.ndarray], np.ndarray]


@register("oracle")
@dataclass(eq=False)
class Oracle(Method):
    """Draws by true pass rates."""

    # from keys (D,) as `gdro.core.uids.as_uids` makes them to the pass rates (D,) of the moment; may
    # also be set later as the attribute `rates` of the method
    rates: Rates | None = None
    k: int = option(5, check_int, 1)  # of pass@k; the draw favours pass rates about 1/k
    # share of the draw that is even over the data
    epsilon: float = option(0.1, check_number, 0, 1, open_low=True, remedy="1 draws evenly")

    def draw(self, pool: Prompts, size: int, rng: np.random.Generator) -> np.ndarray:
        if self.rates is None:
            raise ValueError(
                "rates must be a function of the prompts' keys, got None; set method.rates first"
            )
        remedy = "return the pass rates of the keys"
        p_D = check_array("rates", self.rates(pool.keys_P), pool.keys_P.shape, 0, 1, remedy=remedy)
        return mostly_in_proportion(p_D * (1 - p_D) ** (self.k - 1), self.epsilon, size, rng)
