"""A tiny model of four skills for notebooks 00, 02 and 05: rollout groups, log-probabilities.

Axes: P prompts, R rollouts, T tokens.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from gdro_lab import loop
from gdro_lab.tasks import embedded
from gdro_lab.tasks.tiny import tiny_base

SKILLS = (("star", "*", 0.97), ("plus", "+", 0.85), ("hash", "#", 0.6), ("amp", "&", 0.35))
# sixteen facts a skill, so that a base is made in seconds
SPEC = embedded.EmbeddedSpec(
    families=tuple(
        embedded.EmbeddedFamily(name, sign, 4, share=0.25, teacher_accuracy=a)
        for name, sign, a in SKILLS
    ),
    n_train=64,
    n_eval_per_family=16,
)


class Tiny(NamedTuple):
    """A base model of the small task, its tokenizer, and rows of the training split."""

    model: Any
    tokenizer: Any
    rows: list[dict]


def load_tiny(
    steps: int, batch_size: int, per_family: int, cache_dir: str = ".cache/bases"
) -> Tiny:
    """A base trained for so many steps, or found in the cache, and `per_family` prompts a skill."""
    task: Any = SPEC.draw(0)
    folder = tiny_base(
        task, seed=0, cache_dir=cache_dir, steps=steps, batch_size=batch_size, progress=False
    )
    by_skill = ([row for row in task.train if row["family"] == name] for name, *_ in SKILLS)
    rows = [row for skill in by_skill for row in skill[:per_family]]
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    return Tiny(model, AutoTokenizer.from_pretrained(folder), rows)


def sample_groups(
    tiny: Tiny, rows: list[dict], size: int, seed: int
) -> tuple[Tensor, int, np.ndarray]:
    """`size` completions of each prompt: texts (R, T), where they start, rewards (P, size)."""
    prompt_RT = loop.prompt_ids(tiny.model, tiny.tokenizer, rows).repeat_interleave(size, dim=0)
    generator = torch.Generator().manual_seed(seed)
    said_RT = loop.sample(tiny.model, prompt_RT, SPEC.max_completion_tokens, generator)
    rows_R = [row for row in rows for _ in range(size)]
    rewards_R = loop.rewards_of(tiny.tokenizer, rows_R, said_RT, embedded.reward)
    return torch.cat([prompt_RT, said_RT], dim=1), prompt_RT.shape[1], rewards_R.reshape(-1, size)


def token_logps(model: Any, text_RT: Tensor, start: int) -> Tensor:
    """Log-probability of every token from `start` on, (R, T); NaN after a text has ended."""
    logps_RT, mask_RT = loop.completion_logps(model, text_RT, start)
    return logps_RT.masked_fill(~mask_RT, torch.nan)
