"""What a run in TRL needs first: packages and GPUs, the model to start from, tokenizer, data."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from packaging.version import Version

from gdro.checks import Refusal
from gdro.trl.unsloth import import_unsloth
from gdro_lab.experiments.blocks import BASE
from gdro_lab.experiments.profile import Profile
from gdro_lab.experiments.records import identity_of
from gdro_lab.failures import at_the_door
from gdro_lab.tasks import Split, draw_task, load_split
from gdro_lab.tasks.cache import find_made
from gdro_lab.tasks.cold_start import cold_start
from gdro_lab.tasks.pretrained import find_model, model_identity
from gdro_lab.tasks.solutions import load_solutions
from gdro_lab.tasks.tiny import SHIPPED, tiny_base
from gdro_lab.tasks.world import read_world

CACHE = ".cache/bases"


class Parts(NamedTuple):
    """The base, its tokenizer, and the data of a job."""

    source: str
    """The base, a folder or hub id."""
    tokenizer: Any
    data: Split
    start: str
    """What tells the base from another: equal on all machines for the same one."""


def check_installed(profile: Profile, variants: Sequence[str], *, evaluates: bool) -> None:
    """Refuse (Refusal) variants, and the evaluation, whose packages are not installed."""
    trainings = [profile.train_of(variant) for variant in variants]
    trains_with_vllm = any(train.use_vllm for train in trainings)
    is_used = {
        "unsloth": any(profile.model_of(name).is_unsloth for name in variants),
        "vllm": trains_with_vllm or (evaluates and profile.evaluation.engine == "vllm"),
        "liger_kernel": any((t.model_extra or {}).get("use_liger_kernel") for t in trainings),
        "math_verify": profile.task.kind == "math",
        "pebble": profile.task.kind == "math",
        "reasoning_gym": profile.task.kind == "reasoning_gym",
    }
    missing = [name for name, used in is_used.items() if used and find_spec(name) is None]
    if missing:
        raise Refusal(
            f"profile {profile.name!r} needs {', '.join(missing)}, not installed: "
            "see docs/install.md and, for GPUs, docs/gpu-box.md, 1"
        )
    is_old = Version(version("trl")) < Version("1.16")
    if is_old and profile.launch.shards and trains_with_vllm:
        raise Refusal(
            f"profile {profile.name!r} needs TRL 1.16 to bring sharded weights to vLLM, "
            f"got {version('trl')}"
        )


def make_base(profile: Profile, cache_dir: str | Path = CACHE, *, progress: bool = False) -> str:
    """The profile's model, a folder or hub id, made if the cache lacks it.

    Without model.source it is the tiny base; with cold_start, the source that was taught solutions.
    Where each seed draws its own, it is that of the first.
    """
    profile = profile.drawn(profile.seeds[0])
    if profile.model.source is not None:
        return _pretrained_base(profile, profile.model.source, cache_dir, progress)
    assert profile.task.kind != "math"  # its profiles name their model
    choice = profile.base.model_dump()
    if profile.task.kind == "reasoning_gym":
        choice |= read_world(profile.task.world).base.model_dump()
    return str(tiny_base(draw_task(profile.task), cache_dir=cache_dir, progress=progress, **choice))


def _pretrained_base(profile: Profile, source: str, cache_dir: str | Path, progress: bool) -> str:
    """The source itself as a folder or hub id, or the model that was taught solutions."""
    folder = find_model(source, cache_dir)
    if profile.cold_start is None:
        return folder
    assert profile.task.kind != "embedded"  # such profiles have no cold start
    choice = profile.cold_start
    template = profile.train.template
    solutions = load_solutions(
        profile.task, load_tokenizer(folder), choice.examples, choice.seed, template
    )
    taught = cold_start(
        source, solutions, choice, cache_dir=cache_dir, template=template, progress=progress
    )
    return str(taught)


def load_tokenizer(source: str) -> Any:
    """The tokenizer of a folder or hub id, which pads on the left; Refusal if it has none."""
    from transformers import AutoTokenizer

    with at_the_door(f"model.source {str(source)!r} cannot be loaded"):
        tokenizer = AutoTokenizer.from_pretrained(source, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token  # as TRL does
    return tokenizer


def make_parts(
    profile: Profile,
    variant: str,
    cache_dir: str | Path,
    *,
    held_out: bool = False,
    start: str | None = None,
) -> Parts:
    """The model to start from, which is made if the cache lacks it, with tokenizer and data.

    start: the name of the base that a training began with. Where the cache still has it, it is
        taken; with other versions of the packages, another base would be made.
    """
    choice = profile.model_of(variant)
    # Unsloth patches transformers and TRL, so it comes first. Evaluation uses plain transformers.
    if choice.is_unsloth and not held_out:
        import_unsloth(choice.standby)
    from transformers.utils import logging

    logging.disable_progress_bar()
    # a variant may train another model than the profile's other ones
    kept = None
    if choice.source is None and start is not None:
        kept = find_made(Path(cache_dir) / start, SHIPPED / start)
    source = str(kept or make_base(profile.model_copy(update={"model": choice}), cache_dir))
    tokenizer = load_tokenizer(source)
    template = profile.train_of(variant).template
    data = load_split(profile.task, tokenizer, held_out=held_out, template=template)
    _check_groups(profile, variant, data.rows)
    return Parts(source, tokenizer, data, _identity_of_base(profile, choice.source, source))


def _identity_of_base(profile: Profile, named: str | None, folder: str) -> str:
    """A base that we have made is known by its folder, named after a hash of all it is made of."""
    if named is None or profile.cold_start is not None:
        return Path(folder).name
    return identity_of(model_identity(named))


def _check_groups(profile: Profile, variant: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Refuse (Refusal) a variant whose groups the data do not have."""
    column = None if variant == BASE else profile.variant(variant).groups
    if column is not None and column not in rows[0]:
        raise Refusal(
            f"groups of variant {variant!r} must be among {sorted(rows[0])}, got {column!r}"
        )
