"""A cold start: a model that does not answer as it is asked to is taught worked solutions first.

The loss is on the completions alone. An adapter of a few megabytes is trained: it is kept in the
cache, or shipped in data/bases, and the model with it is made from both.
"""

import hashlib
import json
import math
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gdro.checks import Positive
from gdro.files import plain
from gdro_lab.machine import arithmetic, describe_machine, fast_attention
from gdro_lab.models import Tokenizer
from gdro_lab.tasks import GymChoice, MathChoice, draw_task, load_split, prompt_token_ids
from gdro_lab.tasks.answers import style_of
from gdro_lab.tasks.base import BoundedCount, BoundedNatural, Strict
from gdro_lab.tasks.cache import find_or_make
from gdro_lab.tasks.pretrained import find_model, merged_model, model_identity
from gdro_lab.tasks.tiny import SHIPPED

RECIPE = "cold_start.json"
MICRO_BATCH = 4  # solutions of a forward pass: of like lengths, in little memory
WARMUP = 0.05  # of the steps
LAST_RATE = 0.1  # of the learning rate, to which it falls as a cosine


class ColdStart(Strict):
    """What a profile says under `cold_start:`; it needs `model.source`."""

    steps: BoundedCount = 160
    """Steps of AdamW."""
    batch_size: BoundedCount = 16
    """Solutions of a step."""
    learning_rate: Positive = 1e-3
    """Its peak, after a short rise."""
    rank: BoundedCount = 8
    """Rank of the adapter that is trained."""
    examples: BoundedCount = 2000
    """Different solutions, at most."""
    seed: BoundedNatural = 0
    """Seed of the draw of solutions and of their order."""


class Solution(NamedTuple):
    """A prompt and the completion to learn."""

    prompt: str | list[dict[str, str]]
    """A text, or a chat whose next turn is the completion."""
    completion: str
    """Without the token that ends it."""


def cold_start(
    source: str,
    solutions: Sequence[Solution],
    choice: ColdStart,
    *,
    cache_dir: str | Path,
    template: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Path:
    """Teach a model worked solutions, or find it; return its folder.

    The folder has the name of a hash of the model, the solutions and the choice. Versions and
    arithmetic are not part of it, so that what is shipped is found everywhere; they are recorded in
    the folder's `RECIPE`.

    Args:
        source: as in a profile; see `find_model`.
        solutions: what is taught.
        choice: how.
        cache_dir: where the folders are kept.
        template: arguments of the chat template.
        progress: whether losses and a bar are printed.

    Raises:
        ValueError: a folder in the cache was altered, or the source cannot be read.
    """
    folder = find_model(source, cache_dir)
    taught = json.dumps([solutions, template or {}], sort_keys=True)
    # all that the taught model depends on, but for versions and arithmetic
    recipe: dict[str, Any] = {
        "model": model_identity(source),
        "solutions": hashlib.sha256(taught.encode()).hexdigest(),
        "choice": choice.model_dump(),
        "schedule": {"warmup": WARMUP, "last_rate": LAST_RATE},
    }
    text = json.dumps(recipe, sort_keys=True, default=plain)
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    target = Path(cache_dir) / name

    def teach(work: Path) -> None:
        if "unsloth" in sys.modules:  # it changes transformers
            raise ValueError("a cold start is made before Unsloth is imported: run `gdro base`")
        _teach(folder, source, solutions, choice, work, template or {}, progress)
        record = recipe | describe_machine(pretrained=True)
        (work / RECIPE).write_text(json.dumps(record, indent=2, default=plain) + "\n")

    def merge(work: Path) -> None:
        adapter = find_or_make(target, teach, SHIPPED / name)
        # in float32: an adapter's steps are below the resolution of bfloat16
        merged_model(folder, adapter, work, tokenizer_of=folder, dtype="float32")

    return find_or_make(target.with_name(f"{name}-merged"), merge)


def _teach(
    folder: str,
    source: str,
    solutions: Sequence[Solution],
    choice: ColdStart,
    work: Path,
    template: Mapping[str, Any],
    progress: bool,
) -> None:
    """Train an adapter on the solutions with AdamW and write it."""
    import peft
    import torch
    from datasets import Dataset
    from transformers import Trainer

    from gdro_lab.models import load_model

    loaded = load_model(folder, seed=choice.seed, attn_implementation=fast_attention())
    adapter = peft.LoraConfig(
        task_type="CAUSAL_LM",
        target_modules="all-linear",
        r=choice.rank,
        lora_alpha=2 * choice.rank,
    )
    model = peft.get_peft_model(loaded.model, adapter)
    rows = labelled_tokens(loaded.tokenizer, solutions, template)
    with tempfile.TemporaryDirectory() as logs:
        trainer = Trainer(
            model,
            args=_arguments(choice, logs, progress),
            train_dataset=Dataset.from_list(in_order(rows, choice)),
            data_collator=partial(pad_left, pad_token_id=loaded.tokenizer.pad_token_id),
        )
        trainer.train()
    # in bfloat16, with the source's name and no path of this machine
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.to(torch.bfloat16)
    for config in model.peft_config.values():
        config.base_model_name_or_path = Path(source).name if Path(source).exists() else source
    # the embeddings are the model's own: without False, peft would look for it on the hub
    model.save_pretrained(str(work), save_embedding_layers=False)
    (work / "README.md").unlink(missing_ok=True)  # an empty card


def labelled_tokens(
    tokenizer: Tokenizer, solutions: Sequence[Solution], template: Mapping[str, Any]
) -> list[dict[str, list[int]]]:
    """Token ids and labels of each solution: the loss is on the completion and its end.

    A prompt is tokenized as in training, up to where the answer begins.
    """
    prompts = prompt_token_ids(tokenizer, [solution.prompt for solution in solutions], template)
    rows = []
    for prompt, solution in zip(prompts, solutions, strict=True):
        completion = tokenizer(solution.completion, add_special_tokens=False)["input_ids"]
        completion = [*completion, tokenizer.eos_token_id]
        labels = [-100] * len(prompt) + completion
        rows.append({"input_ids": prompt + completion, "labels": labels})
    return rows


def in_order(rows: Sequence[dict[str, list[int]]], choice: ColdStart) -> list[dict[str, list[int]]]:
    """All rows of the training, step by step: shuffled again each time they are all used up.

    Within a step the longer ones come first, so that those of a forward pass need little padding.
    """
    rng = np.random.default_rng(choice.seed)
    total = choice.steps * choice.batch_size
    epochs = [rng.permutation(len(rows)) for _ in range(math.ceil(total / len(rows)))]
    order = np.concatenate(epochs)[:total].reshape(choice.steps, choice.batch_size)
    lengths = np.array([len(row["input_ids"]) for row in rows])
    return [rows[place] for step in order for place in step[np.argsort(-lengths[step])]]


def pad_left(rows: Sequence[Mapping[str, list[int]]], pad_token_id: int) -> dict[str, Any]:
    """A batch whose completions end in the same column, with logits for these columns alone.

    TRL's SFTTrainer has logits for the prompts too on a processor, half of the time of a step.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence

    def padded(columns: Iterable[Sequence[int]], fill: int) -> torch.Tensor:
        tensors = [torch.tensor(column) for column in columns]
        return pad_sequence(tensors, batch_first=True, padding_value=fill, padding_side="left")

    lengths = [len(row["input_ids"]) for row in rows]
    kept = 1 + max(sum(label != -100 for label in row["labels"]) for row in rows)
    return {
        "input_ids": padded((row["input_ids"] for row in rows), pad_token_id),
        "attention_mask": padded(([1] * length for length in lengths), 0),
        "position_ids": padded(map(range, lengths), 0),
        "labels": padded((row["labels"] for row in rows), -100)[:, -kept:],
        "logits_to_keep": kept,
    }


def _arguments(choice: ColdStart, folder: str, progress: bool) -> Any:
    import torch
    from transformers import TrainingArguments

    micro_batch = math.gcd(choice.batch_size, MICRO_BATCH)
    args = TrainingArguments(
        output_dir=folder,
        max_steps=choice.steps,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=choice.batch_size // micro_batch,
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        learning_rate=choice.learning_rate,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": LAST_RATE},
        warmup_steps=math.ceil(WARMUP * choice.steps),
        bf16=arithmetic(pretrained=True) == "bfloat16",
        use_cpu=not torch.cuda.is_available(),
        seed=choice.seed,
        save_strategy="no",
        report_to="none",
        logging_strategy="steps" if progress else "no",
        logging_steps=10,
        disable_tqdm=not progress,
    )
    args._n_gpu = min(args.n_gpu, 1)  # one GPU: several would split the batch
    return args


def load_solutions(
    choice: GymChoice | MathChoice,
    tokenizer: Tokenizer,
    examples: int,
    seed: int,
    template: Mapping[str, Any] | None = None,
) -> list[Solution]:
    """Draw worked solutions of a profile's task; fewer where the task has no more of them.

    Args:
        choice: the task.
        tokenizer: one with a chat template is taught chats, another texts.
        examples: how many are drawn.
        seed: of the draw and of the order.
        template: arguments of the chat template.

    Raises:
        ValueError: the task leaves none to teach.
    """
    if choice.kind == "math":
        rows = _unused_rows(choice, tokenizer, template)
        longest = choice.max_completion_tokens
    else:
        task = draw_task(choice, style_of(tokenizer))
        rows = task.solutions(examples)  # type: ignore[union-attr]
        longest = task.max_completion_tokens
    # one that is longer, its end included, would teach answers that are cut off
    tokens = [tokenizer(row["solution"], add_special_tokens=False)["input_ids"] for row in rows]
    short = [row for row, ids in zip(rows, tokens, strict=True) if len(ids) < longest]
    if not short:
        raise ValueError(
            f"the task leaves no worked solution of at most {longest} tokens to teach: "
            "train on fewer rows, or allow longer completions"
        )
    order = np.random.default_rng(seed).permutation(len(short))
    shuffled = [short[place] for place in order]
    return [Solution(row["prompt"], row["solution"]) for row in shuffled[:examples]]


def _unused_rows(
    choice: MathChoice, tokenizer: Tokenizer, template: Mapping[str, Any] | None
) -> Sequence[Mapping[str, Any]]:
    """Rows with a solution that the draw of training problems has left."""
    whole = choice.model_copy(update={"train_size": None})
    rows = load_split(whole, tokenizer, held_out=False, template=template).rows
    drawn = load_split(choice, tokenizer, held_out=False, template=template).rows
    uids = {row["uid"] for row in drawn}
    return [row for row in rows if row["uid"] not in uids and row.get("solution")]
