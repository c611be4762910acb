"""The embedded task: chains of one made-up operation, answered step by step.

A prompt reads ``7*4*3?`` and its one right answer ``7*4=8;8*3=4``. The signs mean nothing outside
this file: each family of prompts owns one operator sign and one random table f(a, b) of digits, so
that no fact learned on one family is of use to another. Families differ in how often they are
trained on, in how many facts they hold and in how well the base model was taught, which makes
them what GDRO is about: skills that are rare and skills that are hard.

Everything that is drawn comes from one generator, handed to :func:`make_task`. Sizes and shares
stand in a frozen :class:`ChainSpec`; what was drawn stands in a frozen :class:`ChainTask`.

Array names end in their axes: D digits of one family (0 … n_digits - 1), P prompts, O operands of
a prompt, T steps of a chain (T = O - 1).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

DIGITS = "0123456789"
PUNCTUATION = "?=;"
PAD_TOKEN = "<pad>"
EOS_TOKEN = "<eos>"


@dataclass(frozen=True)
class Family:
    """One skill: an operator with its own table.

    Attributes:
        name: what figures and tables call it.
        operator: one character, no digit, no space, none of ``?=;``, unlike any other family's.
        n_digits: operands and results lie in 0 … n_digits - 1; the table has n_digits² facts.
        share: part of the training prompts, in (0, 1].
        teacher_accuracy: mean probability, over the facts, that the base model's teacher states
            a fact rightly, in (0, 1).

    Raises:
        ValueError: if a value lies outside its range.
    """

    name: str
    operator: str
    n_digits: int
    share: float
    teacher_accuracy: float

    def __post_init__(self) -> None:
        taken = self.operator in DIGITS + PUNCTUATION or self.operator.isspace()
        if len(self.operator) != 1 or taken:
            raise ValueError(
                f"operator is {self.operator!r}; give one character that is neither a digit nor "
                f"a space nor one of {PUNCTUATION}"
            )
        if not 2 <= self.n_digits <= len(DIGITS):
            raise ValueError(f"n_digits is {self.n_digits}; give an integer from 2 to {len(DIGITS)}")
        if not 0 < self.share <= 1:
            raise ValueError(f"share is {self.share}; give a number in (0, 1]")
        if not 0 < self.teacher_accuracy < 1:
            raise ValueError(
                f"teacher_accuracy is {self.teacher_accuracy}; give a number strictly between 0 "
                "and 1 (a fact never stated rightly could not be found by sampling)"
            )


@dataclass(frozen=True)
class ChainSpec:
    """What the task is, before anything is drawn.

    Attributes:
        families: the skills; their shares sum to 1, their names and operators differ.
        n_operands: operands of a prompt; a chain has n_operands - 1 steps. At least 2.
        n_train: distinct training prompts, over all families.
        n_eval_per_family: distinct evaluation prompts of each family, none of them trained on.
        accuracy_concentration: the teacher's accuracy on a fact is Beta-distributed with the
            family's mean m and variance m (1 - m) / (1 + accuracy_concentration). Small values
            spread the difficulty of prompts within a family; large ones make all its facts alike.

    Raises:
        ValueError: if the families clash, a count is too small, or a family has fewer prompts
            than the splits ask of it.
    """

    families: tuple[Family, ...]
    n_operands: int = 3
    n_train: int = 1000
    n_eval_per_family: int = 40
    accuracy_concentration: float = 12.0

    def __post_init__(self) -> None:
        if not self.families:
            raise ValueError("families is empty; give at least one Family")
        for field in ("name", "operator"):
            values = [getattr(family, field) for family in self.families]
            if len(set(values)) < len(values):
                raise ValueError(f"families have the {field}s {values}; give each family its own {field}")
        total = sum(family.share for family in self.families)
        if abs(total - 1) > 1e-9:
            raise ValueError(f"families' shares sum to {total:g}; scale them to sum to 1")
        if self.n_operands < 2:
            raise ValueError(f"n_operands is {self.n_operands}; give an integer of at least 2")
        if self.n_eval_per_family < 1:
            raise ValueError(f"n_eval_per_family is {self.n_eval_per_family}; give an integer of at least 1")
        if not self.accuracy_concentration > 0:
            raise ValueError(
                f"accuracy_concentration is {self.accuracy_concentration}; give a positive number"
            )
        counts = train_counts(self.families, self.n_train)
        for family, count in zip(self.families, counts, strict=True):
            have, want = family.n_digits**self.n_operands, count + self.n_eval_per_family
            if want > have:
                raise ValueError(
                    f"n_train is {self.n_train} and n_eval_per_family {self.n_eval_per_family}: "
                    f"family {family.name!r} would need {want} distinct prompts and has {have}; "
                    "lower one of them, or raise its n_digits or n_operands"
                )

    @property
    def max_completion_tokens(self) -> int:
        """Tokens of every right answer, its end-of-text token included."""
        # a step is "a*b=c" and a ";" or, after the last, the end-of-text token
        return 6 * (self.n_operands - 1)


@dataclass(frozen=True, eq=False)
class ChainTask:
    """A drawn task: the tables, what the teacher knows of them, and the two splits.

    Attributes:
        spec: the specification it was drawn from.
        tables: per family, ``table_DD`` with table_DD[a, b] = f(a, b), read-only integers.
        accuracies: per family, ``accuracy_DD``: how often the teacher states that fact rightly.
        train: rows of the training split, shuffled.
        eval: rows of the evaluation split, family by family.

    A row is a dict of ``prompt`` (str), ``uid`` (int: the same prompt has the same uid in every
    task with the same families and n_operands), ``family`` (str) and ``answer`` (str, the whole
    right completion). ``datasets.Dataset.from_list`` takes the rows as they are.
    """

    spec: ChainSpec
    tables: tuple[np.ndarray, ...]
    accuracies: tuple[np.ndarray, ...]
    train: tuple[dict[str, Any], ...]
    eval: tuple[dict[str, Any], ...]

    def fingerprint(self) -> str:
        """SHA-256, in hex, of all that the base model's teacher depends on.

        The training split is left out on purpose: runs on fewer prompts share one base model.
        """
        content = {
            "families": [dataclasses.asdict(family) for family in self.spec.families],
            "n_operands": self.spec.n_operands,
            "tables": [table_DD.tolist() for table_DD in self.tables],
            "accuracies": [accuracy_DD.tolist() for accuracy_DD in self.accuracies],
            "eval": sorted(row["uid"] for row in self.eval),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def train_counts(families: tuple[Family, ...], n_train: int) -> list[int]:
    """Split ``n_train`` prompts by the families' shares, by largest remainder.

    Args:
        families: their shares sum to 1.
        n_train: prompts to split.

    Returns:
        One count per family; they sum to ``n_train``.

    Raises:
        ValueError: if a family would be left without a prompt.
    """
    exact = np.array([family.share * n_train for family in families])
    counts = np.floor(exact).astype(int)
    # stable: of equal remainders the earlier family's goes first
    by_remainder = np.argsort(-(exact - counts), kind="stable")
    counts[by_remainder[: n_train - counts.sum()]] += 1
    if counts.min() < 1:
        name = families[int(counts.argmin())].name
        raise ValueError(
            f"n_train is {n_train}, which leaves family {name!r} without a training prompt; "
            "raise n_train or the family's share"
        )
    return [int(count) for count in counts]


DEFAULT_SPEC = ChainSpec(
    families=(
        Family("star", "*", n_digits=10, share=0.50, teacher_accuracy=0.97),
        Family("plus", "+", n_digits=10, share=0.25, teacher_accuracy=0.85),
        Family("hash", "#", n_digits=8, share=0.12, teacher_accuracy=0.65),
        Family("amp", "&", n_digits=6, share=0.07, teacher_accuracy=0.45),
        Family("tilde", "~", n_digits=5, share=0.04, teacher_accuracy=0.36),
        Family("caret", "^", n_digits=5, share=0.02, teacher_accuracy=0.30),
    )
)


def make_task(spec: ChainSpec, rng: np.random.Generator) -> ChainTask:
    """Draw tables, the teacher's accuracies and the two splits.

    Tables and evaluation prompts do not depend on ``spec.n_train``: specs that differ in nothing
    else, drawn from equal generators, are trained on more or less and evaluated on the same.

    Args:
        spec: sizes and shares.
        rng: source of every draw.

    Returns:
        The task; train and eval are disjoint, their prompts distinct.
    """
    _require_generator(rng)
    tables, accuracies = [], []
    for family in spec.families:
        shape_DD = (family.n_digits, family.n_digits)
        table_DD = rng.integers(family.n_digits, size=shape_DD)
        mean, concentration = family.teacher_accuracy, spec.accuracy_concentration
        accuracy_DD = rng.beta(mean * concentration, (1 - mean) * concentration, size=shape_DD)
        for array in (table_DD, accuracy_DD):
            array.setflags(write=False)
        tables.append(table_DD)
        accuracies.append(accuracy_DD)

    train, evaluation = [], []
    for index, count in enumerate(train_counts(spec.families, spec.n_train)):
        n_prompts = spec.families[index].n_digits ** spec.n_operands
        order_P = rng.permutation(n_prompts)
        n_eval = spec.n_eval_per_family
        evaluation += _rows(spec, index, tables[index], np.sort(order_P[:n_eval]))
        train += _rows(spec, index, tables[index], order_P[n_eval : n_eval + count])
    train = [train[place] for place in rng.permutation(len(train))]
    return ChainTask(spec, tuple(tables), tuple(accuracies), tuple(train), tuple(evaluation))


def teach(task: ChainTask, rng: np.random.Generator, n: int) -> tuple[list[str], list[str]]:
    """Let the noisy teacher answer ``n`` prompts: the text that the base model learns from.

    Families are drawn evenly, so a family's difficulty for the base model comes from the
    teacher's accuracy and not from its share; prompts are drawn evenly within the family, with
    repetition, and never from the evaluation split. At each step the teacher states the fact
    rightly with that fact's accuracy, else another digit of the family, evenly, and goes on from
    what it said.

    Args:
        task: tables, accuracies and evaluation prompts to stay away from.
        rng: source of every draw.
        n: texts wanted, at least 1.

    Returns:
        ``n`` prompts and their ``n`` completions (without the end-of-text token), in random order
        of families.

    Raises:
        ValueError: if ``n`` is below 1.
    """
    _require_generator(rng)
    if n < 1:
        raise ValueError(f"n is {n}; give an integer of at least 1")
    spec = task.spec
    eval_uids = np.array([row["uid"] for row in task.eval])
    family_P = rng.integers(len(spec.families), size=n)
    prompts, completions = [""] * n, [""] * n
    for index, family in enumerate(spec.families):
        places_P = np.flatnonzero(family_P == index)
        codes = np.arange(family.n_digits**spec.n_operands)
        codes = codes[~np.isin(codes + _uid_offset(spec, index), eval_uids)]
        operands_PO = _operands(spec, index, rng.choice(codes, size=len(places_P)))
        results_PT = np.empty((len(places_P), spec.n_operands - 1), dtype=int)
        left_P = operands_PO[:, 0]
        for step in range(spec.n_operands - 1):
            facts = (left_P, operands_PO[:, step + 1])
            right_P = task.tables[index][facts]
            is_right_P = rng.random(len(places_P)) < task.accuracies[index][facts]
            # 1 … n_digits - 1 places further on is every other digit, evenly
            shift_P = rng.integers(1, family.n_digits, size=len(places_P))
            wrong_P = (right_P + shift_P) % family.n_digits
            left_P = results_PT[:, step] = np.where(is_right_P, right_P, wrong_P)
        for place, operands_O, results_T in zip(places_P, operands_PO, results_PT, strict=True):
            prompts[place] = _prompt(family, operands_O)
            completions[place] = _completion(family, operands_O, results_T)
    return prompts, completions


def check(answer: str, completion: str) -> bool:
    """Whether a completion is right in every step.

    There is one right text, so every step is right exactly when the texts are equal: a right last
    digit after a wrong step, a missing step or text after the answer all fail.

    Args:
        answer: the row's ``answer``.
        completion: decoded text, special tokens left out.

    Returns:
        True if right.

    Raises:
        ValueError: if ``completion`` is not text.
    """
    if not isinstance(completion, str):
        raise ValueError(
            f"completion is of type {type(completion).__name__}; this task's prompts are plain "
            "text, so give the decoded str and not chat messages"
        )
    return completion == answer


def reward(completions: list[str], answer: list[str], **kwargs: Any) -> list[float]:
    """:func:`check` in the shape that TRL's ``reward_funcs`` want.

    Args:
        completions: one text per rollout.
        answer: the ``answer`` column, one per rollout.
        **kwargs: the other columns and whatever else the trainer passes; not used.

    Returns:
        1.0 for a right completion, 0.0 for a wrong one.

    Raises:
        ValueError: if the lengths differ or a completion is not text.
    """
    if len(completions) != len(answer):
        raise ValueError(
            f"answer has {len(answer)} entries for {len(completions)} completions; give one per completion"
        )
    pairs = zip(answer, completions, strict=True)
    return [float(check(right, completion)) for right, completion in pairs]


def make_tokenizer(spec: ChainSpec) -> PreTrainedTokenizerFast:
    """Build the task's tokenizer: one token per character, no merges, no unknown token.

    It pads on the left (completions are generated), and adds nothing to a text by itself. A
    character that the task does not use raises an exception in the tokenizer's encode: a token
    for unknown ones would let a wrong data set train in silence.

    Args:
        spec: its operators enter the vocabulary.

    Returns:
        A tokenizer that ``save_pretrained`` and ``AutoTokenizer.from_pretrained`` carry over.
    """
    # imported here so that prompts and checks work where only numpy is installed
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    operators = [family.operator for family in spec.families]
    tokens = [PAD_TOKEN, EOS_TOKEN, *DIGITS, *PUNCTUATION, *operators]
    backend = Tokenizer(models.WordLevel({token: place for place, token in enumerate(tokens)}))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD_TOKEN,
        eos_token=EOS_TOKEN,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def _require_generator(rng: np.random.Generator) -> None:
    if not isinstance(rng, np.random.Generator):
        raise ValueError(f"rng is of type {type(rng).__name__}; give numpy.random.default_rng(seed)")


def _uid_offset(spec: ChainSpec, index: int) -> int:
    """First uid of family ``index``: families' prompts are numbered one after the other."""
    return sum(family.n_digits**spec.n_operands for family in spec.families[:index])


def _operands(spec: ChainSpec, index: int, code_P: np.ndarray) -> np.ndarray:
    """Read numbers of prompts within a family as operands_PO, most significant first."""
    shape = (spec.families[index].n_digits,) * spec.n_operands
    return np.stack(np.unravel_index(code_P, shape), axis=-1)


def _prompt(family: Family, operands_O: np.ndarray) -> str:
    return family.operator.join(str(operand) for operand in operands_O) + "?"


def _completion(family: Family, operands_O: np.ndarray, results_T: np.ndarray) -> str:
    lefts = [operands_O[0], *results_T[:-1]]
    steps = zip(lefts, operands_O[1:], results_T, strict=True)
    return ";".join(f"{left}{family.operator}{right}={result}" for left, right, result in steps)


def _rows(spec: ChainSpec, index: int, table_DD: np.ndarray, code_P: np.ndarray) -> list[dict[str, Any]]:
    """Rows of the prompts numbered ``code_P`` within family ``index``."""
    family, offset = spec.families[index], _uid_offset(spec, index)
    rows = []
    for code, operands_O in zip(code_P, _operands(spec, index, code_P), strict=True):
        results, left = [], operands_O[0]
        for operand in operands_O[1:]:
            left = table_DD[left, operand]
            results.append(left)
        rows.append(
            {
                "prompt": _prompt(family, operands_O),
                "uid": offset + int(code),
                "family": family.name,
                "answer": _completion(family, operands_O, np.array(results)),
            }
        )
    return rows
