"""Reading YAML files; `Strict`, the base class of their contents; the fields of a profile's task."""

import reprlib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ruamel.yaml import YAML, YAMLError

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$")]  # becomes a folder, reaches a shell
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1, le=10**9)]
NotNegative = Annotated[int, Field(ge=0, le=10**9)]
MathName = Literal["dapo", "math500", "aime2024", "aime2025", "amc", "minerva", "olympiad", "gpqa"]


class Strict(BaseModel):
    """Refuses unknown fields, other types and non-finite numbers; cannot be changed once made."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ChainChoice(Strict):
    """The embedded task; see gdro.tasks.chain."""

    kind: Literal["chain"] = "chain"
    seed: NotNegative = 0
    n_train: Count = 1000
    n_eval_per_family: Count = 40


class GymChoice(Strict):
    """A world of reasoning-gym, its name or file; see gdro.tasks.reasoning_gym."""

    kind: Literal["reasoning_gym"]
    world: str = "gym-strings"
    seed: NotNegative = 0


class MathChoice(Strict):
    """Math data sets; see gdro.tasks.math.data.

    paths: local copies, in the hub's schema. signed: a wrong completion earns −1 in training.
    """

    kind: Literal["math"]
    train: MathName = "dapo"
    evaluate: list[MathName] = Field(["math500"], min_length=1)
    paths: dict[MathName, str] = {}
    signed: bool = True
    max_prompt_tokens: Count = 1024
    max_completion_tokens: Count = 3072


def find_yaml(what: str, name: str | Path, folder: Path) -> Path:
    """The file <name>.yaml of a folder, or the YAML file at a path; ValueError if there is none."""
    path = Path(name) if Path(name).suffix in (".yaml", ".yml") else folder / f"{name}.yaml"
    if not path.is_file():
        known = sorted(file.stem for file in folder.glob("*.yaml"))
        raise ValueError(f"{what} must be one of {known} or a YAML file, got {str(name)!r}; correct it")
    return path


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Return the fields of a YAML 1.2 file; ValueError if it is broken, repeats a key or holds no fields."""
    try:
        fields = YAML(typ="safe", pure=True).load(Path(path).read_text(encoding="utf-8"))
    except (YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}; correct the file") from error
    if not isinstance(fields, dict):
        raise ValueError(
            f"{path} must hold fields, got {type(fields).__name__}; write for example `seeds: [0]`"
        )
    return fields


def refusal(path: Path, error: ValidationError) -> ValueError:
    """What is wrong in a file, field by field, with the values given."""
    faults = []
    for fault in error.errors():
        ours = fault["type"] in ("value_error", "missing")  # a message of ours names the value itself
        got = "" if ours else f", got {reprlib.repr(fault['input'])}"
        message = fault["msg"].removeprefix("Value error, ")
        faults.append(
            ": ".join([*([".".join(map(str, fault["loc"]))] if fault["loc"] else []), message + got])
        )
    return ValueError(f"{path}: {'; '.join(faults)}; correct the file")
