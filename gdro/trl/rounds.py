"""Methods that sample more than once for an optimizer step.

TRL samples and scores a batch in one function, `_generate_and_score_completions`, which asks
`_generate` for completions and `_calculate_rewards` for their rewards. A method that samples in
rounds needs the rewards before it knows what it trains on. So a step has two parts:

1. Each round calls `_generate` and `_calculate_rewards` itself (`sample`).
2. TRL's function is called on what was chosen of that. While it runs, the two functions return
   this batch in place of sampling and judging (`given_rollouts`), and those of a subclass are not
   called again.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
from accelerate.utils import gather_object
from torch import Tensor
from trl import GRPOTrainer

from gdro.trl.logs import Silence
from gdro.trl.step import Step, TrainBatch, own_share, split_rollouts
from gdro.trl.values import PromptBatch, replaced

MOST_BATCHES = 100  # in one step, for a method that is never ready


def sample(trainer: GRPOTrainer, batch: PromptBatch, new_R: np.ndarray, step: Step) -> None:
    """Add rollouts of the prompts at these places of a batch to the step.

    `own_share` says which of them come twice.
    """
    rows = batch.read(own_share(new_R, trainer.accelerator))
    _check_text(trainer.args.gdro_method, rows)
    prompts = [row["prompt"] for row in rows]
    output = trainer._generate(prompts)
    _, completion_ids, _, completions, *_ = output
    rewards_RF = trainer._calculate_rewards(rows, prompts, completions, completion_ids)
    rollouts = split_rollouts(prompts, output, trainer._pending_extra_logs)
    trainer._pending_extra_logs.clear()  # `TrainBatch.extras` brings back those that train
    uids = [batch.uids[p] for p in new_R.tolist()]
    step.add_rollouts(uids, gather_object(rollouts), rewards_RF)
    step.spent += len(rows) * trainer.accelerator.num_processes  # with rows that came twice


def _check_text(choice: str, rows: Sequence[Mapping[str, object]]) -> None:
    # a stream may not know its columns, and `config.check_data` cannot see them
    columns = ("image", "images")
    images = [name for name in columns if any(row.get(name) is not None for row in rows)]
    if images:
        raise ValueError(f"gdro_method={choice!r} works only with text, got {images}")


@contextmanager
def given_rollouts(trainer: GRPOTrainer, batch: TrainBatch) -> Iterator[None]:
    """In this block TRL's step takes a batch in place of sampling and judging."""

    def generated(prompts: list) -> tuple:
        return batch.generated()

    def rewards(*given: object, **named: object) -> Tensor:
        # TRL empties this into its table of completions once the rewards are there
        trainer._pending_extra_logs.update(batch.extras())
        return batch.rewards_RF.to(trainer.accelerator.device)

    with replaced(trainer, _generate=generated, _calculate_rewards=rewards):
        yield


def never_ready(choice: str, silence: Silence) -> ValueError:
    """The error for a method that is never ready, also because no reward comes."""
    found = "no rollout had a reward"
    if silence.rates:
        rate = np.mean(silence.rates)
        batches = len(silence.rates)
        found = f"the last batches with rewards ({batches}) had {rate:.1%} correct rollouts"
    return ValueError(
        f"gdro_method={choice!r} was not ready for an optimizer step after {MOST_BATCHES} "
        f"batches; {found}"
    )
