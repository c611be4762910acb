"""What a profile says under `task:`, for each kind of task."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from gdro_lab.tasks.answers import KeyReader, Reader
from gdro_lab.tasks.base import BoundedCount, BoundedNatural, Request, Strict
from gdro_lab.tasks.embedded import DEFAULT_SPEC, EmbeddedSpec
from gdro_lab.tasks.fields import ChoiceReader
from gdro_lab.tasks.math_data import Source, named_source
from gdro_lab.tasks.math_sets import MATH_SPECS, AnyReader, Schema
from gdro_lab.tasks.sources import find_place, stem_of


class EmbeddedChoice(Strict):
    """The embedded task; see gdro_lab.tasks.embedded."""

    kind: Literal["embedded"] = "embedded"
    """Which kind of task this is."""
    seed: BoundedNatural = 0
    """Seed of the draw."""
    n_train: BoundedCount = 1000
    """Training prompts."""
    n_eval_per_family: BoundedCount = 40
    """Held-out prompts of each family."""

    @model_validator(mode="after")
    def _is_there(self) -> Self:
        """Refuse more prompts than there are."""
        self.spec()
        return self

    def spec(self) -> EmbeddedSpec:
        """The task to draw."""
        sizes = {"n_train": self.n_train, "n_eval_per_family": self.n_eval_per_family}
        return EmbeddedSpec(DEFAULT_SPEC.families, **sizes)  # type: ignore


class GymChoice(Strict):
    """A world of reasoning-gym, its name or file; see gdro_lab.tasks.reasoning_gym."""

    kind: Literal["reasoning_gym"]
    """Which kind of task this is."""
    world: str = "gym-strings"
    """A name in gdro_lab/tasks/worlds, or a YAML file."""
    seed: BoundedNatural = 0
    """Seed of the draw."""


Column = str
"""The name of a column, or a path into nested ones such as `reward_model.ground_truth`."""


class Columns(Strict):
    """Which columns of a source are read."""

    problem: Column | Annotated[list[Column], Field(min_length=1)] = "question"
    """The problem's text, or a chat; several columns of texts are joined by a space."""
    answer: Column = "answer"
    """The answer key."""
    choices: Column | list[Column] | None = None
    """The column with all choices, or the columns of one choice each; the answer is then a letter.
    Where the answer's column is one of them, each problem shows them in an order of its own."""
    group: Column | None = None
    """The family of a problem, by which scores are split; without it, the source is one family."""
    solution: Column | None = None
    """A worked solution, which a cold start teaches; it may be empty."""

    def read_by(self, reader: AnyReader) -> Schema:
        """The schema of these columns, with the key read in this way."""
        problem = _names(self.problem)
        choices = () if self.choices is None else _names(self.choices)
        for name, columns in {"problem": problem, "choices": choices}.items():
            if len(set(columns)) < len(columns):
                raise ValueError(f"columns.{name} must have each once, got {list(columns)}")
        if self.answer in problem:
            raise ValueError(f"columns.problem must leave out the answer, got {list(problem)}")
        _check_reader(reader, bool(choices))
        return Schema(
            problem,
            self.answer,
            reader,
            group=self.group,
            solution=self.solution,
            choices=choices,
        )


def _check_reader(reader: AnyReader, has_choices: bool) -> None:
    readers = get_args(ChoiceReader if has_choices else KeyReader)
    if reader not in readers:
        which = "with" if has_choices else "without"
        raise ValueError(f"answer must be one of {readers} {which} columns.choices, got {reader!r}")


def _names(columns: Column | list[Column]) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)


class SourceChoice(Strict):
    """A source of problems with its own settings; a plain name sets only `source`."""

    source: str
    """A named set, a file (see `gdro_lab.tasks.sources.KINDS`), a folder, or a hub id."""
    name: str | None = None
    """What its rows are called; by default the set's name, or the last part of `source`."""
    config: str | None = None
    """The configuration of a data set of the hub."""
    split: str | None = None
    """The split of a data set of the hub or of a folder, "train" by default."""
    columns: Columns | None = None
    """Its columns, in place of task.columns or of the named set's own."""
    answer: AnyReader | None = None
    """How its keys are read, in place of task.answer or of the named set's own way."""

    @property
    def label(self) -> str:
        """What its rows are called."""
        if self.name or self.source in MATH_SPECS:
            return self.name or self.source
        return stem_of(Path(self.source))


class MathChoice(Strict):
    """Questions with answers that can be judged; docs/your-own-data.md explains each field."""

    kind: Literal["math"]
    """Which kind of task this is."""
    train: str | SourceChoice | list[str | SourceChoice] = "dapo"
    """A source of training problems, or a list of them."""
    evaluate: list[str | SourceChoice]
    """Sources that are evaluated; math500 unless given or `held_out` is."""
    paths: dict[str, str] = Field({})
    """Local copies of named sets, each in the hub's schema."""
    columns: Columns = Columns()
    """The columns of all sources that are not named sets and have none of their own."""
    answer: AnyReader = "whole"
    """How the answer column of these sources holds the key."""
    completion: Reader = "boxed"
    """How the answer is read from a completion."""
    request: Request | None = None
    """The prompt, with `{problem}` where the problem goes; by default it asks for the answer in
    the form that `completion` reads."""
    held_out: BoundedNatural = 0
    """Problems of each family of the training sources that are set aside and evaluated."""
    train_size: BoundedCount | None = None
    """Training problems to draw; None takes all."""
    seed: BoundedNatural = 0
    """Seed of the draw: which problems are held out and trained on."""
    signed: bool = True
    """Whether a wrong completion earns −1, and not 0."""
    max_prompt_tokens: BoundedCount = 1024
    """Longer prompts are left out."""
    max_completion_tokens: BoundedCount = 3072
    """A completion is cut after so many."""

    @model_validator(mode="before")
    @classmethod
    def _default_evaluation(cls, fields: Any) -> Any:
        """Evaluate math500 where nothing else is."""
        if isinstance(fields, dict) and "evaluate" not in fields:
            return {**fields, "evaluate": [] if fields.get("held_out") else ["math500"]}
        return fields

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        train = self.training_choices
        unknown = sorted(set(self.paths) - set(MATH_SPECS))
        if unknown:
            raise ValueError(f"task.paths must name {sorted(MATH_SPECS)}, got {unknown[0]!r}")
        if not self.evaluate and not self.held_out:
            raise ValueError("task.evaluate must name a source where task.held_out is 0, got []")
        evaluated = [*self.evaluated_choices, *(train if self.held_out else [])]
        for where, choices in (("trained on", train), ("evaluated", evaluated)):
            names = [choice.label for choice in choices]
            if len(set(names)) < len(names):
                raise ValueError(
                    f"sources that are {where} must differ in their names, got {names}: name them"
                )
        for choice in (*train, *self.evaluated_choices):
            self._schemas(choice)
        return self

    @property
    def training_choices(self) -> list[SourceChoice]:
        """The training sources, each with all of its fields."""
        return _spelled_out(self.train if isinstance(self.train, list) else [self.train])

    @property
    def evaluated_choices(self) -> list[SourceChoice]:
        """The evaluation sources, each with all of its fields."""
        return _spelled_out(self.evaluate)

    def find_sources(self, choices: list[SourceChoice]) -> list[Source]:
        """Where each of the sources is; ValueError for one that is not there."""
        return [self._find_source(choice) for choice in choices]

    def _schemas(self, choice: SourceChoice) -> tuple[Schema, ...]:
        """How a source is read; of several, by the first whose columns are there."""
        if choice.source not in MATH_SPECS:
            columns = choice.columns or self.columns
            return (columns.read_by(choice.answer or self.answer),)
        named = MATH_SPECS[choice.source].schemas
        reader = choice.answer or named[0].reader
        if choice.columns is not None:
            return (choice.columns.read_by(reader),)
        _check_reader(reader, bool(named[0].choices))
        if choice.answer is None:
            return named
        return tuple(dataclasses.replace(schema, reader=reader) for schema in named)

    def _find_source(self, choice: SourceChoice) -> Source:
        schemas = self._schemas(choice)
        where = {"config": choice.config, "split": choice.split}
        if choice.source not in MATH_SPECS:
            return Source(choice.label, find_place(choice.source, **where), schemas)
        source = named_source(choice.source, self.paths.get(choice.source), **where)
        return dataclasses.replace(source, name=choice.label, schemas=schemas)


def _spelled_out(choices: list[str | SourceChoice]) -> list[SourceChoice]:
    return [
        SourceChoice(source=choice) if isinstance(choice, str) else choice for choice in choices
    ]
