"""The prompts of a batch: those of TRL's rows, or those that the method chooses.

Axes: P prompts of a generation batch, R its rollouts, D prompts of the data set.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from accelerate.utils import gather_object
from datasets import Dataset
from torch.utils.data import Sampler
from trl import GRPOTrainer

from gdro.checks import short
from gdro.plans import Plan
from gdro.rounds import prompts_of_batch
from gdro.trl.data import UidRows
from gdro.trl.values import PromptBatch, Row, copy_of, replaced


def check_order(trainer: GRPOTrainer) -> None:
    """Refuse an order of the user's own with a method that chooses the prompts itself."""
    loader = trainer.callback_handler.train_dataloader
    sampler = getattr(trainer._get_train_sampler, "__func__", None)
    is_ours = getattr(getattr(loader, "collate_fn", None), "func", None) is collate
    if not is_ours or sampler is not GRPOTrainer._get_train_sampler:
        raise ValueError(
            f"gdro_method={trainer.controller.name!r} chooses the prompts itself: "
            "get_train_dataloader and _get_train_sampler must be GDROTrainer's own"
        )


@contextmanager
def uids_kept(trainer: GRPOTrainer) -> Iterator[None]:
    """A data loader made in this block gives each row its uid, and the trainer keeps its sampler.

    Also where a transform, `data_collator` or unused columns leave the uids out.
    """
    column = trainer.args.uid_column
    uids_D = trainer.data.uids_D
    remove_columns = trainer._remove_unused_columns
    choose_columns = trainer._set_signature_columns_if_needed
    make_sampler = trainer._get_train_sampler

    def add_uids(dataset: Dataset, description: str | None = None) -> Dataset | UidRows:
        kept = remove_columns(dataset, description)
        return kept if uids_D is None else UidRows(kept, column, uids_D)

    def choose_with_uid() -> None:  # of a stream
        choose_columns()
        if column not in trainer._signature_columns:
            trainer._signature_columns.append(column)

    def keep_sampler(rows: Dataset | UidRows) -> Sampler:
        dataset = rows.dataset if isinstance(rows, UidRows) else rows
        trainer._sampler = make_sampler(dataset)  # advanced on resuming
        return trainer._sampler

    # on the object, and so after a subclass's own choices
    with replaced(
        trainer,
        data_collator=partial(collate, trainer.data_collator, column),
        _remove_unused_columns=add_uids,
        _set_signature_columns_if_needed=choose_with_uid,
        _get_train_sampler=keep_sampler,
    ):
        yield


def collate(collator: Callable[[list], list], column: str, rows: list[dict]) -> list[dict]:
    """Apply a collator to rows, and keep the column of uids, which it may leave out.

    ValueError for one that does not return a row for each that it is given, in their order: a
    rollout would count for another prompt.
    """
    uids = [row.get(column) for row in rows]  # before, since it may change the rows themselves
    collated = collator(rows)
    kept = []
    if isinstance(collated, list) and len(collated) == len(uids):
        kept = [
            uid if uid is None else row.setdefault(column, uid)
            for uid, row in zip(uids, collated, strict=True)
        ]
    if kept != uids:
        raise ValueError(
            "data_collator must return a list with a row for each that it is given, in their "
            f"order and with their {column!r}, got {short(collated)}"
        )
    return collated


def plan_batch(trainer: GRPOTrainer, inputs: Sequence[Row]) -> tuple[PromptBatch, Plan]:
    """The prompts of the next batch, and the rollouts of each."""
    batch = next_prompts(trainer, inputs)
    return batch, trainer.controller.plan(batch.uids)


def next_prompts(trainer: GRPOTrainer, inputs: Sequence[Row]) -> PromptBatch:
    """The prompts of the next batch: those of TRL's rows `inputs`, or the method's own."""
    controller = trainer.controller
    method = controller.method
    if not (method.draws or method.waits):
        return prompts_of_rows(trainer, gather_object(inputs))
    check_order(trainer)
    size = len(inputs) * trainer.accelerator.num_processes // trainer.num_generations
    uids_D: np.ndarray = trainer.data.uids_D  # streams are refused
    drawn_P = controller.draw(uids_D, size)
    if drawn_P is None and not method.waits:
        return prompts_of_rows(trainer, gather_object(inputs))
    if drawn_P is None:  # TRL's order has one batch a step
        drawn_P = prompts_of_batch(
            controller.planned,
            size,
            total=len(uids_D),
            seed=trainer.args.seed,
            shuffled=trainer.shuffle_dataset,
        )
    loader = trainer.callback_handler.train_dataloader

    def read(ids_R: np.ndarray) -> list[Row]:
        # as the loader does: the columns that it keeps, with objects of its own for each row, also
        # where a position comes again
        return loader.collate_fn(loader.dataset.__getitems__(drawn_P[ids_R].tolist()))

    return PromptBatch(uids_D[drawn_P].tolist(), read)


def prompts_of_rows(trainer: GRPOTrainer, rows: Sequence[Row]) -> PromptBatch:
    """The prompts of TRL's rows, of all processes, in TRL's order."""
    size = trainer.num_generations
    column = trainer.args.uid_column
    if trainer.data.dataset is None:
        # environments make the prompts: none is known to come again, so none has a history
        known = len(trainer.controller.bins.row_of)
        uids: list[int | str] = list(range(known, known + len(rows) // size))
    else:
        uids_R = [_plain(row[column]) for row in rows]
        uids = uids_R[::size]
        if uids_R != [uid for uid in uids for _ in range(size)]:
            raise ValueError(
                f"the sampler of the training must give each prompt {size} times in a row "
                f"(num_generations), got one that begins with {short(uids)}"
            )

    def read(ids_R: np.ndarray) -> list[Row]:
        return [copy_of(rows[p * size]) for p in ids_R.tolist()]

    return PromptBatch(uids, read)


def _plain(uid: Any) -> int | str:
    return uid.item() if hasattr(uid, "item") else uid  # torch's or numpy's
