"""The controller in TRL: asked for a plan before generation, told of the rewards after it.

Axes: P prompts of a generation batch, R its rollouts, of all processes; F reward functions; D
prompts of the data set; T tokens.
"""

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor

from gdro.controller import Plan
from gdro.metrics import is_correct
from gdro.rounds import Samples
from gdro.trl.data import UidData, prompts_of_batch
from gdro.trl.logs import Logs
from gdro.trl.values import Cost, LossInputs, Row, Signal, has_spread


class ControlledTrainer(Logs):
    """GRPOTrainer with a controller between its data and its advantages."""

    data: UidData

    def _set_signature_columns_if_needed(self) -> None:
        """Keep the column of uids where `remove_unused_columns` drops others."""
        super()._set_signature_columns_if_needed()
        if self.args.uid_column not in self._signature_columns:
            self._signature_columns.append(self.args.uid_column)

    def _next_prompts(self, inputs: list[Row]) -> list[Row]:
        """The prompts of the next batch, (P,) rows of the data set.

        Args:
            inputs: TRL's rows for this process, each prompt `num_generations` times.
        """
        size = self.args.generation_batch_size // self.num_generations
        drawn_P = None
        if self.data.uids_D is not None:
            drawn_P = self.controller.draw(self.data.uids_D, size)
        if drawn_P is None and self.controller.method.waits:
            # TRL's order has one batch a step
            drawn_P = prompts_of_batch(
                self.controller.planned,
                size,
                total=len(self.train_dataset),
                seed=self.args.seed,
                shuffled=self.shuffle_dataset,
            )
        if drawn_P is None:  # TRL's, of all processes, each once
            return gather_object(inputs)[:: self.num_generations]
        return self.train_dataset.__getitems__(drawn_P.tolist())  # in one read

    def _plan(self, prompts: list[Row]) -> Plan:
        """How many rollouts each prompt gets."""
        if self.data.dataset is None:
            # environments make the prompts: none is known to come again, so none has a history
            first = len(self.controller.bins.row_of)
            return self.controller.plan(range(first, first + len(prompts)))
        return self.controller.plan([self._uid_of(row) for row in prompts])

    def _uid_of(self, row: Row) -> int | str:
        column = self.args.uid_column
        if column not in row:
            raise ValueError(
                f"rows of train_dataset must keep the column {column!r}, got {sorted(row)}: name "
                "it in the format of the data set"
            )
        uid = row[column]
        return uid.item() if hasattr(uid, "item") else uid  # type: ignore  # torch's or numpy's

    def _judge(self, group_ids_R: np.ndarray, rewards_RF: Tensor) -> Samples:
        """Rollouts with the weighted sum of their rewards, and which of them are correct.

        Args:
            group_ids_R: position of each rollout's prompt.
            rewards_RF: on the CPU; NaN where a function gave none.

        Returns:
            The rollouts. One whose sum, or `success_reward`, is not finite has no reward.
        """
        rewards_R = (rewards_RF * self.reward_weights.cpu()).nansum(dim=1)
        rewards_R[rewards_RF.isnan().all(dim=1)] = torch.nan
        successes_R = rewards_R
        if self.args.success_reward is not None:
            named_R = rewards_RF[:, self.reward_func_names.index(self.args.success_reward)]
            # where it gives None, as for rows of another task, the others judge
            successes_R = torch.where(named_R.isnan(), rewards_R, named_R)
        rewards_R[~(rewards_R.isfinite() & successes_R.isfinite())] = torch.nan
        correct_R = is_correct(successes_R.numpy(), self.controller.success_threshold)
        return Samples(group_ids_R, rewards_R.numpy(), correct_R)

    def _observe(
        self, plan: Plan, samples: Samples, cost: Cost, losses_R: np.ndarray | None = None
    ) -> Signal:
        """Tell the controller what came back for a plan, and write it down.

        Args:
            plan: in flight.
            samples: all rollouts of the plan.
            cost: what they have cost.
            losses_R: surrogate losses of all rollouts; None where the controller takes −A.
        """
        is_scored_R = samples.is_scored_R
        advantages_R = np.zeros(len(is_scored_R))
        is_flat_R = np.ones(len(is_scored_R), bool)
        if not is_scored_R.any():  # nothing to observe, and a method that waits goes on waiting
            self.controller.cancel(plan)
            return Signal(advantages_R, is_flat_R, ready=not self.controller.method.waits)
        scored = samples.scored()
        observed = self.controller.observe(
            plan,
            scored.group_ids_R,
            scored.rewards_R,
            correct=scored.correct_R,
            losses=None if losses_R is None else losses_R[is_scored_R],
        )
        advantages_R[is_scored_R] = observed.advantages
        is_flat_R[is_scored_R] = ~has_spread(scored.rewards_R, scored.group_ids_R)
        signal = Signal(advantages_R, is_flat_R, observed.ready)
        self._note(observed.row, cost, signal)
        self._warn_of_silence(scored)
        return signal

    def _put_advantages(self, output: LossInputs, local_rows: slice, signal: Signal) -> None:
        """Replace TRL's advantages, in what its loss takes and in its log."""
        advantages_R = torch.as_tensor(signal.advantages_R).to(output["advantages"])
        output["advantages"] = advantages_R[local_rows]
        self._log_signal(signal)

    @torch.no_grad()
    def _logps(self, output: LossInputs, rows: slice = slice(None)) -> Tensor:
        """Log-probabilities of the completions of some rows at the policy as it is, (R, T)."""
        sides = ("prompt", "completion")
        logps_RT, *_ = self._get_per_token_logps_and_entropies(
            self.model,
            torch.cat([output[f"{side}_ids"][rows] for side in sides], dim=1),
            torch.cat([output[f"{side}_mask"][rows] for side in sides], dim=1),
            output["completion_ids"].size(1),
            batch_size=self.args.per_device_train_batch_size,
        )
        return logps_RT
