"""How much GPU memory a training run needs, before one rents the GPU.

A formula, not held against a measurement yet: leave room. All sizes are in bytes;
:func:`describe` prints GiB (2³⁰ bytes).

With N weights, N_t of them trained, L layers, hidden width d, feed-forward width f, H query and K
key heads of width h, vocabulary V, T tokens in a micro-batch (T_c of them completion), and S
sequences of Λ tokens generated at once:

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

Training and generating take turns: what counts is the larger of activations + logits and the KV
cache. With vLLM in the same process the KV cache is what ``vllm_gpu_memory_utilization`` sets
aside, and vLLM's own bfloat16 weights (2 N) come on top of it.
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

    @property
    def total(self) -> int:
        """Bytes at the fuller of the two turns, training and generating."""
        always = self.weights + self.gradients + self.optimizer + self.reference + self.overhead
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
) -> MemoryEstimate:
    """Estimate the memory of one GPU.

    Args:
        shape: the model, for instance ``QWEN3["4b"]``.
        prompt_length, completion_length: tokens of the longest prompt and completion.
        batch_size: completions of a micro-batch (``per_device_train_batch_size``).
        sequences: completions that one GPU generates at once, in the training process.
        lora_rank: None for full fine-tuning.
        dtype: of the weights, "float32" or "bfloat16"; None as ``gdro.models.load_model`` takes it.
        gradient_checkpointing: layers are computed again in the backward pass.
        beta: coefficient of the KL term; above 0, full fine-tuning holds a reference model.
        shards: GPUs among which weights, gradients, moments and reference are split (FSDP, ZeRO-3).

    Raises:
        ValueError: for a length, count or rank below 1, and an unknown dtype.
    """
    counts = {"prompt_length": prompt_length, "completion_length": completion_length}
    counts |= {"batch_size": batch_size, "sequences": sequences, "shards": shards}
    counts |= {} if lora_rank is None else {"lora_rank": lora_rank}
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} is {count}; give an integer of at least 1")
    full = lora_rank is None
    dtype = dtype or ("float32" if full else "bfloat16")
    if dtype not in ("float32", "bfloat16"):
        raise ValueError(f"dtype is {dtype!r}; give 'float32' or 'bfloat16'")
    width = 4 if dtype == "float32" else 2
    adapter = 0 if lora_rank is None else shape.lora_weights(lora_rank)
    trained = adapter or shape.weights
    length = prompt_length + completion_length
    kv_per_token = 4 * shape.layers * shape.key_heads * shape.head_dim
    return MemoryEstimate(
        weights=(width * shape.weights + 4 * adapter) // shards,
        casts=2 * shape.weights // shards if dtype == "float32" else 0,
        gradients=4 * trained // shards,
        optimizer=8 * trained // shards,
        reference=width * shape.weights // shards if full and beta > 0 else 0,
        activations=_activations(shape, batch_size * length, width, gradient_checkpointing),
        logits=12 * batch_size * completion_length * shape.vocabulary,
        kv_cache=sequences * length * kv_per_token,
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
