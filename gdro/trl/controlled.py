"""The controller in TRL: asked for a plan before generation, told of the rewards after it.

Axes: P prompts of a generation batch, R its rollouts, of all processes; F reward functions; D
prompts of the data set; T tokens.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from accelerate.utils import gather_object
from datasets import Dataset
from torch import Tensor
from torch.utils.data import DataLoader, Sampler
from trl import GRPOTrainer

from gdro.checks import short
from gdro.controller import Plan
from gdro.metrics import is_correct
from gdro.rounds import Samples, prompts_of_batch
from gdro.trl.data import collate
from gdro.trl.logs import Logs
from gdro.trl.values import Cost, LossInputs, PromptBatch, Row, Signal, has_spread, replaced


class ControlledTrainer(Logs):
    """GRPOTrainer with a controller between its data and its advantages."""

    _sampler: Sampler | None = None  # of the training
    _given: list[str] | None = None  # TRL's rows of the batch, as they are given

    def get_train_dataloader(self) -> DataLoader:
        """TRL's, whose rows keep their uid where `data_collator` or unused columns leave it out.

        Raises:
            ValueError: for functions of one's own that choose or change TRL's rows, where the
                method chooses others.
        """
        choose_columns = self._set_signature_columns_if_needed
        make_sampler = self._get_train_sampler
        if self._chooses_prompts:
            self._check_stock(make_sampler, GRPOTrainer._get_train_sampler)
            self._check_stock(self._prepare_inputs, ControlledTrainer._prepare_inputs)

        def choose_with_uid() -> None:
            choose_columns()
            if self.args.uid_column not in self._signature_columns:
                self._signature_columns.append(self.args.uid_column)

        def keep_sampler(dataset: Dataset | None = None) -> Sampler:
            self._sampler = make_sampler(dataset)  # advanced on resuming
            return self._sampler

        # on the object, and so after a subclass's own choices
        with replaced(
            self,
            data_collator=partial(collate, self.data_collator, self.args.uid_column),
            _set_signature_columns_if_needed=choose_with_uid,
            _get_train_sampler=keep_sampler,
        ):
            return super().get_train_dataloader()

    @property
    def _chooses_prompts(self) -> bool:
        """Whether the prompts are others than those of TRL's rows."""
        return self.controller.method.draws or self.controller.method.waits

    def _check_stock(self, function: Callable, stock: Callable) -> None:
        if getattr(function, "__func__", None) is not stock:
            raise ValueError(
                f"{stock.__name__} must be GDROTrainer's own with gdro_method="
                f"{self.controller.name!r}, which chooses the prompts itself, got {short(function)}"
            )

    def _prepare_inputs(self, generation_batch: list[Row] | LossInputs) -> LossInputs:
        if self._chooses_prompts and self.model.training:
            self._given = [repr(row) for row in generation_batch]
        return super()._prepare_inputs(generation_batch)

    def _next_prompts(self, inputs: list[Row]) -> PromptBatch:
        """The prompts of the next batch.

        Args:
            inputs: TRL's rows for this process, each prompt `num_generations` times.
        """
        method = self.controller.method
        if not self._chooses_prompts:
            return self._prompts_of_rows(gather_object(inputs))
        loader = self.callback_handler.train_dataloader
        if not is_ours(loader) or self._given not in (None, [repr(row) for row in inputs]):
            raise ValueError(
                f"gdro_method={self.controller.name!r} reads its rows from train_dataset itself: "
                "get_train_dataloader must return GDROTrainer's own, and "
                "_generate_and_score_completions leave its inputs as they are"
            )
        size = self.args.generation_batch_size // self.num_generations
        uids_D: np.ndarray = self.data.uids_D  # type: ignore[assignment]  # streams are refused
        drawn_P = self.controller.draw(uids_D, size)
        if drawn_P is None and not method.waits:
            return self._prompts_of_rows(gather_object(inputs))
        if drawn_P is None:  # TRL's order has one batch a step
            drawn_P = prompts_of_batch(
                self.controller.planned,
                size,
                total=len(uids_D),
                seed=self.args.seed,
                shuffled=self.shuffle_dataset,
            )

        def read(ids_R: np.ndarray) -> list[Row]:
            # as the loader does: the columns that it keeps, with objects of its own for each row,
            # also where a position comes again
            return loader.collate_fn(loader.dataset.__getitems__(drawn_P[ids_R].tolist()))

        return PromptBatch(uids_D[drawn_P].tolist(), read)

    def _prompts_of_rows(self, rows: list[Row]) -> PromptBatch:
        """The prompts of TRL's rows, of all processes, in TRL's order."""
        size = self.num_generations
        first = rows[::size]
        if self.data.dataset is None:
            # environments make the prompts: none is known to come again, so none has a history
            known = len(self.controller.bins.row_of)
            uids: list[int | str] = list(range(known, known + len(first)))
        else:
            uids = [self._uid_of(row) for row in first]
            if [self._uid_of(row) for row in rows] != [uid for uid in uids for _ in range(size)]:
                raise ValueError(
                    f"the sampler of the training must give each prompt {size} times in a row "
                    f"(num_generations), got one that begins with {short(uids)}"
                )

        def read(ids_R: np.ndarray) -> list[Row]:
            # TRL's rows of the prompt in turn, since a collator may make them differ
            turns = Counter[int]()
            copies = []
            for p in ids_R.tolist():
                own = rows[p * size : (p + 1) * size]
                copies.append(copy_of(own[turns[p] % size], own[turns[p] % size - 1]))
                turns[p] += 1
            return copies

        return PromptBatch(uids, read)

    def _uid_of(self, row: Row) -> int | str:
        column = self.args.uid_column
        if column not in row:
            raise ValueError(
                f"rows of train_dataset must keep the column {column!r}, got {sorted(row)}: name "
                "it in the format of the data set, and keep it in a data loader of your own"
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
        is_scored_R = rewards_R.isfinite() & successes_R.isfinite()
        correct_R = is_correct(successes_R.numpy(), self.controller.success_threshold)
        correct_R &= is_scored_R.numpy()
        rewards_R[~is_scored_R] = torch.nan
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


def is_ours(loader: DataLoader | None) -> bool:
    """Whether a data loader is what `ControlledTrainer.get_train_dataloader` has made."""
    return getattr(getattr(loader, "collate_fn", None), "func", None) is collate


def copy_of(row: Row, twin: Row) -> Row:
    """A copy of a row, with objects of its own.

    Only what TRL's rows of one prompt have in common stays so, such as a verifier that a transform
    of the data hands out.

    Args:
        row: left as it is.
        twin: another of TRL's rows, of the same prompt.
    """
    return copy.deepcopy(row, {id(part): part for part in leaves_of(twin)})


def leaves_of(value: object) -> Iterator[object]:
    """The objects in nested dictionaries and lists."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from leaves_of(part)
    else:
        yield value
