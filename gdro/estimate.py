"""How much GPU memory and time a training run needs, before one rents the GPU.

    python -m gdro.estimate gpu-8b --device h100 --completion-tokens 1000

Formulas, not held against a measurement yet: leave room. Sizes are in bytes; what is printed is in
GiB (2³⁰ bytes).

**Memory of one GPU.** With N weights, N_t of them trained, L layers, hidden width d, feed-forward
width f, H query and K key heads of width h, vocabulary V, T tokens in a micro-batch (T_c of them
completion), and S sequences of Λ tokens generated at once:

    weights      b N                    b = 4 in float32, 2 in bfloat16
    casts        2 N                    full training in float32 computes on bfloat16 copies
    gradients    4 N_t
    optimizer    8 N_t                  AdamW's two moments
    reference    b N                    full training with β_KL > 0; LoRA switches its adapter off
    activations  b L T d + 2 T a        with checkpointing: layer inputs, and one layer recomputed
                 2 L T a                without
                 a = 4d + (4H + 4K) h + 4f
    logits       12 T_c V               logits, their gradient and a copy, in float32
    kv_cache     4 S Λ L K h            keys and values in bfloat16
    overhead     2 GiB                  CUDA's context, fragments
    vllm         share × GPU            vLLM in the same process: its bfloat16 weights and KV cache

Training and generating take turns: what counts is the larger of casts + activations + logits and
the KV cache. vLLM in the same process keeps its part all the time, and then there is no other KV
cache.

**Seconds of one step.** With C completions a GPU, Λ_p prompt tokens, Λ_c completion tokens on
average and Λ_max of the longest, M weights in products (N without an input embedding of its own),
f(Λ) = 2M + 2LHhΛ operations for a token's forward pass at length Λ, the GPU's bandwidth W and rate
F, of which the shares w and u are reached, and S sequences decoded at once on each of the t GPUs
that share one engine:

    decode steps D  max(Λ_max, C Λ_c / S)             continuous batching; the longest ends last
    generate        max(memory, compute) + D o        o seconds of overhead a decode step
      memory        (2 N D / t + κ C Λ_c (Λ_p + Λ_c / 2)) / (w W)    κ = 4 L K h, a token's keys, values
      compute       C (Λ_p + Λ_c) f(Λ_p + Λ_c) / (u F)
    score           s T f / (u F)                     s forward passes: old policy, reference
    train           c T f / (u F)                     c = 3 full, 2 LoRA; 1 more with checkpointing
                    T = C (Λ_p + Λ_max), f = f(Λ_p + Λ_max): TRL pads to the longest
    gather          (2 s + 6) N m / I                 sharded weights only, m micro-batches, I the link
    other           rewards, the optimizer, handing weights over: a constant

Sharded, scoring and training take the larger of computing and gathering.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gdro.profiles import Profile

GIB = 2**30
OVERHEAD = 2 * GIB


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a dense Llama-like model with gated feed-forward layers, as its config names them.

    ``qk_norm`` counts the two norms that Qwen3 has in each attention layer.
    """

    layers: int
    hidden: int
    heads: int
    key_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    qk_norm: bool = True

    @property
    def linear_shapes(self) -> tuple[tuple[int, int], ...]:
        """(in, out) of one layer's linear maps."""
        d, query, key = self.hidden, self.heads * self.head_dim, self.key_heads * self.head_dim
        attention = ((d, query), (d, key), (d, key), (query, d))
        return (*attention, (d, self.intermediate), (d, self.intermediate), (self.intermediate, d))

    @property
    def weights(self) -> int:
        """Number of weights; a tied output layer is counted once."""
        linear = sum(inputs * outputs for inputs, outputs in self.linear_shapes)
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return self.layers * (linear + norms) + self.hidden + embeddings

    def lora_weights(self, rank: int) -> int:
        """Weights of adapters of this rank on all linear layers but the output layer."""
        return self.layers * rank * sum(sum(shape) for shape in self.linear_shapes)

    @property
    def matmul_weights(self) -> int:
        """Weights that a token is multiplied with: all but an input embedding of its own."""
        return self.weights - (0 if self.tied else self.vocabulary * self.hidden)

    @property
    def kv_bytes(self) -> int:
        """Bytes of one token's keys and values in bfloat16."""
        return 4 * self.layers * self.key_heads * self.head_dim

    def forward_operations(self, length: float) -> float:
        """Floating-point operations of one token's forward pass, the mean over a causal sequence."""
        return 2 * self.matmul_weights + 2 * self.layers * self.heads * self.head_dim * length


QWEN3 = {
    "1.7b": ModelShape(28, 2048, 16, 8, 128, 6144, 151936, tied=True),
    "4b": ModelShape(36, 2560, 32, 8, 128, 9728, 151936, tied=True),
    "8b": ModelShape(36, 4096, 32, 8, 128, 12288, 151936, tied=False),
}


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes by what holds them; see the module's docstring."""

    weights: int
    casts: int
    gradients: int
    optimizer: int
    reference: int
    activations: int
    logits: int
    kv_cache: int
    overhead: int = OVERHEAD
    vllm: int = 0

    @property
    def total(self) -> int:
        """Bytes at the fuller of the two turns, training and generating."""
        always = self.weights + self.gradients + self.optimizer + self.reference + self.overhead + self.vllm
        return always + max(self.casts + self.activations + self.logits, self.kv_cache)


def training_memory(
    shape: ModelShape,
    *,
    prompt_length: int,
    completion_length: int,
    batch_size: int,
    sequences: int,
    lora_rank: int | None = None,
    dtype: str | None = None,
    gradient_checkpointing: bool = True,
    beta: float = 0.0,
    shards: int = 1,
    shard_weights: bool = True,
    vllm: int = 0,
) -> MemoryEstimate:
    """Estimate the memory of one GPU.

    Args:
        shape: the model, for instance ``QWEN3["4b"]``.
        prompt_length, completion_length: tokens of the longest prompt and completion.
        batch_size: completions of a micro-batch (``per_device_train_batch_size``).
        sequences: completions that one GPU generates at once, in the training process; of no
            account with vLLM.
        lora_rank: None for full fine-tuning.
        dtype: of the weights, "float32" or "bfloat16"; None as ``gdro.models.load_model`` takes it.
        gradient_checkpointing: layers are computed again in the backward pass.
        beta: coefficient of the KL term; above 0, full fine-tuning holds a reference model.
        shards: GPUs among which weights, gradients, moments and reference are split (FSDP, ZeRO-3).
        shard_weights: False splits gradients and moments alone (ZeRO-2).
        vllm: bytes that vLLM takes in the same process.

    Raises:
        ValueError: for a length, count or rank below 1, negative bytes, and an unknown dtype.
    """
    counts = {"prompt_length": prompt_length, "completion_length": completion_length}
    counts |= {"batch_size": batch_size, "sequences": sequences, "shards": shards}
    counts |= {} if lora_rank is None else {"lora_rank": lora_rank}
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} is {count}; give an integer of at least 1")
    if vllm < 0:
        raise ValueError(f"vllm is {vllm} bytes; give 0 or more")
    full = lora_rank is None
    dtype = dtype or ("float32" if full else "bfloat16")
    if dtype not in ("float32", "bfloat16"):
        raise ValueError(f"dtype is {dtype!r}; give 'float32' or 'bfloat16'")
    width = 4 if dtype == "float32" else 2
    adapter = 0 if lora_rank is None else shape.lora_weights(lora_rank)
    trained = adapter or shape.weights
    length = prompt_length + completion_length
    parts = shards if shard_weights else 1  # of weights
    return MemoryEstimate(
        weights=(width * shape.weights + 4 * adapter) // parts,
        casts=2 * shape.weights // parts if dtype == "float32" else 0,
        gradients=4 * trained // shards,
        optimizer=8 * trained // shards,
        reference=width * shape.weights // parts if full and beta > 0 else 0,
        activations=_activations(shape, batch_size * length, width, gradient_checkpointing),
        logits=12 * batch_size * completion_length * shape.vocabulary,
        kv_cache=0 if vllm else sequences * length * shape.kv_bytes,
        vllm=vllm,
    )


def _activations(shape: ModelShape, tokens: int, width: int, checkpointing: bool) -> int:
    """What the backward pass needs of ``tokens`` tokens, without the logits."""
    heads = 4 * (shape.heads + shape.key_heads) * shape.head_dim
    per_token = 4 * shape.hidden + heads + 4 * shape.intermediate
    if checkpointing:
        return width * shape.layers * tokens * shape.hidden + 2 * tokens * per_token
    return 2 * shape.layers * tokens * per_token


def describe(estimate: MemoryEstimate) -> str:
    """A line for each part and the total, in GiB."""
    parts = {name: getattr(estimate, name) for name in estimate.__dataclass_fields__}
    rows = (parts | {"total": estimate.total}).items()
    return "\n".join(f"{name:<12}{size / GIB:8.2f} GiB" for name, size in rows)


@dataclass(frozen=True)
class Device:
    """A GPU by its data sheet.

    Attributes:
        memory: bytes; data sheets count 10⁹ to the GB.
        bandwidth: of that memory, bytes a second.
        rate: dense bfloat16 operations a second on tensor cores.
        link: to the other GPUs of the machine, bytes a second one way.
    """

    name: str
    memory: float
    bandwidth: float
    rate: float
    link: float


DEVICES = {
    "a100": Device("A100 80 GB (SXM)", 80e9, 2.039e12, 312e12, 300e9),
    "h100": Device("H100 80 GB (SXM)", 80e9, 3.35e12, 989e12, 450e9),
    "h200": Device("H200 141 GB (SXM)", 141e9, 4.8e12, 989e12, 450e9),
}


@dataclass(frozen=True)
class StepTime:
    """Seconds of one training step by what takes them; see the module's docstring."""

    generate: float
    score: float
    train: float
    other: float

    @property
    def total(self) -> float:
        """Seconds of the step: the parts follow each other."""
        return self.generate + self.score + self.train + self.other


def generation_time(
    shape: ModelShape,
    device: Device,
    *,
    completions: int,
    prompt_length: float,
    completion_length: float,
    longest: int,
    at_once: int | None = None,
    engine_gpus: int = 1,
    overhead: float = 0.005,
    bandwidth_share: float = 0.6,
    utilization: float = 0.4,
) -> float:
    """Seconds in which each of the GPUs generates its completions.

    Args:
        shape: the model.
        device: the GPU.
        completions: of one GPU.
        prompt_length, completion_length: tokens on average.
        longest: tokens of the longest completion, at least ``completion_length``.
        at_once: sequences that one GPU decodes at once; None for all.
        engine_gpus: GPUs among which one engine splits the weights (tensor parallel).
        overhead: seconds of a decode step besides reading and computing; about 0.005 for vLLM, 0.03
            for transformers.
        bandwidth_share, utilization: of the GPU's memory bandwidth and rate, what is reached.

    Raises:
        ValueError: for a number that is not positive, or a longest below the average.
    """
    _positive(
        completions=completions, prompt_length=prompt_length, completion_length=completion_length,
        longest=longest, at_once=at_once or completions, engine_gpus=engine_gpus,
        bandwidth_share=bandwidth_share, utilization=utilization,
    )  # fmt: skip
    if overhead < 0:
        raise ValueError(f"overhead is {overhead} s; give 0 or more")
    if longest < completion_length:
        raise ValueError(
            f"longest is {longest} tokens, below completion_length {completion_length}; no average "
            "exceeds the longest: lower the one or raise the other"
        )
    slots = min(at_once or completions, completions)
    steps = max(float(longest), completions * completion_length / slots)
    read = 2 * shape.weights * steps / engine_gpus
    read += shape.kv_bytes * completions * completion_length * (prompt_length + completion_length / 2)
    length = prompt_length + completion_length
    operations = completions * length * shape.forward_operations(length)
    memory, compute = read / (bandwidth_share * device.bandwidth), operations / (utilization * device.rate)
    return max(memory, compute) + steps * overhead


def step_time(
    shape: ModelShape,
    device: Device,
    *,
    completions: int,
    prompt_length: float,
    completion_length: float,
    longest: int,
    micro_batches: int = 1,
    full: bool = True,
    gradient_checkpointing: bool = True,
    forwards: int = 1,
    sharded: bool = False,
    at_once: int | None = None,
    engine_gpus: int = 1,
    overhead: float = 0.005,
    bandwidth_share: float = 0.6,
    utilization: float = 0.4,
    other: float = 5.0,
) -> StepTime:
    """Estimate the seconds of one training step.

    Args:
        micro_batches: into which a GPU splits its completions.
        full: False for LoRA, which needs no gradients of the weights.
        gradient_checkpointing: one forward pass more.
        forwards: passes that score the completions before training on them.
        sharded: weights are gathered anew for each micro-batch (FSDP, ZeRO-3).
        other: seconds for rewards, the optimizer and handing weights over.
        **the others: see :func:`generation_time`.

    Raises:
        ValueError: as :func:`generation_time`, and for forwards or seconds below 0.
    """
    for name, value in (("forwards", forwards), ("other", other)):
        if value < 0:
            raise ValueError(f"{name} is {value}; give 0 or more")
    _positive(micro_batches=micro_batches)
    generate = generation_time(
        shape, device, completions=completions, prompt_length=prompt_length,
        completion_length=completion_length, longest=longest, at_once=at_once, engine_gpus=engine_gpus,
        overhead=overhead, bandwidth_share=bandwidth_share, utilization=utilization,
    )  # fmt: skip
    length = prompt_length + longest
    forward = completions * length * shape.forward_operations(length) / (utilization * device.rate)
    gather = 2 * shape.weights * micro_batches / device.link if sharded else 0.0
    passes = (3 if full else 2) + gradient_checkpointing
    return StepTime(
        generate=generate,
        score=forwards * max(forward, gather),
        train=max(passes * forward, 3 * gather),
        other=other,
    )


def _positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if not number > 0:
            raise ValueError(f"{name} is {number}; give a number above 0")


# Of a profile

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
