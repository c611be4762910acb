"""How much GPU memory and time the runs of a profile need, before one rents the GPU.

    python -m gdro.estimate gpu-8b --device h100 --completion-tokens 1000

By the formulas of :mod:`gdro.cost`: leave room. Sizes are in bytes; what is printed is in GiB (2³⁰ bytes).
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdro.cost import (
    DEVICES,
    GIB,
    QWEN3,
    Device,
    MemoryEstimate,
    ModelShape,
    StepTime,
    generation_time,
    step_time,
    training_memory,
)

if TYPE_CHECKING:
    from gdro.profiles import Profile

# held-out prompts, as far as known; see data/README.md
ROWS = {
    "math500": 500, "aime2024": 30, "aime2025": 30, "amc": 40, "minerva": 272, "olympiad": 674,
    "gpqa": 198, "gsm8k": 1319, "math": 5000,
}  # fmt: skip


@dataclass(frozen=True)
class RunEstimate:
    """What one run of a variant needs.

    Attributes:
        memory: of one GPU, bytes.
        device: the GPU.
        step: seconds of one step.
        steps: how many.
        evaluation: seconds.
        gpus: that train; they also wait while one engine evaluates.
    """

    memory: MemoryEstimate
    device: Device
    step: StepTime
    steps: int
    evaluation: float
    gpus: int

    @property
    def fits(self) -> bool:
        """Whether the GPU has the memory."""
        return self.memory.total <= self.device.memory

    @property
    def hours(self) -> float:
        """Hours of training and evaluating."""
        return (self.steps * self.step.total + self.evaluation) / 3600

    @property
    def gpu_hours(self) -> float:
        """The same times the GPUs that are held."""
        return self.gpus * self.hours


def estimate_profile(
    profile: Profile,
    variant: str,
    device: Device,
    *,
    prompt_tokens: float = 200,
    completion_tokens: float = 1000,
    utilization: float = 0.4,
    bandwidth_share: float = 0.6,
    other: float | None = None,
) -> RunEstimate:
    """Estimate one run of a profile's variant.

    Memory is for the longest prompts and completions that the task allows. Time takes the longest
    completion of every step to reach the task's limit, as it does with base models. A server's GPUs
    (``vllm.mode: server``) are not counted; it is taken to generate as fast as the training GPUs would.

    Args:
        profile: the profile.
        variant: one of its variants, not "base".
        device: the GPU.
        prompt_tokens, completion_tokens: the average; where the task allows fewer, that.
        utilization, bandwidth_share, other: see :func:`step_time`; other None takes 5 seconds for math,
            whose answers are verified, and 0.5 for the embedded task.

    Raises:
        ValueError: for an unknown variant, a model whose shape is not known, and where vLLM's share of
            the memory does not hold its weights and one sequence.
    """
    settings, choice = profile.train_of(variant), profile.model_of(variant)
    shape = shape_of(profile, choice.source)
    longest_prompt, longest = _limits(profile)
    prompt_tokens, completion_tokens = min(prompt_tokens, longest_prompt), min(completion_tokens, longest)
    processes = profile.launch.processes
    micro_batch, micro_batches = settings.local_batch(processes)
    completions = micro_batch * micro_batches
    full = choice.kind.endswith("full")
    shards, shard_weights = _sharding(profile.launch)

    tokens = prompt_tokens + completion_tokens
    vllm, reserved, at_once, engine_gpus = settings.vllm, 0, None, 1
    if vllm is not None and vllm.mode == "colocate":
        engine_gpus = vllm.tensor_parallel_size
        reserved = int(vllm.gpu_memory_utilization * device.memory)
        at_once = _sequences(shape, reserved, tokens, engine_gpus, "train.vllm.gpu_memory_utilization")
    memory = training_memory(
        shape,
        prompt_length=longest_prompt,
        completion_length=longest,
        batch_size=micro_batch,
        sequences=completions,
        lora_rank=None if full else _lora_rank(choice.lora),
        # Unsloth loads bfloat16 in either kind
        dtype=choice.dtype or ("bfloat16" if choice.kind.startswith("unsloth") else None),
        gradient_checkpointing=choice.gradient_checkpointing,
        beta=settings.beta,
        shards=shards,
        shard_weights=shard_weights,
        vllm=reserved,
    )
    shared: dict[str, Any] = {"prompt_length": prompt_tokens, "completion_length": completion_tokens}
    shared |= {"longest": longest, "utilization": utilization, "bandwidth_share": bandwidth_share}
    step = step_time(
        shape,
        device,
        completions=completions,
        micro_batches=micro_batches,
        full=full,
        gradient_checkpointing=choice.gradient_checkpointing,
        forwards=(vllm is not None) + (settings.beta > 0),
        sharded=shards > 1 and shard_weights,
        at_once=at_once,
        engine_gpus=engine_gpus,
        overhead=0.03 if vllm is None else 0.005,
        other=(5.0 if profile.task.kind == "math" else 0.5) if other is None else other,
        **shared,
    )
    evaluation = _evaluation_time(profile, shape, device, tokens, shared)
    return RunEstimate(memory, device, step, settings.steps, evaluation, max(processes, profile.gpus))


def shape_of(profile: Profile, source: str | None) -> ModelShape:
    """The shape of a profile's model: a folder's config.json, a Qwen3 of the table, or the tiny base.

    Raises ValueError for a hub id that is not in the table and a config that lacks a size.
    """
    if source is None:
        from gdro.tasks import draw_chain
        from gdro.tasks.chain import make_tokenizer
        from gdro.tiny import CONFIGS

        assert profile.task.kind == "chain"  # the profile has seen to it
        tokenizer = make_tokenizer(draw_chain(profile.task).spec)
        return shape_of_config(CONFIGS[profile.base.size] | {"vocab_size": len(tokenizer)})
    if (Path(source) / "config.json").is_file():
        return shape_of_config(json.loads((Path(source) / "config.json").read_text(encoding="utf-8")))
    name = source.rstrip("/").split("/")[-1].lower()
    for size, shape in QWEN3.items():
        if name.removesuffix("-base") == f"qwen3-{size}":
            return shape
    raise ValueError(
        f"model.source is {source!r}, whose shape is not known; give a local folder with its config.json, or "
        f"one of {[f'Qwen/Qwen3-{size.upper()}-Base' for size in QWEN3]}"
    )


def shape_of_config(config: dict[str, Any]) -> ModelShape:
    """The shape that a config.json of a dense Llama-like model describes.

    Raises ValueError for a missing size, and for a mixture of experts.
    """
    if any("expert" in key and config[key] for key in config):
        raise ValueError("the config is of a mixture of experts; the formulas are for dense models alone")
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
    missing = [name for name in names if name not in config]
    if missing:
        raise ValueError(f"the config lacks {missing}; give that of a dense Llama-like model")
    layers, hidden, heads, intermediate, vocabulary = (config[name] for name in names)
    return ModelShape(
        layers,
        hidden,
        heads,
        config.get("num_key_value_heads") or heads,
        config.get("head_dim") or hidden // heads,
        intermediate,
        vocabulary,
        tied=config.get("tie_word_embeddings", False),
        qk_norm=config.get("model_type", "qwen3").startswith("qwen3"),
    )


def _limits(profile):
    """Tokens of the longest prompt and completion."""
    if profile.task.kind == "math":
        return profile.task.max_prompt_tokens, profile.task.max_completion_tokens
    from gdro.tasks import draw_chain

    drawn = draw_chain(profile.task)
    prompts = [row["prompt"] for row in (*drawn.train, *drawn.eval)]
    return max(map(len, prompts)), drawn.spec.max_completion_tokens  # a token is a character


def _lora_rank(lora):
    from gdro.models import LORA_DEFAULTS

    return (LORA_DEFAULTS | (lora or {}))["r"]


def _sharding(launch):
    """GPUs that share what is split, and whether the weights are."""
    if launch.config is None:
        return 1, True
    import yaml

    config = yaml.safe_load(launch.config_path.read_text(encoding="utf-8"))
    if config.get("distributed_type") == "FSDP":
        return launch.processes, True
    stage = (config.get("deepspeed_config") or {}).get("zero_stage", 0)
    return (launch.processes, stage == 3) if stage >= 2 else (1, True)


def _sequences(shape, reserved, tokens, engine_gpus, name):
    """Sequences for whose keys and values there is room beside vLLM's weights."""
    weights = 2 * shape.weights // engine_gpus
    room = math.floor((reserved - weights) / (shape.kv_bytes * tokens))
    if room < 1:
        raise ValueError(
            f"{name} leaves vLLM {reserved / GIB:.1f} GiB, less than its weights ({weights / GIB:.1f}) and "
            "one sequence; raise it, or take a larger GPU"
        )
    return room


def _evaluation_time(profile, shape, device, tokens, shared):
    choice, task = profile.evaluation, profile.task
    if task.kind == "math":
        rows = sum(min(ROWS[name], task.evaluate_limit or ROWS[name]) for name in task.evaluate)
    else:
        from gdro.tasks import draw_chain

        rows = len(draw_chain(task).eval)
    if choice.engine == "vllm":
        reserved = int(choice.gpu_memory_utilization * device.memory)
        gpus = choice.tensor_parallel_size
        at_once = _sequences(shape, reserved, tokens, gpus, "evaluation.gpu_memory_utilization")
        overhead = 0.005
    else:
        at_once, gpus, overhead = choice.batch_size, 1, 0.03
    completions = math.ceil(rows * choice.samples / gpus)
    return generation_time(
        shape, device, completions=completions, at_once=at_once, engine_gpus=gpus, overhead=overhead, **shared
    )


MEMORY_COLUMNS = (
    "weights", "gradients", "optimizer", "reference", "casts", "activations", "logits", "kv_cache", "vllm",
    "overhead", "total",
)  # fmt: skip
TIME_COLUMNS = ("generate", "score", "train", "other", "total")


def report(profile: Profile, device: Device, **assumptions: float) -> str:
    """Memory and time of a profile's variants, as Markdown tables, and GPU-hours over methods and seeds.

    assumptions: of :func:`estimate_profile`. Raises ValueError as it does.
    """
    estimates = {name: estimate_profile(profile, name, device, **assumptions) for name in profile.variants}
    memory = [["GiB a GPU", *(name.replace("_", " ") for name in MEMORY_COLUMNS), "fits"]]
    time = [["seconds a step", *TIME_COLUMNS, "hours a run", "GPUs", "GPU-hours a run"]]
    for name, estimate in estimates.items():
        label, fits = profile.label(name), "yes" if estimate.fits else "**no**"
        sizes = [f"{getattr(estimate.memory, part) / GIB:.1f}" for part in MEMORY_COLUMNS]
        seconds = [f"{getattr(estimate.step, part):.1f}" for part in TIME_COLUMNS]
        hours = [f"{estimate.hours:.1f}", str(estimate.gpus), f"{estimate.gpu_hours:.1f}"]
        memory.append([label, *sizes, fits])
        time.append([label, *seconds, *hours])
    seeds = len(profile.seeds)
    total = seeds * sum(estimate.gpu_hours for estimate in estimates.values())
    summary = (
        f"{profile.name} on {device.name}, {device.memory / GIB:.1f} GiB: {len(estimates)} variants with "
        f"{seeds} seed{'s' * (seeds > 1)} take {total:,.1f} GPU-hours. A formula, not a measurement."
    )
    return "\n\n".join([_table(memory), _table(time), summary])


def _table(rows):
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def main(arguments: list[str] | None = None) -> None:
    """`python -m gdro.estimate PROFILE [--device …] [--completion-tokens …]`."""
    parser = argparse.ArgumentParser(
        prog="python -m gdro.estimate", description="Memory and time of a profile's runs, by formula."
    )
    parser.add_argument("profile", help="the name of a file in profiles/, or the path of one")
    parser.add_argument("--device", choices=sorted(DEVICES), default="h100")
    parser.add_argument("--completion-tokens", type=float, default=1000, help="tokens on average")
    parser.add_argument("--prompt-tokens", type=float, default=200, help="tokens on average")
    parser.add_argument("--utilization", type=float, default=0.4, help="of the GPU's rate, what is reached")
    parser.add_argument("--bandwidth-share", type=float, default=0.6, help="the same of its bandwidth")
    given = vars(parser.parse_args(arguments))
    from gdro.profiles import load_profile

    device = DEVICES[given.pop("device")]
    try:
        print(report(load_profile(given.pop("profile")), device, **given))
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
