"""Worlds: a YAML file describes a task and how its tiny base is made. `WORLDS` holds ours."""

import json
import reprlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError, model_validator
from ruamel.yaml import YAML

from gdro.checks import Positive, Refusal
from gdro_lab.failures import at_the_door
from gdro_lab.tasks.base import BaseSize, BoundedCount, BoundedNatural, Name, Strict
from gdro_lab.tasks.embedded import EmbeddedSpec, EmbeddedTask
from gdro_lab.tasks.reasoning_gym import GymSpec, GymTask
from gdro_lab.tasks.steps import StepsSpec, StepsTask

WORLDS = Path(__file__).parent / "worlds"
Task = EmbeddedTask | GymTask | StepsTask
"""A drawn task: its prompts, the lessons of a base, and the reward of completions.

Training prompts, held-out prompts and lessons do not overlap, except that lessons of the embedded
task may repeat training prompts. Where a tiny base can be taught, all prompts have equally many
characters. Original questions of reasoning-gym differ in length and have no lessons.
"""
SPECS = {"embedded": EmbeddedSpec, "reasoning_gym": GymSpec, "steps": StepsSpec}


class BaseSettings(Strict):
    """How a tiny base is made: arguments of `tiny_base`."""

    size: BaseSize = "tiny"
    """Size of the model: `TINY_CONFIGS` in `gdro_lab.tasks.tiny` has its width and depth."""
    steps: BoundedCount = 800
    """Optimizer steps on lessons."""
    batch_size: BoundedCount = 96
    """Lessons of a step."""
    learning_rate: Positive | None = None
    """The peak of its schedule; None for the size's own."""
    trunk: BoundedNatural = 0
    """Steps before these on lessons without slips, which all replicates share."""


class TaskWorld(Strict):
    """A task that can be drawn, and its base."""

    name: Name
    """What tables and folders call it."""
    spec: EmbeddedSpec | GymSpec | StepsSpec
    """What tasks of this world have in common; `spec.draw(seed)` draws one."""
    base: BaseSettings = BaseSettings()
    """How the model to start from is made."""

    @model_validator(mode="after")
    def _has_a_trunk(self) -> Self:
        if self.base.trunk and not isinstance(self.spec, StepsSpec):
            raise ValueError(f"trunk must be 0 unless the task is steps, got {self.base.trunk}")
        return self

    @property
    def has_tiny_base(self) -> bool:
        """Whether a tiny base can be taught; for original questions none can."""
        return not isinstance(self.spec, GymSpec) or self.spec.prompt_length is not None


def read_world(name: str | Path) -> TaskWorld:
    """A world of ours, or that of a YAML file; ValueError for anything wrong in it.

    The file has the fields `name` (if left out, the file's), `task` (of `SPECS`; if left out,
    embedded), `base`, and those of the task's specification; `like: other` takes what it does not
    say from another world.
    """
    path, fields = read_layers("world", name, WORLDS)
    fields = {"name": path.stem, "task": "embedded"} | fields
    kind = fields.pop("task")
    if kind not in list(SPECS):  # a list, since YAML may give what has no hash
        raise Refusal(f"task of {path} must be one of {list(SPECS)}, got {kind!r}")
    world = {key: fields.pop(key) for key in ("name", "base") if key in fields}
    try:
        # as JSON, the only form in which strict pydantic takes a list for a tuple
        spec: EmbeddedSpec | GymSpec | StepsSpec = TypeAdapter(SPECS[kind]).validate_json(
            json.dumps(fields)
        )
        return TaskWorld.model_validate(world | {"spec": spec})
    except ValidationError as error:
        raise refusal(path, error) from error


def read_layers(
    what: str,
    name: str | Path,
    folder: Path,
    merge: Callable[[str, Any, Any], Any] = lambda name, before, changes: before | changes,
) -> tuple[Path, dict[str, Any]]:
    """The path of a YAML file, and its fields laid over those of the file that it is `like`.

    A block, which has fields itself, is laid over the other's by `merge`; all else replaces it.
    """
    path = find_yaml(what, name, folder)
    fields = read_yaml(path)
    other = fields.pop("like", None)
    if other is None:
        return path, fields
    _, merged = read_layers(what, str(other), folder, merge)
    merged.pop("name", None)  # runs of two profiles must not share a folder
    for key, changes in fields.items():
        before = merged.get(key)
        are_blocks = isinstance(before, dict) and isinstance(changes, dict)
        merged[key] = merge(key, before, changes) if are_blocks else changes
    return path, merged


def find_yaml(what: str, name: str | Path, folder: Path) -> Path:
    """The file <name>.yaml of a folder, or the YAML file at a path; ValueError if there is none."""
    path = Path(name) if Path(name).suffix in (".yaml", ".yml") else folder / f"{name}.yaml"
    if not path.is_file():
        known = sorted(file.stem for file in folder.glob("*.yaml"))
        raise Refusal(f"{what} must be one of {known} or a YAML file, got {str(name)!r}")
    return path


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The fields of a YAML 1.2 file; ValueError if it is broken or repeats a key."""
    with at_the_door(f"{path} cannot be read"):
        fields = YAML(typ="safe", pure=True).load(Path(path).read_text(encoding="utf-8"))
    if not isinstance(fields, dict):
        raise Refusal(f"{path} must hold fields such as `seeds: [0]`, got {reprlib.repr(fields)}")
    return fields


def refusal(path: str | Path, error: ValidationError) -> Refusal:
    """What is wrong in a file, field by field, with the values given."""
    faults = []
    for fault in error.errors():
        ours = fault["type"] in ("value_error", "missing")  # such a message has the value itself
        got = "" if ours else f", got {reprlib.repr(fault['input'])}"
        message = fault["msg"].removeprefix("Value error, ") + got
        faults.append(": ".join(filter(None, [".".join(map(str, fault["loc"])), message])))
    return Refusal(f"{path}: {'; '.join(faults)}")
