"""What guessing from the training answers would reach, beside the base, family by family.

    python data/studies/steps/guess.py steps 100 [--cache-dir .cache/bases]

A guess is an answer drawn from those of the family's training questions. Greedy decoding says how
much of what the base knows it does not say at temperature 1.
"""

from collections import Counter

from gdro_lab import numerics

numerics.fix()  # before torch and numpy are imported, so that it finds the bases of `gdro run`

import click
import numpy as np
import pandas as pd
import torch
import transformers

from gdro.metrics import pass_at_k
from gdro_lab import loop
from gdro_lab.experiments.loop_runs import draw_base
from gdro_lab.qwen3 import forward
from gdro_lab.tasks.steps import last_number
from gdro_lab.tasks.world import read_world

SAMPLES = 32
K = 8


def guess_rates(task):
    """Of each held-out prompt, the share of its family's training answers that are its own."""
    answers = Counter((row["family"], last_number(row["answer"])) for row in task.train)
    sizes = Counter(row["family"] for row in task.train)
    return np.array(
        [
            answers[row["family"], last_number(row["answer"])] / sizes[row["family"]]
            for row in task.eval
        ]
    )


def greedy(task, model, tokenizer):
    """Whether the likeliest tokens of each held-out prompt answer it."""
    prompt_PT = loop.prompt_ids(model, tokenizer, task.eval)
    text_PT = prompt_PT
    with torch.no_grad():
        for _ in range(task.max_completion_tokens):
            token_P = forward(model, text_PT)[:, -1].argmax(dim=-1)
            text_PT = torch.cat([text_PT, token_P[:, None]], dim=1)
    completion_PT = text_PT[:, prompt_PT.shape[1] :]
    mask_PT = loop.completion_mask(completion_PT, model.config.eos_token_id)
    pairs = zip(completion_PT, mask_PT, strict=True)
    texts = [tokenizer.decode(text[mask], skip_special_tokens=True) for text, mask in pairs]
    return task.reward(texts, [row["answer"] for row in task.eval])


@click.command()
@click.argument("world")
@click.argument("seed", type=int)
@click.option("--cache-dir", default=".cache/bases")
def main(world, seed, cache_dir):
    torch.set_num_threads(1)
    task, folder = draw_base(read_world(world), seed, cache_dir)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    counts = loop.evaluate(
        model, tokenizer, task.eval, task.reward, SAMPLES, task.max_completion_tokens, 0
    )
    guess_P = guess_rates(task)
    trials_P = np.full(len(task.eval), SAMPLES)
    prompts = pd.DataFrame(
        {
            "base mean@8": counts.successes_P / SAMPLES,
            "guess mean@8": guess_P,
            "base pass@8": pass_at_k(counts.successes_P, trials_P, K),
            "guess pass@8": 1 - (1 - guess_P) ** K,
            "base greedy": greedy(task, model, tokenizer),
        }
    )
    families = prompts.groupby([row["family"] for row in task.eval], sort=False).mean()
    families.loc["all"] = families.mean()
    print(families.round(3).to_markdown())


if __name__ == "__main__":
    main()
