"""What a profile may say about its task; `Strict` is the base of everything read from a YAML file."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
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


class MathChoice(Strict):
    """Math data sets; see gdro.tasks.math.

    paths: local copies, in the hub's schema. signed: a wrong completion earns −1 in training.
    """

    kind: Literal["math"]
    train: MathName = "dapo"
    evaluate: list[MathName] = Field(["math500"], min_length=1)
    paths: dict[MathName, str] = {}
    signed: bool = True
    max_prompt_tokens: Count = 1024
    max_completion_tokens: Count = 3072
