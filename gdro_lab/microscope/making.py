"""Makes pools: samples rollouts at temperature 1 and sketches the gradients of their texts.

Axes: P prompts, K rollouts of a prompt, R rollouts that have not ended, N distinct texts or
prefixes, T tokens, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from tqdm.auto import tqdm

from gdro.checks import Count, Int, Natural, check, options
from gdro_lab.experiments.records import identity_of
from gdro_lab.loop import Reward, Rows, call_reward
from gdro_lab.microscope.pool import Pool
from gdro_lab.microscope.sketch import Model, Sketcher
from gdro_lab.models import load_model, stop_tokens
from gdro_lab.sampling import sample_by_prefix
from gdro_lab.tasks import prompt_token_ids
from gdro_lab.tasks.base import split_by_share


def choose_prompts(rows: Rows, count: int, seed: int) -> list[Mapping[str, Any]]:
    """Draw prompts of a data set, of each family in proportion to its rows.

    Args:
        rows: the training prompts, with the columns prompt, uid and family.
        count: how many.
        seed: of the draw.
    """
    check("prompts", count, int, ge=1, le=len(rows))
    rng = np.random.default_rng(seed)
    names = np.array([row["family"] for row in rows])
    families, sizes = np.unique(names, return_counts=True)
    counts = split_by_share((sizes / sizes.sum()).tolist(), count)
    chosen = [
        rng.permutation(np.flatnonzero(names == family))[:size]
        for family, size in zip(families, counts, strict=True)
    ]
    # families come mixed, so that the first prompts of a pool are a small pool
    return [rows[place] for place in rng.permutation(np.concatenate(chosen))]


@options
class PoolChoice:
    """What is sampled of each prompt, and how gradients are sketched."""

    rollouts: Annotated[Int, Field(ge=2)]
    """K of each prompt."""
    max_new_tokens: Count
    """Of a completion, at most."""
    ends: Sequence[int]
    """Tokens that end one."""
    seed: Natural = 0
    """Of samples and signs."""
    width: Count = 64
    """A sketch has width² numbers."""
    flat: bool = False
    """Also compute gradients of prompts whose rewards are all equal, which methods need that teach
    without a baseline."""


def load_base(folder: str | Path) -> tuple[Model, Any, list[int]]:
    """A model in float32, its tokenizer, and the tokens that end a text."""
    loaded = load_model(str(folder), seed=0, attn_implementation="sdpa")
    ends = stop_tokens(loaded.tokenizer, loaded.model.generation_config.eos_token_id)
    return loaded.model.eval(), loaded.tokenizer, ends


def make_pool(
    model: Model,
    tokenizer: Any,
    rows: Rows,
    reward: Reward,
    choice: PoolChoice,
    *,
    made: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Pool:
    """Make a pool.

    Args:
        model, tokenizer: a causal model in float32. It is frozen, and gets hooks.
        rows: the prompts, with the columns prompt, uid, family and those that the reward asks for.
        reward: as TRL takes it; a rollout is correct if its reward is above 0.
        choice: what is sampled.
        made: what is recorded of model and world.
        progress: whether a bar is printed.
    """
    sketcher = Sketcher(model, choice.width, choice.seed)
    prompts = prompt_token_ids(tokenizer, [row["prompt"] for row in rows])
    found = []
    for place, row in enumerate(tqdm(rows, unit="prompt", disable=not progress)):
        prompt_T = torch.tensor(prompts[place], device=model.device)
        # each prompt has a seed: a pool of the first ones has the same samples
        own_seed = int(np.random.SeedSequence([choice.seed, place]).generate_state(1)[0])
        generator = torch.Generator(model.device).manual_seed(own_seed)
        text_KT, length_K = sample_rollouts(model, prompt_T, choice, generator)
        kept = zip(text_KT, length_K, strict=True)
        texts = tokenizer.batch_decode([text[:n] for text, n in kept], skip_special_tokens=True)
        correct_K = call_reward([row] * choice.rollouts, texts, reward) > 0
        found.append(_sketched(sketcher, prompt_T, text_KT, length_K, correct_K, choice.flat))
    settings = {
        **(made or {}),
        **vars(choice),
        "rows": identity_of(rows),
        "torch": torch.__version__,
    }
    return _assemble(found, rows, settings)


def _sketched(
    sketcher: Sketcher,
    prompt_T: Tensor,
    text_KT: Tensor,
    length_K: Tensor,
    correct_K: np.ndarray,
    flat: bool,
) -> dict[str, Any]:
    """What is kept of a prompt: its distinct texts' sketches, and which rollout has which."""
    kept: dict[str, Any] = {
        "rewards": correct_K.astype(np.float32),
        "lengths_K": length_K.numpy(force=True),
    }
    if correct_K.min() == correct_K.max() and not flat:
        nothing = np.zeros((0, sketcher.width**2), np.float32)
        return kept | {"texts": np.full(len(correct_K), -1), "sketch": nothing}
    text_NT, texts_K = text_KT.unique(dim=0, return_inverse=True)
    length_N = length_K.new_empty(len(text_NT))
    length_N[texts_K] = length_K
    sketch_NS = sketcher(prompt_T, text_NT, length_N)
    return kept | {"texts": texts_K.numpy(force=True), "sketch": sketch_NS.numpy(force=True)}


def _assemble(found: Sequence[Mapping[str, Any]], rows: Rows, settings: dict[str, Any]) -> Pool:
    """The pool of what was kept of each prompt."""
    starts = np.cumsum([0, *(len(part["sketch"]) for part in found)])
    texts = [
        np.where(part["texts"] < 0, -1, part["texts"] + start)
        for part, start in zip(found, starts[:-1], strict=True)
    ]
    return Pool(
        uids_P=np.array([str(row["uid"]) for row in rows]),
        families_P=np.array([str(row["family"]) for row in rows]),
        rewards_PK=np.stack([part["rewards"] for part in found]),
        texts_PK=np.stack(texts).astype(np.int32),
        sketch_NS=np.concatenate([part["sketch"] for part in found]),
        mean_length_P=np.array([part["lengths_K"].mean() for part in found]),
        made=settings,
    )


@torch.no_grad()
def sample_rollouts(
    model: Model, prompt_T: Tensor, choice: PoolChoice, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Sample completions of one prompt at temperature 1.

    Args:
        model, prompt_T, choice: as for `make_pool`.
        generator: on the model's device.

    Returns:
        Tokens, (K, T), −1 behind the end, and the tokens of each completion, (K,).
    """
    cache: Any = None
    rows = 1  # of the cache

    def step(ids_NT: Tensor, parent_N: Tensor | None) -> Tensor:
        nonlocal cache, rows
        # copies, so only where rows part or end
        if parent_N is not None and parent_N.tolist() != list(range(rows)):
            cache.batch_select_indices(parent_N)
        rows = len(ids_NT)
        output = model.model(ids_NT, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        return model.lm_head(output.last_hidden_state[:, -1])

    def draw(p_RV: Tensor) -> Tensor:
        sums_RV = p_RV.cumsum(dim=-1)
        # one uniform number each
        drawn_R = torch.rand(len(p_RV), 1, generator=generator, device=model.device)
        token_R = torch.searchsorted(sums_RV, drawn_R * sums_RV[:, -1:], right=True)[:, 0]
        return token_R.clamp(max=sums_RV.shape[1] - 1)  # rounding may step over the last

    ends = torch.tensor(list(choice.ends), device=model.device)
    text_KT = prompt_T.new_full((choice.rollouts, choice.max_new_tokens), -1)
    row_K = torch.zeros(choice.rollouts, dtype=torch.long, device=model.device)
    sample_by_prefix(step, draw, prompt_T[None], row_K, text_KT, ends)
    return text_KT, (text_KT >= 0).sum(dim=1)
