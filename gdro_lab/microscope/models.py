"""What a pool is made of: a world's prompts and a base, tiny or pretrained."""

from pathlib import Path
from typing import Any, NamedTuple

from gdro.files import files_in
from gdro.trl.models import load_model, stop_tokens
from gdro_lab.experiments.play import CACHE
from gdro_lab.experiments.records import identity_of
from gdro_lab.loop import Reward, Rows
from gdro_lab.tasks.answers import style_of
from gdro_lab.tasks.pretrained import find_model, model_identity
from gdro_lab.tasks.tiny import tiny_base
from gdro_lab.tasks.world import Task, read_world


class Population(NamedTuple):
    """What `make_pool` samples."""

    model: Any
    tokenizer: Any
    rows: Rows
    """All training prompts."""
    reward: Reward
    max_new_tokens: int
    ends: list[int]
    """Tokens that end a completion."""
    made: dict[str, Any]
    """What a pool records of them."""


def load_base(folder: str | Path, adapter: str | Path | None = None) -> tuple[Any, Any, list[int]]:
    """A model in float32 with an adapter merged into it, its tokenizer, tokens that end a text."""
    loaded = load_model(folder, seed=0, attn_implementation="sdpa")
    model = loaded.model
    if adapter is not None:
        import peft

        model = peft.PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
    ends = stop_tokens(loaded.tokenizer, model.generation_config.eos_token_id)
    return model.eval(), loaded.tokenizer, ends


def open_world(
    world: str,
    *,
    seed: int,
    base: str | None = None,
    adapter: str | Path | None = None,
    cache_dir: str | Path = CACHE,
) -> Population:
    """A world's training prompts, and the model that is sampled on them.

    Args:
        world: a name in gdro_lab/tasks/worlds, or a YAML file.
        seed: of the draw of the task, and of its tiny base.
        base: a folder, hub id or package of a pretrained model; None for the world's tiny base,
            which is trained if the cache lacks it.
        adapter: folder of a LoRA adapter of that model, such as those of data/bases.
        cache_dir: where models are kept.
    """
    described = read_world(world)
    made: dict[str, Any] = {"world": described.name, "world_seed": seed}
    # the specification also says how a completion is read, which no row does
    made["spec"] = identity_of(described.model_dump(mode="json", include={"spec"}))
    if base is None:
        task: Task = described.spec.draw(seed)
        choice = described.base.model_dump()
        folder = str(tiny_base(task, seed=seed, cache_dir=cache_dir, **choice))
        model, tokenizer, ends = load_base(folder)
        made |= {"base": f"tiny base of {described.name}, {seed}", "model": Path(folder).name}
    else:
        model, tokenizer, ends = load_base(find_model(base, cache_dir), adapter)
        # only original questions have a style
        style = () if described.has_tiny_base else (style_of(tokenizer),)
        task = described.spec.draw(seed, *style)
        weights = None if adapter is None else files_in(Path(adapter))
        made |= {"base": base, "adapter": adapter and Path(adapter).name}
        made |= {"model": identity_of(model_identity(base), weights)}
    return Population(
        model, tokenizer, task.train, task.reward, task.max_completion_tokens, ends, made
    )
