r"""Whether an answer says what an answer key says.

Two texts are taken apart until numbers, words or expressions are left. Numbers are compared
exactly, words as words, and expressions by `gdro_lab.tasks.symbolic` where both can be read.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from gdro_lab.tasks.answers import last_boxed, unboxed
from gdro_lab.tasks.notation import (
    COMMA,
    CUP,
    EQUALS,
    as_text,
    has_words,
    items_of,
    same_notation,
    split,
    standard,
)
from gdro_lab.tasks.numerals import clean
from gdro_lab.tasks.quantities import quantity_of

LONGEST_ANSWER = 2000  # characters; a longer one is wrong, unless the key is long
MOST_ITEMS = 50  # of a list

# a key that is a letter, and an answer that is one and perhaps says what it stands for
CHOICE_KEY = re.compile(r"\(?([A-Ja-j])[.:)]*")
CHOICE = re.compile(
    r"\(?([A-Ja-j])(?:(?:\s*[.:)]+|\s+(?=\())(?!\s*(?:[,;/%\\]|or\b|and\b))(.*))?", re.DOTALL
)
# a further letter; "A cat", "a cat" and the Roman I are none
FURTHER_CHOICE = re.compile(
    r"(?<![\w\\])(?:[B-HJ](?!\w)|A(?!\w|\s+[a-z])|[a-j](?=\s*[.:)])"
    r"|(?:and|or)\W*[a-j](?!\w|\s+[a-z]))"
)

LETTER = re.compile(
    r"(?<![\\A-Za-z])[A-Za-z]"
    r"|\\(?:alpha|beta|gamma|delta|epsilon|theta|lambda|mu|rho|sigma|tau|phi|omega|ell)(?![a-z])"
)
NAME = re.compile(
    r"(?:\\(?!frac|sqrt|pi)[a-z]+\s*)?\{?[A-Za-z]*'*\}?(?:_(?:\w|\{[^{}]*\}))?(?:\s*\([^()]*\))?"
)
# an unknown with a sign or a factor, as in -x = 3, which does not say what x is
FACTOR = r"(?:[*/\s\d.,{}]|\\(?:cdot|times|pi|[dt]?frac)(?![A-Za-z]))*"
UNSOLVED = (
    rf"^(?=.*[^A-Za-z\s])[-+]?{FACTOR}(?<!\\)[A-Za-z](?:\s*(?:[*/}}]|\\(?:cdot|times)){FACTOR})?$"
)
# a left side that does not name the value on the right: several answers, another relation than
# equality, or an equation still to be solved
NO_NAME = re.compile(
    rf"[,;<>≈]|[!:]$|\b(?:or|and|not)\b|{UNSOLVED}"
    r"|\\(?:not|neq?|approx|sim|equiv|[lg]eq?|[lg]t|pm|mp|to|l?or|land|wedge|vee|in)(?![A-Za-z])"
)
# a range, a score, a date, an address, a formula of chemistry: texts that look like arithmetic
PRICE = r"\s*(?:\\?\$)?\s*\d+(?:[.,]\d+)*\s*"
CODE = re.compile(rf"{PRICE}(?:[-/]{PRICE})+|.*(?:\d\.\d+\.\d|(?<!\\)[A-Z][a-z]?\d).*", re.DOTALL)


class NeedsSymbolsError(Exception):
    """Expressions are to be compared, which may take long."""


def _needs_symbols(key: str, answer: str, tolerance: float) -> bool:
    raise NeedsSymbolsError


@dataclass(frozen=True)
class Judge:
    """Compares answers with answer keys."""

    symbolic: Callable[[str, str, float], bool] = _needs_symbols
    """Compares two expressions in LaTeX, up to the precision of a printed float."""

    def accepts(self, key: str, answer: str) -> bool:
        """Whether the answer says what the key says.

        Raises:
            NeedsSymbolsError: without `symbolic`, where expressions are to be compared.
        """
        if len(answer) > max(LONGEST_ANSWER, 2 * len(key)):
            return False
        key = standard(last_boxed(key) or key)
        answer = standard(unboxed(answer))
        if letter := CHOICE_KEY.fullmatch(clean(key)):
            return _choice_of(clean(answer)) == letter[1].upper()
        return self._same(key, answer)

    def _same(self, key: str, answer: str) -> bool:
        if as_text(key) == as_text(answer):
            return True
        is_met = quantity_of(key).is_met_by(quantity_of(answer))
        if is_met is not None:
            return is_met
        key, answer = same_notation(key, answer)
        equations = [text for text in (key, answer) if len(split(text, EQUALS)) > 1]
        if equations and all(len(split(text, COMMA)) == 1 for text in equations):
            return self._same_sides(key, answer)
        keys, answers = split(key, CUP), split(answer, CUP)
        if len(keys) > 1 or len(answers) > 1:
            return self._same_set(keys, answers)
        brackets, keys = items_of(key)
        given_brackets, answers = items_of(answer)
        if brackets or given_brackets or len(keys) > 1 or len(answers) > 1:
            return self._same_lists(brackets, keys, given_brackets, answers)
        return bool(keys and answers) and self._same_expressions(*keys, *answers)

    def _same_lists(
        self, brackets: str, keys: list[str], given_brackets: str, answers: list[str]
    ) -> bool:
        """A list without brackets may stand for a tuple or a set, and not for [2,3)."""
        either = brackets or given_brackets
        if brackets != given_brackets and either not in ("()", "[]", r"\{\}"):
            return False
        if brackets != given_brackets and ((brackets and given_brackets) or len(keys) == 1):
            return False
        names = {names[0] for names in (split(key, EQUALS)[:-1] for key in keys) if names}
        is_ordered = either and either != r"\{\}"
        if len(names) == len(keys) and not any(split(answer, EQUALS)[1:] for answer in answers):
            is_ordered = True
        if not is_ordered:
            return self._same_set(keys, answers)
        return len(keys) == len(answers) and all(
            self._same(*pair) for pair in zip(keys, answers, strict=True)
        )

    def _same_set(self, keys: list[str], answers: list[str]) -> bool:
        """Whether each key has an answer of its own."""
        if len(keys) != len(answers) or len(keys) > MOST_ITEMS:
            return False
        rest = list(answers)
        for key in keys:
            found = next((answer for answer in rest if self._same(key, answer)), None)
            if found is None:
                return False
            rest.remove(found)
        return True

    def _same_sides(self, key: str, answer: str) -> bool:
        """An equation beside an equation or an expression; behind a name, the right side counts."""
        *key_names, key_value = split(key, EQUALS)
        *sides, value = split(answer, EQUALS)
        is_named = all(NAME.fullmatch(clean(name)) for name in key_names)
        if key_names and sides:
            return self._same_expressions(key, answer)
        if key_names:
            return is_named and self._same(key_value, value)
        return all(self._allows(key, side) for side in sides) and self._same(key, value)

    def _allows(self, key: str, side: str) -> bool:
        """Whether the left side of an equation is a name, or has the key's value."""
        if LETTER.search(side):
            return not NO_NAME.search(clean(side))
        wanted, given = quantity_of(key), quantity_of(side)
        is_met = wanted.is_met_by(given)
        return self.symbolic(wanted.text, given.text, 0.0) if is_met is None else is_met

    def _same_expressions(self, key: str, answer: str) -> bool:
        wanted, given = quantity_of(key), quantity_of(answer)
        precisions = [side.number.precision for side in (wanted, given) if side.number]
        if wanted.number and not any(precisions):
            return False  # 2+3 does not answer 5: it is not worked out
        is_code = CODE.fullmatch(wanted.text) is not None
        if not wanted.unit_is_met_by(given):
            return False
        if as_text(wanted.text) == as_text(given.text):
            return True
        if is_code or has_words(wanted.text) or has_words(given.text):
            return False
        return self.symbolic(wanted.text, given.text, max(*precisions, 0.0, 0.0))


def _choice_of(text: str) -> str | None:
    """The one letter that a text chooses."""
    choice = CHOICE.fullmatch(text)
    if choice is None:
        return None
    letter = choice[1].upper()
    further = [match[0][-1].upper() for match in FURTHER_CHOICE.finditer(choice[2] or "")]
    return letter if all(other == letter for other in further) else None
