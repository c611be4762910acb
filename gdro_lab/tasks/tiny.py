"""The tiny base: a small Qwen3 trained on what a task teaches, made once and kept in a cache.

"tiny" has 0.6 million parameters, "small" 1.2 million; "mid", for a GPU, has 40 million.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from gdro_lab.models import Model, Tokenizer
from gdro_lab.tasks.cache import find_or_make
from gdro_lab.tasks.world import Task

SHIPPED = Path(__file__).parents[2] / "data/bases"  # of a clone: the base of `make run`, adapters
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
        ("small", 192, 3, 2, 32),
        ("mid", 512, 12, 4, 64),
    )
}
# fused: the other form asks MKL for square roots, which starts from the processor's estimate; these
# differ between vendors
TINY_OPTIMIZER: dict[str, Any] = {"betas": (0.9, 0.98), "weight_decay": 0.01, "fused": True}
TINY_LEARNING_RATES = {"tiny": 2e-3, "small": 2.5e-3, "mid": 5e-4}
TINY_WARMUP_STEPS = 50
TINY_MAX_GRAD_NORM = 1.0


def tiny_base(
    task: Task,
    *,
    seed: int,
    cache_dir: str | Path,
    size: str = "tiny",
    steps: int = 800,
    batch_size: int = 96,
    learning_rate: float | None = None,
    trunk: int = 0,
    progress: bool = True,
) -> Path:
    """Train a small Qwen3 on what the task teaches, or find it; return its folder.

    The same arguments give the same bits on one machine. The folder is in `cache_dir`, or shipped
    in data/bases, under a hash of everything that the base depends on, and exists completely or not
    at all. The learning rate, by default the size's own, rises for `TINY_WARMUP_STEPS` and then
    falls as a cosine.

    Where `trunk` is not 0, these steps start from the model of so many steps on lessons without
    slips, with seed 0 and the size's own learning rate, which all seeds share.
    """
    start = None
    if trunk:
        start = tiny_base(
            task.without_slips(),  # type: ignore[union-attr]
            seed=0,
            cache_dir=cache_dir,
            size=size,
            steps=trunk,
            batch_size=batch_size,
            progress=progress,
        )
    rate = TINY_LEARNING_RATES[size] if learning_rate is None else learning_rate
    ingredients = _ingredients(task, size, seed, steps, batch_size, rate)
    if start is not None:
        ingredients["trunk"] = start.name
    text = json.dumps(ingredients, indent=2, sort_keys=True)
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    target = Path(cache_dir) / name

    def make(work: Path) -> None:
        tokenizer = task.tokenizer()
        model = _train_tiny_base(task, tokenizer, ingredients, start, progress)
        model.save_pretrained(work)
        tokenizer.save_pretrained(work)
        (work / "tiny_base.json").write_text(text + "\n", encoding="utf-8")

    return find_or_make(target, make, SHIPPED / name)


def _ingredients(
    task: Task, size: str, seed: int, steps: int, batch_size: int, rate: float
) -> dict[str, Any]:
    """All that the weights of a base depend on, but for its trunk."""
    import torch
    import transformers

    device = "cuda" if torch.cuda.is_available() else "cpu"
    return {
        "seed": seed,
        "steps": steps,
        "batch_size": batch_size,
        "threads": 1,  # always, as below; kept in the hash, by which caches know their bases
        "device": device,
        # AVX-512's kernels round differently, which makes another base
        "kernels": torch.backends.cpu.get_cpu_capability(),
        "task": task.fingerprint(),
        "config": TINY_CONFIGS[size],
        "optimizer": TINY_OPTIMIZER | {"lr": rate},
        "warmup_steps": TINY_WARMUP_STEPS,
        "max_grad_norm": TINY_MAX_GRAD_NORM,
        "versions": {module.__name__: module.__version__ for module in (np, torch, transformers)},
    }


def _train_tiny_base(
    task: Task,
    tokenizer: Tokenizer,
    ingredients: dict[str, Any],
    start: Path | None,
    progress: bool,
) -> Model:
    import torch
    import transformers
    from tqdm.auto import trange

    seed = ingredients["seed"]
    steps = ingredients["steps"]
    rng = np.random.default_rng(seed)
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    ends |= {"bos_token_id": None, "vocab_size": len(tokenizer)}
    config = transformers.Qwen3Config(**ingredients["config"], **ends)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(1)  # several would change the last bits
    try:
        with torch.random.fork_rng(devices=[]):
            # torch.manual_seed would also seed GPUs, whose state fork_rng does not restore.
            torch.default_generator.manual_seed(seed)
            if start is None:
                model = transformers.Qwen3ForCausalLM(config)
            else:
                model = transformers.Qwen3ForCausalLM.from_pretrained(start)
            model = model.to(ingredients["device"]).train()
            optimizer = torch.optim.AdamW(model.parameters(), **ingredients["optimizer"])
            warmup = min(TINY_WARMUP_STEPS, steps // 2)
            schedule = transformers.get_cosine_schedule_with_warmup(optimizer, warmup, steps)
            for _ in trange(steps, desc="tiny base", unit="step", disable=not progress):
                lessons = task.teach(rng, ingredients["batch_size"])
                _completion_loss(model, tokenizer, *lessons).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), TINY_MAX_GRAD_NORM)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    finally:
        torch.set_num_threads(threads_before)
    return model.to("cpu").eval()


def _completion_loss(
    model: Model,
    tokenizer: Tokenizer,
    prompts: list[str],
    completions: list[str],
) -> Any:
    """Mean cross-entropy, in nats per token, of the completions and their end-of-text tokens."""
    # one token per character
    start = len(prompts[0])
    longest = max(map(len, completions))
    said = [c + tokenizer.eos_token * (longest + 1 - len(c)) for c in completions]
    texts = [p + c for p, c in zip(prompts, said, strict=True)]
    ids = tokenizer(texts, return_tensors="pt")["input_ids"].to(model.device)
    labels = ids.clone()
    labels[:, :start] = -100  # is ignored by the loss
    for row, completion in enumerate(completions):
        labels[row, start + len(completion) + 1 :] = -100  # ends that only fill up
    return model(input_ids=ids, labels=labels, use_cache=False).loss
