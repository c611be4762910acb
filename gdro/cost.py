"""Memory of a GPU and seconds of a training step, by formula.

Not held against a measurement yet: leave room. Sizes are in bytes.

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

from dataclasses import dataclass

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
