"""Rollout counts that differ by prompt, and what vLLM still shares of their prompts.

    python benchmarks/prefix.py

The same prompts with the same unequal numbers of rollouts are sampled

- by prompt: one request a prompt, SamplingParams(n=n_i), as in `gdro_lab.experiments.evaluation`;
- by row: one request a rollout, its prompt repeated, as GDROTrainer has it through TRL;

each with vLLM's prefix cache on and off, in an engine of its own. Completions are short beside the
prompts, so that prefilling is what costs. Printed: wall seconds of the fastest repeat, the prompt
tokens that were asked for and those computed, the part found in the cache, and seconds over those
of the first line.

Where this interpreter has no vLLM, it runs with the one that GDRO_VLLM_PYTHON names, else with that
of .venv-vllm; without vLLM it says so and ends.
"""

import argparse
import importlib.util
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

VLLM_PYTHON = os.environ.get(
    "GDRO_VLLM_PYTHON", Path(__file__).parents[1] / ".venv-vllm" / "bin" / "python"
)
VOCABULARY = 512
# of the prompts in turn, 5 on average
ROLLOUTS = (2, 2, 2, 2, 2, 3, 4, 4, 4, 5, 5, 6, 7, 8, 12, 12)


def save_model(folder):
    """A random Qwen3 of 20 million parameters; what it says does not matter."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=512,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        intermediate_size=1408,
        max_position_embeddings=4096,
        eos_token_id=None,
        bos_token_id=None,
    )
    transformers.Qwen3ForCausalLM(config).save_pretrained(folder)


def measure(folder, options, caching):
    """Seconds, tokens asked for and found in the cache of both arrangements, in one engine."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "WARNING"}
    import numpy as np
    import torch
    from vllm import LLM, SamplingParams
    from vllm.platforms import current_platform

    on_cpu = current_platform.is_cpu()
    if on_cpu:
        torch.compiler.set_stance("force_eager")
    llm = LLM(
        model=folder,
        skip_tokenizer_init=True,
        enable_prefix_caching=caching,
        block_size=options.block,
        enforce_eager=on_cpu,
        gpu_memory_utilization=options.memory,
        max_model_len=options.prompt_tokens + options.new_tokens,
        disable_log_stats=False,
    )
    rng = np.random.default_rng(0)
    prompts = rng.integers(0, VOCABULARY, (options.prompts, options.prompt_tokens)).tolist()
    rollouts = [ROLLOUTS[p % len(ROLLOUTS)] for p in range(options.prompts)]
    by_row = [prompt for prompt, n in zip(prompts, rollouts, strict=True) for _ in range(n)]

    def ask(requests, counts):
        settings = [
            SamplingParams(n=n, max_tokens=options.new_tokens, detokenize=False) for n in counts
        ]
        outputs = llm.generate(
            [{"prompt_token_ids": ids} for ids in requests], settings, use_tqdm=False
        )
        if (completions := sum(len(output.outputs) for output in outputs)) != sum(rollouts):
            raise RuntimeError(f"vLLM gave {completions} completions, not {sum(rollouts)}")

    def hits():
        found = {metric.name: getattr(metric, "value", None) for metric in llm.get_metrics()}
        return int(found["vllm:prefix_cache_hits"])  # tokens

    arrangements = {"by prompt": (prompts, rollouts), "by row": (by_row, [1] * len(by_row))}
    ask(*arrangements["by row"])  # the first time anything is sampled, buffers are made
    figures = {}
    for name, arrangement in arrangements.items():
        seconds = []
        for _ in range(options.repeats):
            llm.reset_prefix_cache()  # as TRL does when the weights have changed
            before = hits()
            start = time.perf_counter()
            ask(*arrangement)
            seconds.append(time.perf_counter() - start)
            found = hits() - before
        figures[name] = min(seconds), options.prompt_tokens * len(by_row), found
    return figures


def with_vllm() -> bool:
    """Whether vLLM is here; where another interpreter has it, this program starts again with it."""
    if importlib.util.find_spec("vllm") is not None:
        return True
    if Path(VLLM_PYTHON).is_file() and sys.executable != str(VLLM_PYTHON):
        os.execv(VLLM_PYTHON, [str(VLLM_PYTHON), *sys.argv])
    print("vLLM is not here, nothing to measure: make setup-engines, or set GDRO_VLLM_PYTHON")
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=400)
    parser.add_argument("--new-tokens", type=int, default=4)
    parser.add_argument("--block", type=int, default=32, help="tokens of a block of the cache")
    parser.add_argument(
        "--memory", type=float, default=0.1, help="part of the memory that vLLM takes"
    )
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    if not with_vllm():
        return
    print(
        f"{args.prompts} prompts of {args.prompt_tokens} tokens, {args.new_tokens} new "
        f"ones a rollout, blocks of {args.block}"
    )
    print(
        f"{'requests':12}{'cache':>7}{'seconds':>10}{'asked':>9}{'computed':>10}{'found':>8}{'time':>8}"
    )
    first = None

    def alone(task, *given):  # in a process of its own, whose end frees the memory
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            return pool.submit(task, *given).result()

    with tempfile.TemporaryDirectory() as folder:
        alone(save_model, folder)
        for caching in (True, False):
            for name, (seconds, asked, hits) in alone(measure, folder, args, caching).items():
                first = first or seconds
                print(
                    f"{name:12}{'on' if caching else 'off':>7}{seconds:10.2f}{asked:9}"
                    f"{asked - hits:10}{hits / asked:8.1%}{seconds / first:7.2f}×"
                )


if __name__ == "__main__":
    main()
