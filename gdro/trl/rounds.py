"""Methods that sample more than once for an optimizer step.

TRL samples and scores a batch in one function, `_generate_and_score_completions`, which asks
`_generate` for completions and `_calculate_rewards` for their rewards. A method that samples in
rounds needs the rewards before it knows what it trains on. So a step has two parts:

1. `_sample_step` calls `_generate` and `_calculate_rewards` itself, once for each round.
2. TRL's function is called on what was chosen of that. While it runs, the two functions return
   this batch in place of sampling and judging, and those of a subclass are not called again.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from accelerate.utils import gather_object
from torch import Tensor

from gdro.rounds import Outcomes, sample_in_rounds
from gdro.trl.controlled import ControlledTrainer
from gdro.trl.step import Step, own_share, split_rollouts
from gdro.trl.values import Cost, LossInputs, PromptBatch, Row, replaced

MOST_BATCHES = 100  # in one step, for a method that is never ready


class Rounds(ControlledTrainer):
    """GRPOTrainer that samples until the method lets the optimizer step."""

    def _finish_step(self, step: Step, local_rows: slice) -> LossInputs:
        """What TRL's loss takes, from the rollouts of a step."""
        batch = step.train_batch(self.args.generation_batch_size, local_rows)

        def generated(prompts: list) -> tuple:
            return batch.generated()

        def rewards(*given: object, **named: object) -> Tensor:
            # TRL empties this into its table of completions once the rewards are there
            self._pending_extra_logs.update(batch.extras())
            return batch.rewards_RF.to(self.accelerator.device)

        with replaced(self, _generate=generated, _calculate_rewards=rewards):
            # super(): GDROTrainer's own would sample again
            output = super()._generate_and_score_completions(batch.rows())
        self._put_advantages(output, local_rows, batch.signal)
        self._metrics["train"]["gdro/rollouts_spent"].append(step.spent)
        return output

    def _sample_step(self, inputs: list[Row]) -> Step:
        """Sample, reward and observe batches until the method lets the optimizer step.

        Raises:
            ValueError: for a method that is never ready, also because no reward comes.
        """
        step = Step()
        for _ in range(MOST_BATCHES):
            if self._sample_batch(inputs, step):
                return step
        found = "no rollout had a reward"
        if self._correct_rates:
            rate = np.mean(self._correct_rates)
            batches = len(self._correct_rates)
            found = f"the last batches with rewards ({batches}) had {rate:.1%} correct rollouts"
        raise ValueError(
            f"gdro_method={self.controller.name!r} was not ready for an optimizer step after "
            f"{MOST_BATCHES} batches; {found}"
        )

    def _sample_batch(self, inputs: list[Row], step: Step) -> bool:
        """Add the rounds of one batch to a step; whether the method is ready after it."""
        spent = step.spent
        seen_tokens = self.state.num_input_tokens_seen
        with self._timed("controller"):
            prompts = self._next_prompts(inputs)
            plan = self.controller.plan(prompts.uids)

        def sample_and_reward(new_R: np.ndarray) -> Outcomes:
            self._sample(prompts, new_R, step)
            new = self._judge(new_R, step.rewards_RF[-len(new_R) :])
            return Outcomes(new.rewards_R, new.correct_R)

        samples = sample_in_rounds(self.controller, plan, sample_and_reward)
        tokens = int(self.state.num_input_tokens_seen - seen_tokens)
        with self._timed("controller"):
            signal = self._observe(plan, samples, Cost(step.spent - spent, tokens))
        step.add_signal(signal, samples)
        return signal.ready

    def _sample(self, batch: PromptBatch, new_R: np.ndarray, step: Step) -> None:
        """Add rollouts of the prompts at these places of a batch to the step.

        `own_share` says which of them come twice.
        """
        rows = batch.read(own_share(new_R, self.accelerator))
        self._check_text(rows)
        prompts = [row["prompt"] for row in rows]
        output = self._generate(prompts)
        _, completion_ids, _, completions, *_ = output
        rewards_RF = self._calculate_rewards(rows, prompts, completions, completion_ids)
        rollouts = split_rollouts(prompts, output, self._pending_extra_logs)
        self._pending_extra_logs.clear()  # `TrainBatch.extras` brings back those that train
        uids = [batch.uids[p] for p in new_R.tolist()]
        step.add_rollouts(uids, gather_object(rollouts), rewards_RF)
        step.spent += len(rows) * self.accelerator.num_processes  # with rows that came twice

    def _check_text(self, rows: Sequence[Mapping[str, object]]) -> None:
        # a stream may not know its columns, and `config.check_data` cannot see them
        columns = ("image", "images")
        images = [name for name in columns if any(row.get(name) is not None for row in rows)]
        if images:
            raise ValueError(
                f"gdro_method={self.controller.name!r} works only with text, got {images}"
            )
