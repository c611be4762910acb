"""A cold start: a model that does not answer as it is asked to is taught worked solutions first.

The loss is on the completions alone. By default an adapter is trained, of a few megabytes: it is
kept in the cache, or shipped in data/bases, and the model with it is made from both.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdro.checks import Positive
from gdro.files import plain
from gdro_lab.machine import arithmetic, describe_machine, fast_attention
from gdro_lab.tasks import prompt_token_ids
from gdro_lab.tasks.base import Count, NotNegative, Strict
from gdro_lab.tasks.cache import find_made, make_once
from gdro_lab.tasks.pretrained import find_model, identity_of, merged_model
from gdro_lab.tasks.solutions import Solution
from gdro_lab.tasks.tiny import SHIPPED

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

RECIPE = "cold_start.json"
MICRO_BATCH = 16  # solutions of a forward pass, so that memory does not grow with the batch
WARMUP = 0.05  # of the steps
LAST_RATE = 0.1  # of the learning rate, to which it falls as a cosine


class ColdStart(Strict):
    """What a profile says under ``cold_start:``; it needs `model.source`."""

    steps: Count = 160
    """Steps of AdamW."""
    batch_size: Count = 16
    """Solutions of a step."""
    learning_rate: Positive = 1e-3
    """Its peak, after a short rise."""
    rank: Count | None = 8
    """Of the adapter that is trained; None trains all weights."""
    examples: Count = 2000
    """Different solutions, at most."""
    seed: NotNegative = 0
    """Of the draw of solutions and of their order."""


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
    recipe = _recipe(source, solutions, choice, template)
    text = json.dumps(recipe, sort_keys=True, default=plain)
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    target = Path(cache_dir) / name
    whole = target if choice.rank is None else target.with_name(f"{name}-merged")
    made = find_made(whole)
    if made is not None:
        return made

    def teach(work: Path) -> None:
        if "unsloth" in sys.modules:  # its trainer would take the place of TRL's
            raise ValueError("a cold start is made before Unsloth is imported: run `gdro base`")
        _teach(folder, source, solutions, choice, work, template or {}, progress)
        record = recipe | describe_machine(pretrained=True)
        (work / RECIPE).write_text(json.dumps(record, indent=2, default=plain) + "\n")

    taught = find_made(target, SHIPPED / name) or make_once(target, teach)
    if choice.rank is None:
        return taught
    return make_once(whole, lambda work: _merge(folder, taught, work))


def _recipe(
    source: str,
    solutions: Sequence[Solution],
    choice: ColdStart,
    template: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """All that the taught model depends on, but for versions and arithmetic."""
    text = json.dumps([solutions, template or {}], sort_keys=True)
    return {
        "model": identity_of(source),
        "solutions": hashlib.sha256(text.encode()).hexdigest(),
        "choice": choice.model_dump(),
        "schedule": {"warmup": WARMUP, "last_rate": LAST_RATE},
    }


def _teach(
    folder: str,
    source: str,
    solutions: Sequence[Solution],
    choice: ColdStart,
    work: Path,
    template: Mapping[str, Any],
    progress: bool,
) -> None:
    """Train on the solutions with TRL and write the adapter, or the whole model."""
    from datasets import Dataset
    from trl import SFTTrainer

    from gdro.trl.models import load_model

    options: dict[str, Any] = {"attn_implementation": fast_attention()}
    if choice.rank is not None:
        options |= {"kind": "lora", "lora": {"r": choice.rank, "lora_alpha": 2 * choice.rank}}
    loaded = load_model(folder, seed=choice.seed, **options)
    rows = labelled_tokens(loaded.tokenizer, solutions, template)
    with tempfile.TemporaryDirectory() as logs:
        trainer = SFTTrainer(
            loaded.model,
            args=_arguments(choice, logs, progress),
            train_dataset=Dataset.from_list(rows),
            processing_class=loaded.tokenizer,
            peft_config=loaded.peft_config,
        )
        trainer.train()
    if choice.rank is None:
        trainer.model.save_pretrained(work)
    else:
        _save_adapter(trainer.model, source, work)
    loaded.tokenizer.save_pretrained(work)


def labelled_tokens(
    tokenizer: PreTrainedTokenizerBase, solutions: Sequence[Solution], template: Mapping[str, Any]
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


def _arguments(choice: ColdStart, folder: str, progress: bool) -> Any:
    """Arguments of TRL's trainer, whose loss takes the vocabulary in chunks."""
    import torch
    from trl import SFTConfig

    micro_batch = math.gcd(choice.batch_size, MICRO_BATCH)
    args = SFTConfig(
        output_dir=folder,
        max_steps=choice.steps,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=choice.batch_size // micro_batch,
        learning_rate=choice.learning_rate,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": LAST_RATE},
        warmup_steps=math.ceil(WARMUP * choice.steps),
        weight_decay=0.0,
        max_length=None,
        gradient_checkpointing=False,
        bf16=arithmetic(pretrained=True) == "bfloat16",
        use_cpu=not torch.cuda.is_available(),
        seed=choice.seed,
        save_strategy="no",
        report_to="none",
        logging_steps=10,
        disable_tqdm=not progress,
        logging_strategy="steps" if progress else "no",
    )
    args._n_gpu = min(args.n_gpu, 1)  # one GPU: several would split the batch
    return args


def _save_adapter(model: PreTrainedModel, source: str, folder: Path) -> None:
    """Write an adapter in bfloat16, with the source's name and no path of this machine."""
    import torch

    for weight in model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.to(torch.bfloat16)
    for config in model.peft_config.values():
        config.base_model_name_or_path = Path(source).name if Path(source).exists() else source
    # the embeddings are the model's own: without False, peft would look for it on the hub
    model.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)  # an empty card


def _merge(folder: str, adapter: Path, work: Path) -> None:
    # in float32: an adapter's steps are below the resolution of bfloat16
    merged_model(folder, adapter, work, dtype="float32")
