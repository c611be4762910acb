"""The prompts of a batch: those of TRL's rows, or those that the method chooses.

Axes: P prompts of a generation batch, R its rollouts, D prompts of the data set.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
from accelerate.utils import gather_object
from datasets import Dataset
from torch.utils.data import DataLoader, Sampler
from trl import GRPOTrainer

from gdro.checks import short
from gdro.controller import GDROController
from gdro.method import Method
from gdro.rounds import prompts_of_batch
from gdro.trl.config import GDROConfig
from gdro.trl.data import UidData
from gdro.trl.values import PromptBatch, Row, replaced


def chooses_prompts(method: Method) -> bool:
    """Whether the prompts are others than those of TRL's rows."""
    return method.draws or method.waits


def check_stock(choice: str, function: Callable, stock: Callable) -> None:
    """Refuse a function of the user's own that chooses or changes rows which are not read."""
    if getattr(function, "__func__", None) is not stock:
        raise ValueError(
            f"{stock.__name__} must be GDROTrainer's own with gdro_method={choice!r}, which "
            f"chooses the prompts itself, got {short(function)}"
        )


@contextmanager
def uids_kept(trainer: GRPOTrainer) -> Iterator[None]:
    """A data loader made in this block keeps each row's uid, and the trainer keeps its sampler.

    Also where `data_collator` or unused columns leave the uids out.
    """
    column = trainer.args.uid_column
    choose_columns = trainer._set_signature_columns_if_needed
    make_sampler = trainer._get_train_sampler

    def choose_with_uid() -> None:
        choose_columns()
        if column not in trainer._signature_columns:
            trainer._signature_columns.append(column)

    def keep_sampler(dataset: Dataset | None = None) -> Sampler:
        trainer._sampler = make_sampler(dataset)  # advanced on resuming
        return trainer._sampler

    # on the object, and so after a subclass's own choices
    with replaced(
        trainer,
        data_collator=partial(collate, trainer.data_collator, column),
        _set_signature_columns_if_needed=choose_with_uid,
        _get_train_sampler=keep_sampler,
    ):
        yield


def collate(collator: Callable[[list], list], column: str, rows: list[dict]) -> list[dict]:
    """Apply a collator to rows, and keep the column of uids, which it may leave out.

    Raises:
        ValueError: for a collator that does not return a row for each that it is given, in their
            order, so that a rollout would count for another prompt.
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


def next_prompts(
    controller: GDROController,
    data: UidData,
    args: GDROConfig,
    inputs: Sequence[Row],
    loader: DataLoader | None,
    given: list[str] | None,
) -> PromptBatch:
    """The prompts of the next batch.

    Args:
        controller: whose method may choose them.
        data: of the training.
        args: of the trainer.
        inputs: TRL's rows for this process, each prompt `num_generations` times.
        loader: of the training.
        given: TRL's rows as they came out of it, for a method that chooses; None if unknown.

    Raises:
        ValueError: for rows that a method which chooses the prompts would pass over.
    """
    method = controller.method
    if not chooses_prompts(method):
        return prompts_of_rows(controller, data, args, gather_object(inputs))
    if not _is_ours(loader) or given not in (None, [repr(row) for row in inputs]):
        raise ValueError(
            f"gdro_method={controller.name!r} reads its rows from train_dataset itself: "
            "get_train_dataloader must return GDROTrainer's own, and "
            "_generate_and_score_completions leave its inputs as they are"
        )
    size = args.generation_batch_size // args.num_generations
    uids_D: np.ndarray = data.uids_D  # type: ignore[assignment]  # streams are refused
    drawn_P = controller.draw(uids_D, size)
    if drawn_P is None and not method.waits:
        return prompts_of_rows(controller, data, args, gather_object(inputs))
    if drawn_P is None:  # TRL's order has one batch a step
        drawn_P = prompts_of_batch(
            controller.planned,
            size,
            total=len(uids_D),
            seed=args.seed,
            shuffled=args.shuffle_dataset,
        )

    def read(ids_R: np.ndarray) -> list[Row]:
        # as the loader does: the columns that it keeps, with objects of its own for each row, also
        # where a position comes again
        return loader.collate_fn(loader.dataset.__getitems__(drawn_P[ids_R].tolist()))  # type: ignore

    return PromptBatch(uids_D[drawn_P].tolist(), read)


def _is_ours(loader: DataLoader | None) -> bool:
    """Whether a data loader was made where uids are kept."""
    return getattr(getattr(loader, "collate_fn", None), "func", None) is collate


def prompts_of_rows(
    controller: GDROController, data: UidData, args: GDROConfig, rows: Sequence[Row]
) -> PromptBatch:
    """The prompts of TRL's rows, of all processes, in TRL's order."""
    size = args.num_generations
    first = rows[::size]
    if data.dataset is None:
        # environments make the prompts: none is known to come again, so none has a history
        known = len(controller.bins.row_of)
        uids: list[int | str] = list(range(known, known + len(first)))
    else:
        uids = [_uid_of(row, args.uid_column) for row in first]
        repeated = [uid for uid in uids for _ in range(size)]
        if [_uid_of(row, args.uid_column) for row in rows] != repeated:
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


def _uid_of(row: Row, column: str) -> int | str:
    if column not in row:
        raise ValueError(
            f"rows of train_dataset must keep the column {column!r}, got {sorted(row)}: name "
            "it in the format of the data set, and keep it in a data loader of your own"
        )
    uid = row[column]
    return uid.item() if hasattr(uid, "item") else uid  # torch's or numpy's


def copy_of(row: Row, twin: Row) -> Row:
    """A copy of a row, with objects of its own.

    What TRL's rows of one prompt have in common is not copied, such as a verifier that a transform
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
