r"""Numbers and expressions with what stands behind them: a unit, a percent sign, a base.

An answer may leave out what the key says, and no other unit may stand in its place. It may add a
unit, but not a base or a percent sign: 7 has no `7\%`, which is 0.07, and no `7_8`.
"""

import re
from dataclasses import dataclass

from latex2sympy2_extended.math_normalization import units_regex_pattern
from sympy.physics import units

from gdro_lab.tasks.numerals import (
    LONGEST,
    NUMBER_WORD,
    POWER_OF_UNIT,
    Number,
    clean,
    in_latex,
    number_of,
    plain_number,
)

TEXT = r"\\(?:text(?:rm|bf|it|normal)?|mbox|mathrm)\s*"
MARKED = re.compile(rf"{TEXT}\{{([^{{}}]*)\}}")
EXPONENT = r"(?:\s*\^\s*(?:\{\s*-?\d\s*\}|-?\d))?"
MARKED_UNIT = re.compile(
    rf"(.*?[^\s/~])[\s~]*((?:{TEXT}\{{[^{{}}]*\}}{EXPONENT}[\s/]*)+)\.?", re.DOTALL
)
PLAIN_UNIT = re.compile(rf"(.*\d[\d}}]*)\s*([A-Za-z][A-Za-z./ ]*{EXPONENT})\.?", re.DOTALL)
PERCENT = re.compile(r"(.*?)\s*(?:\\?%|(?<![A-Za-z])per ?cent)\.?", re.DOTALL)
DEGREES = re.compile(r"(.*?)\s*\^\s*\{?\s*\\circ\s*\}?\s*\{?([CFK]?)\}?\.?", re.DOTALL)
CURRENCY = re.compile(r"(?:\\?(\$)|([€£¥₹]))\s*(.*)|(.*?)\s*([€£¥₹])", re.DOTALL)
BASE = re.compile(r"\(?((?=.*\d)[\dA-Z.]+)\)?\s*(?:_\s*(?:\{\s*\(?(\d+)\)?\s*\}|(\d)))")
# math-verify's units, each as a word, and more: "million" and "tenths" are none
UNIT = re.compile(
    rf"{units_regex_pattern}|dollars?|euros?|USD|(?:kilo|centi|milli)(?:met|lit|gram)\w*"
    "|Celsius|Fahrenheit"
)
SPELLINGS = {"mph": "mile/hour", "kmph": "kilometer/hour", "usd": "dollar", "in": "inch"}
SPELLINGS |= {"lbs": "pound", "hr": "hour", "hrs": "hour", "min": "minute", "sec": "second"}
NO_NOUN = rf"{NUMBER_WORD}|\w+ths?|\w+illi(?:on|ard)s?|quarters?|binary"  # a seventh
NO_NOUN += "|and|or|not|more|less|times|mod|prime"
SPELLED_OUT = (
    (r"\b([CF])(?:elsius|ahrenheit)\b", r"\1"),
    (r"\b(?:square|sq)\s+([A-Za-z]+)", r"\1^2"),
    (r"\bcubic\s+([A-Za-z]+)", r"\1^3"),
)


@dataclass(frozen=True)
class Quantity:
    """A text without its unit, and the unit."""

    text: str
    unit: str = ""
    """In one spelling: "centimeter^2", "%", "base 8"; empty without one."""

    @property
    def number(self) -> Number | None:
        """The number that the text is, if it is one."""
        return number_of(clean(self.text))

    def unit_is_met_by(self, other: "Quantity") -> bool:
        """Whether an answer's unit agrees with this one, the key's."""
        if not other.unit or other.unit == self.unit:
            return True
        return not self.unit and not other.unit.startswith(("%", "base"))

    def is_met_by(self, other: "Quantity") -> bool | None:
        """Whether an answer is the same number as this one, the key's; None if one is no number."""
        wanted, given = self.number, other.number
        if wanted is None or given is None:
            return None
        if self.unit == "%" and not other.unit:
            return wanted.is_met_by(given) or wanted.part(100).is_met_by(given)
        if other.unit == "%" and not self.unit:
            return bool(wanted.value) and wanted.is_met_by(given.part(100))
        return self.unit_is_met_by(other) and wanted.is_met_by(given)


def quantity_of(text: str, nouns: bool = True) -> Quantity:
    """A text in LaTeX as what it is a quantity of, and its unit; `nouns`: also 12 people."""
    if len(text) > LONGEST:
        return Quantity(text)
    if match := BASE.fullmatch(clean(text)):
        return Quantity(match[1], f"base {match[2] or match[3]}")
    if match := CURRENCY.fullmatch(text):
        sign = match[1] or match[2] or match[5]
        return Quantity(match[3] or match[4] or "", "dollar" if sign == "$" else sign)
    if match := PERCENT.fullmatch(clean(text)):
        return Quantity(match[1], "%")
    if (match := DEGREES.fullmatch(text)) and number_of(clean(match[1])):
        return Quantity(match[1], "degree" + _spelled(match[2]))
    match = MARKED_UNIT.fullmatch(text)
    if match and (_is_unit(match[2]) or (number_of(clean(match[1])) and _is_noun(match[2]))):
        rest = quantity_of(match[1])  # as of 20^\circ\text{C}
        return Quantity(rest.text, rest.unit + _spelled(match[2]))
    if match := PLAIN_UNIT.fullmatch(text):
        is_apart = text[match.start(2) - 1] == " "
        counts = number_of(clean(match[1])) is not None
        is_noun = nouns and counts and is_apart and _is_noun(match[2])
        # a letter behind an expression, as in a+2d, is a variable
        others = re.search(r"(?<![\\A-Za-z])[A-Za-z]", match[1])
        is_clear = counts or re.match("[A-Za-z]{2}", match[2]) or (is_apart and not others)
        if is_noun or (_is_unit(match[2]) and is_clear):
            return Quantity(match[1], _spelled(match[2]))
    return Quantity(text)


def only_number(text: str) -> str | None:
    """The number that a text is, perhaps with a unit that is known: 5 cm, 1/2, 5%, $3, ½."""
    text = POWER_OF_UNIT.sub(r"\1", in_latex(text.strip('*`" ')))
    quantity = quantity_of(text, nouns=False)
    if quantity.number is None or quantity.unit.startswith("base"):
        return None
    bare = clean(quantity.text).strip("()")
    return (plain_number(bare) or bare) + "%" * (quantity.unit == "%")


def _is_unit(text: str) -> bool:
    words = re.findall(r"[A-Za-z]+", MARKED.sub(r" \1 ", text))
    return bool(words) and all(
        UNIT.fullmatch(word) or word in SPELLINGS or _known(word) for word in words
    )


def _is_noun(text: str) -> bool:
    """Whether a marked text behind a number may say what is counted: eggs."""
    word = MARKED.sub(r"\1", text).strip(" .")
    return bool(re.fullmatch("[a-z]{3,}", word)) and not re.fullmatch(NO_NOUN, word)


def _spelled(text: str) -> str:
    """A unit in one spelling, so that m^2 is square meters."""
    text = re.sub(r"[\s{}~.]+|\\[,;: ]", " ", MARKED.sub(r" \1 ", text))
    for pattern, short in SPELLED_OUT:
        text = re.sub(pattern, short, text)
    text = re.sub(r"\bper\b", "/", text)
    text = re.sub(r"[A-Za-z]+", lambda match: _known(match[0]) or _singular(match[0]), text)
    return text.replace(" ", "")


def _known(word: str) -> str | None:
    """The name of a unit that sympy knows, also by its abbreviation; c and R are none."""
    unit = getattr(units, word, None)
    if isinstance(unit, units.Quantity) and not (unit.is_physical_constant and len(word) == 1):
        return str(unit.name)
    return None


def _singular(word: str) -> str:
    word = word.lower()
    return SPELLINGS.get(word, word.removesuffix("s"))
