"""Tasks of the reasoning-gym package: generators of puzzles with their answers, made by others.

A family is a task with a configuration and, for small models, a short prompt made of the puzzle's
metadata. Without one the original question is asked, and the answer is read from the last
`<answer>…</answer>`, as the package's system prompt requests, or as the world says. Only tasks
of `JUDGES` are allowed: those that are the same in every process and whose answers can be compared
here. The package's own verifiers are never called, since some execute the answer as Python.

A generator does not draw all puzzles equally often, and the first distinct ones are the frequent
ones: gcd's have answers above 1, and at the end only 1 is left. So the distinct puzzles of a
short prompt are shuffled before they are split into held-out ones, training and lessons, which then
have the same distribution of answers. No family takes more than half of its puzzles; what is left
is taught. Original questions are split in the order of their generator, since nearly all of their
families have far more puzzles than are drawn.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import itertools
import json
import logging
import operator
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from gdro_lab.models import Tokenizer
from gdro_lab.tasks.answers import (
    Reader,
    Style,
    ask,
    completion_text,
    read_answer,
    request_for,
    with_answer,
)
from gdro_lab.tasks.base import (
    BoundedCount,
    Name,
    Request,
    Strict,
    TaskRow,
    character_tokenizer,
    check_families,
    split_by_share,
)
from gdro_lab.tasks.numerals import plain_number

logger = logging.getLogger(__name__)
CHARACTERS = string.digits + string.ascii_letters + string.punctuation + " \n"
LESSONS = 4_000  # puzzles of a family that a base is taught, at most
TRIES = 8  # puzzles generated for each that is wanted, as they repeat
# neighbouring seeds would overlap: puzzle i of seed s is puzzle i - 1 of seed s + 1
SEED_SPACING = 1_000_000
WORKED_TEXT = "answer_cot"  # of the metadata, where a task has it


class FamilyRows(NamedTuple):
    """The puzzles of a family, which do not overlap."""

    held_out: list[TaskRow]
    train: list[TaskRow]
    lessons: list[TaskRow]
    """Short prompts that a base is taught."""


def is_palindrome_of(given: str, answer: str) -> bool:
    """Whether the text is a palindrome of the same letters, of which there can be several."""
    return given == given[::-1] and sorted(given) == sorted(answer)


_ONE_ANSWER = (
    "base_conversion caesar_cipher chain_sum gcd gsm_symbolic lcm leg_counting letter_counting "
    "products rotate_matrix simple_equations spell_backward spiral_matrix string_insertion"
)
JUDGES: dict[str, Callable[[str, str], bool]] = dict.fromkeys(_ONE_ANSWER.split(), operator.eq)
JUDGES["palindrome_generation"] = is_palindrome_of


@dataclass(config=Strict.model_config)
class GymFamily:
    """One group of prompts: a task of reasoning-gym at one level."""

    name: Name
    """What tables call the group."""
    task: str
    """A task of reasoning-gym, one of `JUDGES`."""
    config: dict[str, Any] = Field({})
    """Options of the task, without size and seed."""
    prompt: str | None = None
    """A format string over the puzzle's metadata; lists are joined by what follows the colon, as in
    {letters:}."""
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of the training prompts; None, for all families, divides them evenly."""
    taught: Annotated[float, Field(gt=0)] = 1.0
    """How often the base is taught it, relative to the others."""

    def __post_init__(self) -> None:
        if self.task not in JUDGES:
            known = sorted(JUDGES)
            raise ValueError(f"task of {self.name!r} must be one of {known}, got {self.task!r}")


@dataclass(config=Strict.model_config)
class GymSpec:
    """What a world is, before anything is drawn."""

    families: tuple[GymFamily, ...]
    """Their names differ; their shares sum to 1, or none has one."""
    max_completion_tokens: Annotated[int, Field(ge=2)]
    """The end-of-text token included."""
    n_train: BoundedCount = 4000
    """Distinct training prompts."""
    n_eval_per_family: BoundedCount = 40
    """Distinct held-out prompts, none of them trained on."""
    prompt_length: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Short prompts are stripped and padded on the left to so many characters, one token each; None
    where the original questions are asked."""
    completion: Reader = "tags"
    """How the answer to an original question is read."""
    request: Request | None = None
    """How one is asked, with `{problem}` in its place; None asks for the answer in the form that
    `completion` reads, for "tags" by the package's own system prompt."""

    def __post_init__(self) -> None:
        names = [family.name for family in self.families]
        check_families(names)
        shares = [family.share for family in self.families if family.share is not None]
        sums_to_1 = len(shares) == len(names) and abs(sum(shares) - 1) <= 1e-9
        if shares and not sums_to_1:
            raise ValueError(f"families must have shares that sum to 1, or none, got {shares}")
        if {family.prompt is None for family in self.families} != {self.prompt_length is None}:
            raise ValueError(
                f"prompt_length must be given if all families have a prompt, and left out if none "
                f"has, got {self.prompt_length}"
            )

    def draw(self, seed: int, style: Style = "text") -> GymTask:
        """Draw the task with a seed; `style` is that of original questions."""
        # Puzzles come from their own seeds; this generator only shuffles.
        rng = np.random.default_rng(seed)
        shares = [family.share or 1 / len(self.families) for family in self.families]
        counts = split_by_share(shares, self.n_train)
        if 0 in counts:
            raise ValueError(f"n_train must give each family a prompt, got {self.n_train}")
        seen: set[str] = set()
        drawn: list[FamilyRows] = []
        for place, count in enumerate(counts):
            if self.prompt_length is None:
                drawn.append(self._draw_originals(place, count, seed, style, seen))
            else:
                drawn.append(self._draw_short(place, count, seed, seen))
        held_out = [row for rows in drawn for row in rows.held_out]
        train = [row for rows in drawn for row in rows.train]
        if len(train) < sum(counts):  # a family was cut
            shares = [len(rows.train) / len(train) for rows in drawn]
        train = [train[place] for place in rng.permutation(len(train))]  # families come mixed
        named = {family.name: share for family, share in zip(self.families, shares, strict=True)}
        lessons = tuple(tuple(rows.lessons) for rows in drawn)
        return GymTask(self, seed, style, named, tuple(train), tuple(held_out), lessons)

    def _draw_originals(
        self, place: int, count: int, seed: int, style: Style, seen: set[str]
    ) -> FamilyRows:
        """Split a family of original questions in the order of its generator."""
        name = self.families[place].name
        size = self.n_eval_per_family + count
        puzzles = _puzzles(self, place, seed, style, TRIES * size, seen)
        rows = list(itertools.islice(puzzles, size))
        if len(rows) < size:
            raise ValueError(
                f"n_train and n_eval_per_family ask for {size} distinct prompts of family "
                f"{name!r}, got {len(rows)} from {TRIES * size} puzzles"
            )
        return FamilyRows(rows[: self.n_eval_per_family], rows[self.n_eval_per_family :], [])

    def _draw_short(self, place: int, count: int, seed: int, seen: set[str]) -> FamilyRows:
        """Shuffle the distinct puzzles of a family and split them; half of them at most are used.

        Where the generator has no more of them, fewer are trained on, and a warning says so.
        """
        name = self.families[place].name
        size = self.n_eval_per_family + count
        pool_size = size + max(size, LESSONS)
        puzzles = _puzzles(self, place, seed, "text", TRIES * pool_size, seen)
        pool = list(itertools.islice(puzzles, pool_size))
        # of its own, so that what is drawn elsewhere does not move with the size of a pool
        order = np.random.default_rng([seed, place]).permutation(len(pool))
        pool = [pool[position] for position in order]
        half = len(pool) // 2
        if half <= self.n_eval_per_family:
            raise ValueError(
                f"n_eval_per_family={self.n_eval_per_family} leaves nothing to train on of family "
                f"{name!r}: it has {len(pool)} distinct prompts, of which half may be used"
            )
        if half < size:
            logger.warning(
                f"family {name!r} has {len(pool)} distinct prompts, of which half may be used: "
                f"{half - self.n_eval_per_family} are trained on in place of {count}"
            )
            size = half
        held_out = pool[: self.n_eval_per_family]
        train = pool[self.n_eval_per_family : size]
        return FamilyRows(held_out, train, pool[size : size + LESSONS])


@dataclasses.dataclass(frozen=True, eq=False)
class GymTask:
    """A drawn world; a uid reads `task/family/seed/index`."""

    spec: GymSpec
    seed: int
    style: Style
    shares: dict[str, float]
    train: tuple[TaskRow, ...]  # shuffled
    eval: tuple[TaskRow, ...]  # family by family
    lessons: tuple[tuple[TaskRow, ...], ...]
    """By family, the short prompts that a base is taught: neither held out nor trained on."""

    @property
    def max_completion_tokens(self) -> int:
        """Tokens that a completion may have."""
        return self.spec.max_completion_tokens

    def teach(self, rng: np.random.Generator, n: int) -> tuple[list[str], list[str]]:
        """Draw `n` short prompts with their answers: a family as often as it is `taught`."""
        taught = np.array([family.taught for family in self.spec.families])
        places = rng.choice(len(taught), size=n, p=taught / taught.sum())
        rows = [self.lessons[place][rng.integers(len(self.lessons[place]))] for place in places]
        return [row["prompt"] for row in rows], [row["answer"] for row in rows]

    def solutions(self, n: int) -> list[TaskRow]:
        """Draw `n` puzzles with a `solution`, family by family, each as often as `taught`.

        They are neither held out nor trained on.
        """
        used = {json.dumps(row["prompt"]) for row in (*self.eval, *self.train)}
        taught = np.array([family.taught for family in self.spec.families])
        counts = split_by_share((taught / taught.sum()).tolist(), n)
        seen: set[str] = set()
        rows: list[TaskRow] = []
        for place, (family, count) in enumerate(zip(self.spec.families, counts, strict=True)):
            trained = sum(row["family"] == family.name for row in self.train)
            tries = TRIES * (self.spec.n_eval_per_family + trained + count)
            puzzles = _puzzles(self.spec, place, self.seed, self.style, tries, seen, solved=True)
            unused = (row for row in puzzles if json.dumps(row["prompt"]) not in used)
            rows += itertools.islice(unused, count)
        return rows

    def reward(
        self, completions: Sequence, answer: Sequence[str], family: Sequence[str], **columns: Any
    ) -> list[float]:
        """1.0 for each correct completion, a text or a chat, else 0.0."""
        tasks = {family.name: family for family in self.spec.families}
        rewards = []
        for completion, correct, name in zip(completions, answer, family, strict=True):
            said = completion_text(completion)
            task = tasks[name]
            texts = [said] if task.prompt is not None else _answers_in(said, self.spec.completion)
            rewards.append(float(any(JUDGES[task.task](text, correct) for text in texts)))
        return rewards

    def correct_texts(self, row: Mapping[str, Any]) -> list[str]:
        """Every completion of a row that is rewarded, of short prompts."""
        judge = JUDGES[row["uid"].split("/")[0]]
        if judge is operator.eq:
            return [row["answer"]]
        orders = {"".join(order) for order in itertools.permutations(row["answer"])}
        return sorted(text for text in orders if judge(text, row["answer"]))

    def tokenizer(self) -> Tokenizer:
        """One token per printable ASCII character."""
        return character_tokenizer(CHARACTERS)

    def fingerprint(self) -> str:
        """SHA-256, in hex, of all that the lessons depend on."""
        content = {
            "families": [dataclasses.asdict(family) for family in self.spec.families],
            "numbers": [self.spec.prompt_length, self.spec.max_completion_tokens, TRIES, LESSONS],
            "seed": self.seed,
            "taken": sorted(row["uid"] for row in (*self.eval, *self.train)),
            "reasoning-gym": importlib.metadata.version("reasoning-gym"),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class _Formatter(string.Formatter):
    """Joins the elements of a list, and of lists within it, by the text after the colon."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, list):
            return format_spec.join(map(str, np.ravel(value).tolist()))
        return super().format_field(value, format_spec)


def _answers_in(completion: str, reader: Reader) -> list[str]:
    """The answer to an original question; of a number also as answers write it."""
    text = read_answer(completion, reader)
    return [form for form in (text, text and plain_number(text)) if form is not None]


def _solution(spec: GymSpec, family: GymFamily, puzzle: Mapping[str, Any]) -> str:
    """The answer in the form that is read, after the steps to it where the task has them."""
    if family.prompt is not None:
        return puzzle["answer"]
    steps = puzzle["metadata"].get(WORKED_TEXT, "").partition("####")[0].strip()
    return with_answer(steps, puzzle["answer"], spec.completion).strip()


def _puzzles(
    spec: GymSpec,
    place: int,
    seed: int,
    style: Style,
    tries: int,
    seen: set[str],
    *,
    solved: bool = False,
) -> Iterable[TaskRow]:
    """Rows of a family whose questions are not `seen` yet, from its first `tries` puzzles.

    Levels of a task overlap, so all families of a world share one `seen`. Where `solved`, each
    row has a `solution`.
    """
    import reasoning_gym
    from reasoning_gym.utils import SYSTEM_PROMPTS

    family = spec.families[place]
    own_seed = (seed * len(spec.families) + place) * SEED_SPACING
    config = {**family.config, "seed": own_seed, "size": tries}
    puzzles = reasoning_gym.create_dataset(family.task, **config)
    for index in range(tries):
        puzzle = puzzles[index]
        question = puzzle["question"]
        answer = puzzle["answer"]
        if family.prompt is not None:
            question = _Formatter().format(family.prompt, **puzzle["metadata"]).strip()
            room = spec.prompt_length or 0
            most = spec.max_completion_tokens
            if len(question) > room or len(answer) >= most:
                raise ValueError(
                    f"prompt_length and max_completion_tokens must hold {question!r} and, with one "
                    f"token more, {answer!r} of family {family.name!r}, got {room} and {most}"
                )
            question = question.rjust(room)
        if question in seen:
            continue
        seen.add(question)
        uid = f"{family.task}/{family.name}/{own_seed}/{index}"
        row = {"prompt": question, "uid": uid, "family": family.name, "answer": answer}
        if family.prompt is None:
            row["prompt"] = _asked(spec, question, style, SYSTEM_PROMPTS["default"])
        if solved:
            row["solution"] = _solution(spec, family, puzzle)
        yield row


def _asked(spec: GymSpec, question: str, style: Style, system: str) -> str | list[dict[str, str]]:
    """The prompt of an original question."""
    if spec.request is not None:
        return ask(question, spec.request, style)
    if spec.completion != "tags":
        return ask(question, request_for(spec.completion), style)
    if style == "text":
        return f"{system}\n{question}\n"
    return [{"role": "system", "content": system}, {"role": "user", "content": question}]
