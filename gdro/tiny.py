"""The tiny base, a model made here.

It is a Qwen3 that a noisy teacher (see :func:`gdro.tasks.chain.teach`) has taught the embedded
task, so that the whole of GDRO can be run without a download: of about 0.6 million parameters for a
laptop, and in the mid size of about 40 million for a first try on a GPU.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tqdm.auto import tqdm

from gdro.tasks import chain

# Qwen3's own head width is 128 whatever the hidden width: it must be said
CONFIGS: dict[str, dict[str, Any]] = {
    "tiny": {
        "hidden_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 384,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
    },
    "mid": {
        "hidden_size": 512,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "intermediate_size": 1536,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
    },
}
OPTIMIZER: dict[str, Any] = {"betas": (0.9, 0.98), "weight_decay": 0.01}
LEARNING_RATES = {"tiny": 2e-3, "mid": 5e-4}
TINY_WARMUP_STEPS = 50
TINY_MAX_GRAD_NORM = 1.0
INGREDIENTS_FILE = "tiny_base.json"


def tiny_base(
    task: chain.ChainTask,
    *,
    seed: int,
    cache_dir: str | Path,
    size: str = "tiny",
    steps: int = 800,
    batch_size: int = 96,
    threads: int = 1,
    progress: bool = True,
) -> Path:
    """Train the tiny base model on the teacher's text, or find it in the cache.

    The loss is the cross-entropy of the completion's tokens, the end-of-text token among them.
    Every text of a task is equally long, so no batch holds padding. The same arguments give the
    same bits on one machine; PyTorch's global random state and thread count are left as they
    were.

    Args:
        task: the drawn task; its evaluation prompts are kept from the model.
        seed: of the weights and of the teacher, at least 0.
        cache_dir: where bases are kept, one directory each, named by a hash of everything that
            the model depends on. Made if missing.
        size: "tiny" or "mid"; see ``CONFIGS``.
        steps: optimizer steps, at least 1.
        batch_size: texts per step, at least 1.
        threads: CPU threads to train with, at least 1. Sums are split by thread, so this changes
            the last bits and enters the hash.
        progress: show a progress bar.

    Returns:
        The directory: model, tokenizer and a JSON file of what went in. It exists whole or not
        at all.

    Raises:
        ValueError: if ``seed``, ``steps``, ``batch_size`` or ``threads`` is too small, or the size unknown.
    """
    if size not in CONFIGS:
        raise ValueError(f"size is {size!r}; give one of {sorted(CONFIGS)}")
    smallest = {"seed": (seed, 0), "steps": (steps, 1)}
    smallest |= {"batch_size": (batch_size, 1), "threads": (threads, 1)}
    for name, (value, least) in smallest.items():
        if value < least:
            raise ValueError(f"{name} is {value}; give an integer of at least {least}")

    device = "cuda" if torch.cuda.is_available() else "cpu"
    ingredients = {
        "task": task.fingerprint(),
        "config": CONFIGS[size],
        "optimizer": OPTIMIZER | {"lr": LEARNING_RATES[size]},
        "device": device,
        "warmup_steps": TINY_WARMUP_STEPS,
        "max_grad_norm": TINY_MAX_GRAD_NORM,
        "seed": seed,
        "steps": steps,
        "batch_size": batch_size,
        "threads": threads,
        "versions": {
            "numpy": np.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }
    text = json.dumps(ingredients, indent=2, sort_keys=True)
    target = Path(cache_dir) / hashlib.sha256(text.encode()).hexdigest()[:16]
    if target.is_dir():
        return target

    target.parent.mkdir(parents=True, exist_ok=True)
    # beside the target, so that the move stays on one file system and is atomic
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as making:
        work = Path(making) / target.name
        tokenizer = chain.make_tokenizer(task.spec)
        model = _train_tiny_base(task, tokenizer, size, seed, steps, batch_size, threads, device, progress)
        model.save_pretrained(work)
        tokenizer.save_pretrained(work)
        (work / INGREDIENTS_FILE).write_text(text + "\n", encoding="utf-8")
        try:
            os.replace(work, target)
        except OSError:
            # another process may have put the same base there meanwhile; then ours is not needed
            if not target.is_dir():
                raise
    return target


def _train_tiny_base(
    task: chain.ChainTask,
    tokenizer: transformers.PreTrainedTokenizerFast,
    size: str,
    seed: int,
    steps: int,
    batch_size: int,
    threads: int,
    device: str,
    progress: bool,
) -> transformers.Qwen3ForCausalLM:
    """Train a fresh model; see :func:`tiny_base`."""
    rng = np.random.default_rng(seed)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng(devices=[]):
            # torch.manual_seed would also seed GPUs, whose state is not put back
            torch.default_generator.manual_seed(seed)
            model = _fresh_tiny_model(tokenizer, size).to(device)
            optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATES[size], **OPTIMIZER)
            schedule = transformers.get_cosine_schedule_with_warmup(
                optimizer, min(TINY_WARMUP_STEPS, steps // 2), steps
            )
            model.train()
            bar = tqdm(range(steps), desc="tiny base", unit="step", disable=not progress)
            for _ in bar:
                prompts, completions = chain.teach(task, rng, batch_size)
                loss = _completion_loss(model, tokenizer, prompts, completions)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), TINY_MAX_GRAD_NORM)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    finally:
        torch.set_num_threads(threads_before)
    return model.to("cpu").eval()


def _fresh_tiny_model(
    tokenizer: transformers.PreTrainedTokenizerFast,
    size: str,
) -> transformers.Qwen3ForCausalLM:
    """Build the model with random weights from PyTorch's current random state."""
    special: dict[str, Any] = {
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = transformers.Qwen3Config(vocab_size=len(tokenizer), **CONFIGS[size], **special)
    return transformers.Qwen3ForCausalLM(config)


def _completion_loss(
    model: transformers.Qwen3ForCausalLM,
    tokenizer: transformers.PreTrainedTokenizerFast,
    prompts: list[str],
    completions: list[str],
) -> torch.Tensor:
    """Mean cross-entropy, in nats per token, of the completions and their end-of-text tokens."""
    texts = [p + c + tokenizer.eos_token for p, c in zip(prompts, completions, strict=True)]
    # return_tensors fails on texts of unequal length: a task that has them needs padding here
    ids = tokenizer(texts, return_tensors="pt")["input_ids"].to(model.device)
    n_prompt = len(prompts[0])  # one token per character
    labels = ids.clone()
    labels[:, :n_prompt] = -100  # the label that the model's loss ignores
    return model(input_ids=ids, labels=labels, use_cache=False).loss
