"""A tiny chat model and 32 prompts for verl: python make_run.py FOLDER."""

import sys
from pathlib import Path

import pandas as pd
from tiny_models import byte_tokenizer, save_tiny_model

TURNS = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_run(folder):
    tokenizer = byte_tokenizer(TURNS)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.eos_token = "<|im_end|>"  # verl ends turns there
    save_tiny_model("Qwen3", folder / "model", tokenizer)
    rows = [row(number) for number in range(32)]
    pd.DataFrame(rows).to_parquet(folder / "train.parquet")
    pd.DataFrame(rows[:4]).to_parquet(folder / "held_out.parquet")


def row(number):
    return {
        "data_source": "sums",
        "prompt": [{"role": "user", "content": f"{number} + {number % 5}?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(number + number % 5)},
        "pass_rate": [0.5, 0.0, None][number % 3],
        "extra_info": {"split": "train"},
    }


if __name__ == "__main__":
    make_run(Path(sys.argv[1]))
