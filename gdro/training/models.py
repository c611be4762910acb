"""Models to train: loaded, in full or as LoRA, plain or through Unsloth; or the tiny base, made here.

Heavy packages are imported when they are used, because Unsloth replaces classes of TRL and must come first:

    loaded = load_model(source, kind="unsloth-lora", seed=0)
    from gdro.trainer import GDROTrainer  # now built on Unsloth's trainer
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gdro.core.checks import check_choice, check_int, check_number
from gdro.tasks.protocol import Task
from gdro.training.checkpoints import LEDGER, fault_of, write_ledger
from gdro.training.files import written
from gdro.training.unsloth import check_unsloth_choice, load_with_unsloth

if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

KINDS = ("full", "lora", "unsloth-full", "unsloth-lora")
# Plain LoRA adapts all linear layers by default; Unsloth has its own target modules.
LORA_DEFAULTS: dict[str, Any] = {"r": 32, "lora_alpha": 64, "lora_dropout": 0.0}


class LoadedModel(NamedTuple):
    """What GDROTrainer needs; peft_config is None except for kind "lora" (Unsloth applies LoRA itself)."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    peft_config: PeftConfig | None


def load_model(
    source: str | Path,
    *,
    kind: str = "full",
    seed: int,
    dtype: str | None = None,
    gradient_checkpointing: bool = False,
    lora: Mapping[str, Any] | None = None,
    max_length: int = 4096,
    attn_implementation: str | None = None,
    fast_inference: bool = False,
    quantization: str | None = None,
    gpu_memory_utilization: float = 0.5,
    standby: bool = False,
) -> LoadedModel:
    """Load a causal language model of any family, ready for GDROTrainer; it stops at `stop_tokens`.

    Seeds all global random states last, because TRL creates the adapter before it seeds: make the trainer
    next, and equal seeds give bit-equal adapters.

    Args:
        source: folder or hub id.
        kind: one of ``KINDS``.
        dtype: of the weights, "float32" (default) or "bfloat16" (default of Unsloth). AdamW's steps at 1e-6
            are below bfloat16's resolution, and a bfloat16 base under LoRA drifts, since TRL merges the
            adapter into it for vLLM. ``bf16=True`` in GDROConfig still computes in bfloat16.
        gradient_checkpointing: used by Unsloth only; give GDROConfig the same value.
        lora: arguments of ``peft.LoraConfig`` (Unsloth's ``get_peft_model``) over ``LORA_DEFAULTS``.
        max_length: tokens of prompt and completion together; used by Unsloth only.
        attn_implementation: as in transformers, such as "sdpa" or "flash_attention_2"; Unsloth has its own.
        fast_inference: for "unsloth-lora", let a vLLM engine that shares the weights generate (then give
            GDROConfig ``use_vllm=True``).
        quantization: for "unsloth-lora", "4bit" holds the base in four bits (QLoRA).
        gpu_memory_utilization: with fast_inference, the engine's part of the GPU's memory, weights included.
        standby: with fast_inference, let the engine sleep while the optimizer works; Unsloth must not have
            been imported before.

    Raises ImportError if TRL was imported before Unsloth, and RuntimeError if the engine is missing.
    """
    engine: dict[str, Any] = {
        "fast_inference": fast_inference,
        "quantization": quantization,
        "gpu_memory_utilization": gpu_memory_utilization,
        "standby": standby,
    }
    check_choice_of_model(kind, dtype, lora, attn_implementation, **engine)
    check_int("seed", seed, 0)
    peft_config = None
    if kind.startswith("unsloth"):
        engine |= {"gradient_checkpointing": gradient_checkpointing, "max_length": max_length}
        options = LORA_DEFAULTS | dict(lora or {})
        model, tokenizer = load_with_unsloth(source, kind, seed=seed, dtype=dtype, lora=options, **engine)
    else:
        import transformers

        if kind == "lora":
            import peft

            options = LORA_DEFAULTS | {"target_modules": "all-linear"} | dict(lora or {})
            peft_config = peft.LoraConfig(task_type="CAUSAL_LM", **options)
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
        how: dict[str, Any] = {"dtype": dtype or "float32", "attn_implementation": attn_implementation}
        model = transformers.AutoModelForCausalLM.from_pretrained(source, **how)
    from transformers import set_seed

    tokenizer.padding_side = "left"  # as generation needs
    stops = stop_tokens(tokenizer, model.generation_config.eos_token_id)
    if len(stops) > 1:
        model.generation_config.eos_token_id = stops
    set_seed(seed)
    return LoadedModel(model, tokenizer, peft_config)


def check_choice_of_model(
    kind: str,
    dtype: str | None,
    lora: Mapping[str, Any] | None,
    attn_implementation: str | None = None,
    **engine: Any,
) -> None:
    """Raise ValueError for what :func:`load_model` cannot do, before anything is loaded."""
    check_choice("kind", kind, KINDS)
    check_choice("dtype", dtype, (None, "float32", "bfloat16"))
    if lora is not None and not kind.endswith("lora"):
        raise ValueError(f"lora must be None for kind {kind!r}, got {dict(lora)}; use a LoRA kind")
    if attn_implementation is not None and kind.startswith("unsloth"):
        wanted = f"None for kind {kind!r}, which has its own"
        raise ValueError(f"attn_implementation must be {wanted}, got {attn_implementation!r}; leave it out")
    check_unsloth_choice(kind, lora, **engine)


def stop_tokens(tokenizer: Any, own: int | Sequence[int] | None) -> list[int]:
    """Token ids that end a completion: the tokenizer's, the generation config's (``own``) and the chat's.

    The last is the special token that closes an answer in the chat template: base models such as Qwen3's
    name only the end of text, and would go on to invent the next turn.
    """
    ids = {tokenizer.eos_token_id, *(own if isinstance(own, list | tuple) else [own])}
    if tokenizer.chat_template is not None:
        chat = [{"role": "user", "content": "Question"}, {"role": "assistant", "content": "Answer"}]
        text = tokenizer.apply_chat_template(chat, tokenize=False)
        # what follows the answer ends it only if it is a special token: plain text could occur in an answer
        for token in tokenizer(text.rpartition("Answer")[2], add_special_tokens=False)["input_ids"][:1]:
            ids |= {token} & {i for i, added in tokenizer.added_tokens_decoder.items() if added.special}
    return sorted(ids - {None})


def merged_model(source: str, adapter: str | Path, folder: str | Path) -> Path:
    """Write base and adapter as one model with its tokenizer to ``folder``, for engines that need one."""
    import peft
    import transformers

    base = transformers.AutoModelForCausalLM.from_pretrained(source)
    peft.PeftModel.from_pretrained(base, str(adapter)).merge_and_unload().save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(str(adapter)).save_pretrained(folder)
    return Path(folder)


# The tiny base: 0.6 million parameters ("tiny") and 5 million ("small", slower) for a laptop, 40 million
# ("mid") for a first try on a GPU

TINY_CONFIGS: dict[str, dict[str, Any]] = {
    size: {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": 2 * kv_heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,  # Qwen3's default is 128 whatever the hidden size
        "intermediate_size": 3 * width,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
    }
    for size, width, layers, kv_heads, head_dim in (
        ("tiny", 128, 3, 2, 32),
        ("small", 256, 6, 2, 64),
        ("mid", 512, 12, 4, 64),
    )
}
TINY_OPTIMIZER: dict[str, Any] = {"betas": (0.9, 0.98), "weight_decay": 0.01}
TINY_LEARNING_RATES = {"tiny": 2e-3, "small": 1e-3, "mid": 5e-4}
TINY_WARMUP_STEPS, TINY_MAX_GRAD_NORM = 50, 1.0


def tiny_base(
    task: Task,
    *,
    seed: int,
    cache_dir: str | Path,
    size: str = "tiny",
    steps: int = 800,
    batch_size: int = 96,
    learning_rate: float | None = None,
    progress: bool = True,
) -> Path:
    """Train a small Qwen3 on what the task teaches, or find it in the cache; return its folder.

    The same arguments give the same bits on one machine. PyTorch's global random state and thread count
    are unchanged afterwards. The folder exists completely or not at all, in `cache_dir` under a hash of
    everything that the base depends on; the task's evaluation prompts are held out. The learning rate, by
    default the size's own, rises for `TINY_WARMUP_STEPS` and then falls as a cosine.
    """
    check_choice("size", size, TINY_CONFIGS)
    check_int("seed", seed, 0)
    check_int("steps", steps, 1)
    check_int("batch_size", batch_size, 1)
    rate = TINY_LEARNING_RATES[size] if learning_rate is None else learning_rate
    check_number("learning_rate", rate, 0, open_low=True)
    import torch
    import transformers

    device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = {"seed": seed, "steps": steps, "batch_size": batch_size, "threads": 1, "device": device}
    ingredients = settings | {
        "task": task.fingerprint(),
        "config": TINY_CONFIGS[size],
        "optimizer": TINY_OPTIMIZER | {"lr": rate},
        "warmup_steps": TINY_WARMUP_STEPS,
        "max_grad_norm": TINY_MAX_GRAD_NORM,
        "versions": {module.__name__: module.__version__ for module in (np, torch, transformers)},
    }
    text = json.dumps(ingredients, indent=2, sort_keys=True)
    target = Path(cache_dir) / hashlib.sha256(text.encode()).hexdigest()[:16]
    if (target / LEDGER).is_file():
        if (fault := fault_of(target)) is not None:
            raise ValueError(f"{fault}; delete {target}, and the base is made again")
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(".making-*"):  # of processes that were killed
        if time.time() - left.stat().st_mtime > 86_400:
            shutil.rmtree(left, ignore_errors=True)
    # Beside the target: a move is atomic only within one file system.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as making:
        work = Path(making) / target.name
        tokenizer = task.tokenizer()
        model = _train_tiny_base(task, tokenizer, size, seed, steps, batch_size, rate, device, progress)
        with written(str(target)):
            model.save_pretrained(work)
            tokenizer.save_pretrained(work)
        (work / "tiny_base.json").write_text(text + "\n", encoding="utf-8")
        write_ledger(work)
        if not (target / LEDGER).is_file():  # another process may have put the same base there meanwhile
            shutil.rmtree(target, ignore_errors=True)
            os.replace(work, target)
    return target


def _train_tiny_base(task, tokenizer, size, seed, steps, batch_size, rate, device, progress):
    import torch
    import transformers
    from tqdm.auto import trange

    rng = np.random.default_rng(seed)
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    ends |= {"bos_token_id": None, "vocab_size": len(tokenizer)}
    config = transformers.Qwen3Config(**TINY_CONFIGS[size], **ends)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(1)  # several would change the last bits
    try:
        with torch.random.fork_rng(devices=[]):
            # torch.manual_seed would also seed GPUs, whose state fork_rng does not restore.
            torch.default_generator.manual_seed(seed)
            model = transformers.Qwen3ForCausalLM(config).to(device).train()
            optimizer = torch.optim.AdamW(model.parameters(), lr=rate, **TINY_OPTIMIZER)
            warmup = min(TINY_WARMUP_STEPS, steps // 2)
            schedule = transformers.get_cosine_schedule_with_warmup(optimizer, warmup, steps)
            for _ in trange(steps, desc="tiny base", unit="step", disable=not progress):
                _completion_loss(model, tokenizer, *task.teach(rng, batch_size)).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), TINY_MAX_GRAD_NORM)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    finally:
        torch.set_num_threads(threads_before)
    return model.to("cpu").eval()


def _completion_loss(model, tokenizer, prompts, completions):
    """Mean cross-entropy, in nats per token, of the completions and their end-of-text tokens."""
    start, longest = len(prompts[0]), max(map(len, completions))  # one token per character
    said = [c + tokenizer.eos_token * (longest + 1 - len(c)) for c in completions]
    texts = [p + c for p, c in zip(prompts, said, strict=True)]
    ids = tokenizer(texts, return_tensors="pt")["input_ids"].to(model.device)
    labels = ids.clone()
    labels[:, :start] = -100  # is ignored by the loss
    for row, completion in enumerate(completions):
        labels[row, start + len(completion) + 1 :] = -100  # ends that only fill up
    return model(input_ids=ids, labels=labels, use_cache=False).loss
