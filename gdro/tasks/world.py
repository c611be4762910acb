"""Worlds: a YAML file describes a task and how its tiny base is made. Those in `WORLDS` are shipped."""

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from gdro.core.checks import check_choice
from gdro.tasks.chain import ChainSpec
from gdro.tasks.reasoning_gym import GymSpec
from gdro.tasks.settings import Count, Name, Positive, Strict, find_yaml, read_yaml, refusal

WORLDS = Path(__file__).parent / "worlds"
SPECS = {"chain": ChainSpec, "reasoning_gym": GymSpec}


class BaseSettings(Strict):
    """Arguments of `tiny_base`; learning_rate is the peak of the schedule, None for the size's own."""

    size: Literal["tiny", "small", "mid"] = "tiny"
    steps: Count = 800
    batch: Count = 96
    learning_rate: Positive | None = None

    def options(self) -> dict[str, Any]:
        """As arguments of `tiny_base`."""
        options = self.model_dump()
        return options | {"batch_size": options.pop("batch")}


class TaskWorld(Strict):
    """A task that can be drawn (``world.spec.draw(seed)``), and its base."""

    name: Name
    spec: ChainSpec | GymSpec
    base: BaseSettings = BaseSettings()


def read_world(name: str | Path) -> TaskWorld:
    """A shipped world, or that of a YAML file; ValueError if there is none, or for anything wrong in it.

    The file has the fields `name` (if left out, the file's), `task` (of `SPECS`; if left out, chain), `base`
    and those of the task's specification.
    """
    path = find_yaml("world", name, WORLDS)
    fields = {"name": path.stem, "task": "chain"} | read_yaml(path)
    check_choice(f"task of {path}", fields["task"], tuple(SPECS))
    spec_type = SPECS[fields.pop("task")]
    own = {key: fields.pop(key) for key in ("name", "base") if key in fields}
    try:
        spec: ChainSpec | GymSpec = TypeAdapter(spec_type).validate_json(json.dumps(fields))
        return TaskWorld.model_validate(own | {"spec": spec})
    except ValidationError as error:
        raise refusal(path, error) from error
