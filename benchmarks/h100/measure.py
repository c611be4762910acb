"""Seconds and memory of a batch of a GPU profile, with a model of random weights: no download.

python benchmarks/h100/measure.py gpu-1.7b-day grpo 64 800 prints them for the profile's variant
with 64 prompts a batch and completions of 800 tokens. The model has the shape of Qwen3-1.7B; it
hardly ever ends a completion. Rewards are drawn, 1 with probability 0.4.
"""

import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from gdro_lab.experiments.play import load_tokenizer
from gdro_lab.experiments.profile import load_profile
from gdro_lab.experiments.run import Parts
from gdro_lab.experiments.training import Training
from gdro_lab.tasks.base import Split

SHAPE = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
}
PROMPT_TOKENS = 200
START = time.time()


def make_model(folder: Path) -> None:
    """A model of random weights; its tokenizer makes a token of each letter."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: i for i, letter in enumerate(letters)}
    vocab |= {f"<w{i}>": i for i in range(len(vocab), 151643)}
    bytes_alone = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    bytes_alone.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_alone.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bytes_alone, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.save_pretrained(folder)
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        config = transformers.Qwen3Config(**SHAPE, **ends)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)


def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which then prints its seconds and the GPU's memory."""

    def call(*args: Any, **given: Any) -> Any:
        start = time.time()
        value = function(*args, **given)
        memory = ""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            free, total = torch.cuda.mem_get_info()
            peak = torch.cuda.max_memory_reserved()
            memory = f", {(total - free) / 2**30:.1f} GiB in use, {peak / 2**30:.1f} at most"
        print(f"{name}: {time.time() - start:.2f} s{memory}", flush=True)
        return value

    return call


def main(name: str, variant: str, prompts: int, tokens: int, changes: str = "{}") -> None:
    folder = Path(mkdtemp())
    make_model(folder / "model")
    train = {"prompts_per_step": prompts} | json.loads(changes)
    fields = {"like": name, "model": {"source": str(folder / "model")}, "train": train}
    (folder / "profile.yaml").write_text(json.dumps(fields))
    rng = random.Random(0)
    texts = ["".join(rng.choices("abcdefghij klmno", k=PROMPT_TOKENS)) for _ in range(1024)]
    rows = [{"prompt": text, "uid": str(i)} for i, text in enumerate(texts)]

    def reward(completions: list[Any], **columns: Any) -> list[float]:
        return [float(rng.random() < 0.4) for _ in completions]

    tokenizer = load_tokenizer(str(folder / "model"))
    split = Split(rows, reward, PROMPT_TOKENS + 8, tokens)
    parts = Parts(str(folder / "model"), tokenizer, split, "random")
    chosen = load_profile(folder / "profile.yaml").run(variant, 0)
    run = Training(chosen, parts, folder / "run", ".cache/bases")
    make = run.make_trainer

    def make_trainer(*args: Any, **given: Any) -> Any:
        trainer = make(*args, **given)
        print(f"made after {time.time() - START:.0f} s", flush=True)
        for part in ("_generate_single_turn", "_generate_and_score_completions", "training_step"):
            setattr(trainer, part, timed(part, getattr(trainer, part)))
        return trainer

    run.make_trainer = make_trainer
    run.try_steps(1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
