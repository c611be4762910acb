"""Methods that sample more than once for an optimizer step.

TRL samples and scores a batch in one function, `_generate_and_score_completions`, which asks
`_generate` for completions and `_calculate_rewards` for their rewards. A method that samples in
rounds needs the rewards before it knows what it trains on. So a step has two parts:

1. `sample_step` calls `_generate` and `_calculate_rewards` itself, once for each round.
2. TRL's function is called on what was chosen of that. While it runs, the two functions return
   this batch in place of sampling and judging (`given_rollouts`), and those of a subclass are not
   called again.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from accelerate.utils import gather_object
from torch import Tensor
from trl import GRPOTrainer

from gdro.rounds import Outcomes, sample_in_rounds
from gdro.trl.prompts import plan_batch
from gdro.trl.step import Step, TrainBatch, own_share, split_rollouts
from gdro.trl.values import PromptBatch, Row, copy_of, replaced

MOST_BATCHES = 100  # in one step, for a method that is never ready


def sample_step(trainer: GRPOTrainer, inputs: list[Row]) -> Step:
    """Sample, reward and observe batches until the method lets the optimizer step.

    ValueError for a method that is never ready, as where no reward comes (TRL warns of that).
    """
    step = Step()
    for _ in range(MOST_BATCHES):
        if _sample_batch(trainer, inputs, step):
            return step
    raise ValueError(
        f"gdro_method={trainer.controller.name!r} was not ready for an optimizer step after "
        f"{MOST_BATCHES} batches: no reward may have come, or no group with both outcomes"
    )


def _sample_batch(trainer: GRPOTrainer, inputs: list[Row], step: Step) -> bool:
    """Add the rounds of one batch to a step; whether the method is ready after it."""
    spent = step.spent
    seen_tokens = trainer.state.num_input_tokens_seen
    with trainer._clock.timed("controller"):
        batch, plan = plan_batch(trainer, inputs)

    def sample_and_reward(new_R: np.ndarray) -> Outcomes:
        _sample(trainer, batch, new_R, step)
        new = trainer._judge(new_R, step.rewards_RF[-len(new_R) :])
        return Outcomes(new.rewards_R, new.correct_R)

    samples = sample_in_rounds(trainer.controller, plan, sample_and_reward)
    tokens = int(trainer.state.num_input_tokens_seen - seen_tokens)
    with trainer._clock.timed("controller"):
        signal = trainer._observe(plan, samples, step.spent - spent, tokens, None)
    step.add_signal(signal, samples.group_ids_R, plan)
    return signal.ready


def _sample(trainer: GRPOTrainer, batch: PromptBatch, new_R: np.ndarray, step: Step) -> None:
    """Add rollouts of the prompts at these places of a batch to the step.

    `own_share` says which of them come twice.
    """
    rows = batch.read(own_share(new_R, trainer.accelerator))
    prompts = [row["prompt"] for row in rows]
    output = trainer._generate(prompts)
    _, completion_ids, _, completions, *_ = output
    # rewards are given the lists themselves: what they write there is not trained on
    sampled = copy_of([prompts, *output])
    rewards_RF = trainer._calculate_rewards(rows, prompts, completions, completion_ids)
    rollouts = split_rollouts(sampled, trainer._pending_extra_logs)
    trainer._pending_extra_logs.clear()  # `logs.log_step` brings them back
    uids = [batch.uids[p] for p in new_R.tolist()]
    step.add_rollouts(uids, gather_object(rollouts), rewards_RF)
    step.spent += len(rows) * trainer.accelerator.num_processes  # with rows that came twice


@contextmanager
def given_rollouts(trainer: GRPOTrainer, batch: TrainBatch) -> Iterator[None]:
    """In this block TRL's step takes a batch in place of sampling and judging."""

    def generated(prompts: list) -> tuple:
        return batch.generated()

    def rewards(*given: object, **named: object) -> Tensor:
        return batch.rewards_RF.to(trainer.accelerator.device)

    with replaced(trainer, _generate=generated, _calculate_rewards=rewards):
        yield
