"""What an answer says, and when two answers say the same.

An answer is read from its LaTeX into a number, a set, an interval and so on; what an answer key has in
digits is decided here, exactly and at once. Whatever needs algebra is handed to a function ``equal``
(`verify.py` has one, by sympy in another process). docs/rewards.md lists the rules with their cases.

One rule decides most: **an answer must be worked out as far as its answer key**. For the key 1024, 2^{10} is
wrong, as ``\\sqrt{2}``, ``\\sin`` or ``\\sum`` are where the key has a number. Otherwise a policy soon learns
to put the question itself into the box.
"""

import itertools
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

LONGEST = 1000  # characters; a longer answer is none
ROUNDED_DECIMALS = 6  # an answer key with as many is a rounded value
ABOUT = Fraction(1, 100)  # how far ≈ reaches, and a key in scientific notation such as 1.6 × 10^{-19}

Equal = Callable[..., bool]  # of two LaTeX texts, or of two (left, relation, right)


class Unreadable(ValueError):
    """A text that is no answer."""


class Answer(NamedTuple):
    """An answer as read.

    kind: "number", "based" (digits in a base), "text", "algebra", "list", "set", "matrix", "row", ":" (a
        ratio), "chain" (sides joined by relations), or the two brackets of a tuple or interval, such as "[)".
    value: a Fraction, a text, LaTeX, or a tuple of answers.
    text: the whole answer in one spelling; equal texts are equal answers.
    unit: of a number. name: what it is the value of, as the x of x = 3. relations: of a chain, such as "=≈".
    """

    kind: str
    value: Any
    text: str
    unit: str = ""
    name: str = ""
    relations: str = ""

    def algebra(self) -> list[str]:
        """The LaTeX in it that only algebra can compare; none where digits and words decide."""
        if isinstance(self.value, tuple):
            return [latex for part in self.value for latex in part.algebra()]
        return [self.value] if self.kind == "algebra" and self.value not in ("∞", "-∞", "+∞") else []


# ---- one spelling -----------------------------------------------------------------------------

# what decides the structure becomes one character, so that brackets can be counted and texts split
SIGNS = {
    "≤": r"\\(?:le|leq|leqslant)(?![a-zA-Z])|<=",
    "≥": r"\\(?:ge|geq|geqslant)(?![a-zA-Z])|>=",
    "<": r"\\lt(?![a-zA-Z])",
    ">": r"\\gt(?![a-zA-Z])",
    "≠": r"\\not\s*=|\\neq?(?![a-zA-Z])",
    "≈": r"\\(?:approx|simeq)(?![a-zA-Z])",
    "∈": r"\\in(?![a-zA-Z])",
    "→": r"\\(?:[a-zA-Z]*arrow|to|implies|iff|mapsto)(?![a-zA-Z])|→|⇒|⟹",
    "∪": r"\\cup(?![a-zA-Z])",
    "±": r"\\pm(?![a-zA-Z])",
    "⦃⦄": r"\\(?:emptyset|varnothing)(?![a-zA-Z])",
    "⦃": r"\\\{|\\lbrace(?![a-zA-Z])",
    "⦄": r"\\\}|\\rbrace(?![a-zA-Z])",
    "°": r"\^\s*\{?\s*(?:\\circ(?![a-zA-Z])|°)\s*\}?|\\degree(?![a-zA-Z])",
    "∞": r"\\infty(?![a-zA-Z])",
    "%": r"\\%",
    "π": r"\\pi(?![a-zA-Z])",
    "-": "−|–",
    "·": r"\\(?:cdot|times)(?![a-zA-Z])|×|⋅|\*",
    "√": r"\\sqrt(?![a-zA-Z])",
    "|": r"\\[lr]?vert(?![a-zA-Z])|\\mid(?![a-zA-Z])",
    "ℝ": r"\\mathbb\s*\{?R(?![a-zA-Z])\}?",
    ";": r"\\(?:lor|vee)(?![a-zA-Z])",
    r"\prime": "'",
    r"\frac": r"\\[dtc]frac",
    r"\binom": r"\\[dt]binom",
    " ": r"(?<!\\)\\[,;: ]|~|\\q?quad(?![a-zA-Z])|\s+",
}
BACK = {"π": r"\pi ", "·": r"\cdot ", "√": r"\sqrt", "∞": r"\infty ", "°": r"^{\circ}", "ℝ": r"\mathbb{R}"}
DROPPED = re.compile(
    r"\\(?:displaystyle|textstyle|limits|[lL]arge|LARGE|[hH]uge|boxed|fbox)(?![a-zA-Z])|&(?==)"
    r"|\\(?:left|right)(?![a-zA-Z])\.?|\\[bB]igg?[lr]?(?![a-zA-Z])|(?<!\\)(?:\$|\\[!()\[\]])|\bnp\.(?=[a-z])"
)
FONT = re.compile(r"\\(?:mathbf|boldsymbol|bm|mathit|mathsf|bf)\s*\{([^{}]*)\}")
WORDS = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mbox|operatorname|rm)\s*\{([^{}]*)\}")
LABEL = re.compile(r"\s*(?:\\text\{(?:the|final|answer|is|equals)\}[: ]*)+(?=.)", re.IGNORECASE)
PERCENT = re.compile(r"\\text\{per(?:cent|\} ?\\text\{cent)\}", re.IGNORECASE)
BARE_WORD = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{2,}")
# letters that are no product of variables although there are fewer than four
SHORT_WORD = re.compile("cm|km|mm|kg|ft|mi|mph|usd|eur|or|and|sec|min|not|per|deg|no", re.IGNORECASE)
FUNCTION = re.compile("(?:arc)?(?:sin|cos|tan|cot|sec|csc)|(?:sin|cos|tan)h|ln|log|exp")


def spell(latex: str) -> str:
    """One spelling for texts that differ in typesetting alone; words end up in ``\\text{…}``."""
    text = DROPPED.sub("", re.sub(r",\\!\s*", "{,}", latex))
    for sign, spellings in SIGNS.items():
        text = re.sub(spellings, sign.replace("\\", r"\\"), text)
    text = WORDS.sub(lambda words: re.sub("([A-Za-z]+)", r"\\text{\1}", words[1]), FONT.sub(r"\1", text))
    text = re.sub(
        r"\\?\$\s*(-?[\d.,{}]*\d)", r"\1\\text{usd}", re.sub(r"€\s*([\d.,]*\d)", r"\1\\text{eur}", text)
    )
    only_words = re.fullmatch(r"[A-Za-z ]*[A-Za-z]{3}[A-Za-z ]*", text.strip(" ."))

    def mark(match: re.Match) -> str:
        if FUNCTION.fullmatch(match[0]):
            return "\\" + match[0]
        is_word = only_words or len(match[0]) > 3 or SHORT_WORD.fullmatch(match[0])
        return f"\\text{{{match[0]}}}" if is_word else match[0]

    text = PERCENT.sub("%", re.sub(f"^{LABEL.pattern}", "", BARE_WORD.sub(mark, text), flags=re.IGNORECASE))
    text = re.sub(r"\\text\{(?:or|and)\}", ";", text)
    text = re.sub(r"(\\frac|√)\s*(\w|π)", r"\1{\2}", text)
    text = re.sub(r"(\\frac\s*\{[^{}]*\})\s*(\w|π)", r"\1{\2}", text)
    # 1,000 is a number, but (1,200) a pair
    comma = r"\{,\}| " if re.search(r"[(\[⦃]", text) else r"\{,\}|,| "
    thousands = rf"(?<![\d.,])\d{{1,3}}(?:(?:{comma})\d{{3}})+(?!\d)"
    text = re.sub(thousands, lambda number: re.sub(r"\D", "", number[0]), text)
    text = re.sub(r"(?<![A-Za-z\d]) | (?![A-Za-z\d])", "", text)  # the other spaces may mean something
    return re.sub(r"[.,;:\\]+$", "", text)


# ---- reading ----------------------------------------------------------------------------------

OPEN, CLOSE, RELATIONS = "([{⦃", ")]}⦄", "=<>≤≥≠≈∈"
DECIMAL = r"(?:\d+(?:\.\d*)?|\.\d+)"
NUMBER = re.compile(
    rf"""([+-]?)[ ]?(?:
    (?:(\d+)[ ])?([+-]?{DECIMAL})/([+-]?{DECIMAL})             # 1/2, 3 1/2
    |(\d*\.\d*)\\(?:overline|bar|dot)\{{(\d+)\}}              # 0.1\overline{{6}}
    |(?:({DECIMAL})(?:·10\^\{{?|[eE])|10\^\{{?)([+-]?\d{{1,3}})\}}?  # 2 × 10^5, 2e5, 10^5
    |({DECIMAL}))""",
    re.VERBOSE | re.ASCII,
)
BASED = re.compile(r"0*([0-9A-F]+)_\{?(\d+)\}?")
UNIT_WORD = r"[ ]?\\text\{(?:[A-Za-z]{2,}|[msghlNJVAWKCF])\}(?:\^\{?[23]\}?)?"
UNIT = re.compile(rf"(.+?)((?:{UNIT_WORD}|°|%)(?:{UNIT_WORD}|[/.-](?=\\text))*)")
NO_UNIT = re.compile(
    "not|no|half|dozen|squared|cubed|factorial|to|mod|plus|minus|times|if|when|unless|for|but|where"
)
UNITS = {
    **{"dollar": "usd", "euro": "eur", "°": "degree", "deg": "degree", "per": "/", "square": "2", "sq": "2"},
    **{"meter": "m", "metre": "m", "centimeter": "cm", "centimetre": "cm", "kilometer": "km", "mile": "mi"},
    **{"millimeter": "mm", "kilometre": "km", "foot": "ft", "feet": "ft", "inch": "in", "inches": "in"},
    **{"gram": "g", "kilogram": "kg", "liter": "l", "litre": "l", "second": "s", "sec": "s", "minute": "min"},
    **{"h": "hour", "hr": "hour", "mph": "mi/hour", "kph": "km/hour", "yard": "yd", "cubic": "3"},
}
SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12}
MATRIX = re.compile(r"\\begin\{([pbv]?matrix|array)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}")
VARIABLE = re.compile(r"[A-Za-z]")
NAME = re.compile(r"[A-Za-z](?:_\{?\w+\}?)?(?:\([\w,]+\))?")  # x, a_n, f(x)
ALL_BUT = re.compile(r"ℝ\\setminus⦃([^,]+)⦄")


def read(latex: str) -> Answer:
    """Read an answer; `Unreadable` for what is none."""
    if len(latex) > LONGEST:
        raise Unreadable("too long")
    try:
        return _read(spell(latex))
    except (RecursionError, ZeroDivisionError) as error:
        raise Unreadable("nested too deeply, or divided by zero") from error


def _read(text: str) -> Answer:
    text = ALL_BUT.sub(r"(-∞,\1)∪(\1,∞)", text.strip())
    text = "(-∞,∞)" if text == "ℝ" else text
    if not text or "→" in text:
        raise Unreadable("empty, or more than one answer")
    items = [part for part in _split(text, ",;")[0] if part.strip()]
    if len(items) == 1 and "∪" in text:
        items = _split(text, "∪")[0]
    if len(items) == 1 and text.count("±") == 1:
        items = [text.replace("±", sign) for sign in "+-"]
    if len(items) > 1:
        return Answer("list", tuple(map(_read, items)), text)
    text = items[0] if items else text
    sides, relations = _split(text, RELATIONS)
    if relations:
        return _read_chain(text, sides, relations)
    if ":" in text and len(ratio := _split(text, ":")[0]) > 1:
        return Answer(":", tuple(map(_read, ratio)), text)
    if text[0] in OPEN and text[-1] in CLOSE and _is_balanced(text[1:-1]):
        items, brackets = [part for part in _split(text[1:-1], ",;")[0] if part], text[0] + text[-1]
        if len(items) == 1 and brackets in ("()", "[]", "{}"):
            return _read(items[0])
        parts = tuple(
            {part.text: part for part in map(_read, items)}.values()
            if brackets == "⦃⦄"
            else map(_read, items)
        )
        return Answer("set" if brackets == "⦃⦄" else brackets, parts, text)
    if match := MATRIX.fullmatch(text):
        rows = [(row, row.split("&")) for row in match[2].split("\\\\") if row]
        return Answer(
            "matrix", tuple(Answer("row", tuple(map(_read, cells)), row) for row, cells in rows), text
        )
    return _read_single(text)


def _split(text: str, at: str) -> tuple[list[str], str]:
    """Parts of a text outside all brackets, and the characters between them."""
    parts, between, depth = [""], "", 0
    for character in text:
        depth += (character in OPEN) - (character in CLOSE)
        if depth < 0:
            break
        if depth == 0 and character in at:
            parts, between = [*parts, ""], between + character
        else:
            parts[-1] += character
    if depth:
        raise Unreadable("brackets do not match")
    return parts, between


def _is_balanced(text: str) -> bool:
    try:
        return bool(_split(text, ""))
    except Unreadable:
        return False


def _read_chain(text: str, sides: list[str], relations: str) -> Answer:
    """Sides joined by relations; x = 3, x ∈ A and the inequalities of one variable as what they say of x."""
    if relations[0] in "≈=" and not sides[0]:
        return _read(text[1:])
    if relations in ("=", "∈") and NAME.fullmatch(sides[0]):
        name = sides[0] if VARIABLE.fullmatch(sides[0]) else ""
        return _read(sides[1])._replace(name=name, text=text)
    if relations == "≠" and VARIABLE.fullmatch(sides[0]):
        return _read(f"ℝ\\setminus⦃{sides[1]}⦄")._replace(name=sides[0])
    if set(relations) <= {">", "≥"}:
        sides, relations = sides[::-1], relations[::-1].replace(">", "<").replace("≥", "≤")
    if set(relations) <= {"<", "≤"} and len(sides) < 4:
        if len(sides) == 2 and VARIABLE.fullmatch(sides[0]):
            sides, relations = ["-∞", *sides], "<" + relations
        elif len(sides) == 2 and VARIABLE.fullmatch(sides[1]):
            sides, relations = [*sides, "∞"], relations + "<"
        if len(sides) == 3 and VARIABLE.fullmatch(sides[1]):
            left, right = "(" if relations[0] == "<" else "[", ")" if relations[1] == "<" else "]"
            return _read(f"{left}{sides[0]},{sides[2]}{right}")._replace(name=sides[1])
    return Answer("chain", tuple(map(_read, sides)), text, relations=relations)


def _read_single(text: str) -> Answer:
    """A text, a number with or without a unit, or algebra."""
    if re.fullmatch(r"(?:[ -]?\\text\{[A-Za-z]+\})+", text):
        letters = "".join(re.findall(r"\{(?!(?:an?|the)\})([A-Za-z]+)\}", text))
        return (
            Answer("text", letters.lower(), letters.lower())
            if len(letters) > 1
            else Answer("algebra", letters, letters)
        )
    if based := BASED.fullmatch(text):
        return Answer("based", based[1], f"{based[1]}_{based[2]}")
    # \frac{1}{2} as 1/2, so that 3\frac{1}{2} becomes 3 1/2
    if number := NUMBER.fullmatch(re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r" \1/\2", text)):
        return Answer("number", _number(*number.groups("")), text)
    if match := UNIT.fullmatch(text):
        inner, unit = _read(match[1]), _unit(match[2])
        if unit in SCALES and inner.kind == "number":
            return inner._replace(value=inner.value * SCALES[unit], text=text)
        if unit and unit not in SCALES and not re.search("sin|cos|tan", match[1]):
            return inner._replace(unit=unit, text=f"{inner.text} {unit}")
    return Answer("algebra", text, text)


def _unit(text: str) -> str:
    """A unit in one spelling, so that ``square meters`` is ``m^2``; "" for words that are none."""
    words = re.findall(r"[a-z]+|\^\d|/|°|%", re.sub(r"[{}]", "", text.lower().replace("\\text", " ")))
    if any(map(NO_UNIT.fullmatch, words)):
        return ""
    singular = [word if len(word) < 3 or word in UNITS else word.removesuffix("s") for word in words]
    unit = "".join(UNITS.get(word, word) for word in singular)
    return f"{unit[1:]}^{unit[0]}" if unit[1:] and unit[0] in "23" else unit


def _number(sign: str, whole: str, top: str, bottom: str, fixed: str, period: str, *rest: str) -> Fraction:
    """Value of what `NUMBER` matches."""
    mantissa, power, plain = rest
    value = Fraction(whole or plain or 0)
    if top:
        value += Fraction(top) / Fraction(bottom)
    elif period:
        decimals = len(fixed.partition(".")[2])
        value = Fraction(f"0{fixed}") + Fraction(int(period), (10 ** len(period) - 1) * 10**decimals)
    elif power:
        value = Fraction(mantissa or 1) * Fraction(10) ** int(power)
    return -value if sign == "-" else value


# ---- comparing --------------------------------------------------------------------------------

LOGARITHM = re.compile("ln|log|lg|exp")
ALWAYS = re.compile("frac|overline|text|alpha|beta|gamma|theta|lambda|mu|sigma|omega|phi")


def operations(latex: str) -> set[str]:
    """What an expression has beyond the four operations, powers and roots; sin stands for its family."""
    found = set(re.findall(r"[!|°]|\\frac\{(?:d|\\partial)", latex))
    for command in re.findall(r"\\([a-zA-Z]+)", latex):
        if not ALWAYS.fullmatch(command):
            is_family = FUNCTION.fullmatch(command) or LOGARITHM.fullmatch(command)
            found.add(("log" if LOGARITHM.fullmatch(command) else "sin") if is_family else command)
    return found


def same(gold: Answer, given: Answer, equal: Equal) -> bool:
    """Whether an answer is right. `equal` decides on algebra."""
    labels = [(gold.name, given.name), (gold.unit, given.unit)]
    if any(wanted and got and wanted != got for wanted, got in labels):
        return False
    if gold.text == given.text:
        return True
    if given.relations:
        return _same_chain(gold, given, equal)
    if gold.relations:  # an equation such as AB = 7, of which the answer gives the value
        is_value = gold.relations == "=" and not _is_constant(gold.value[0]) and _is_constant(gold.value[1])
        return is_value and same(gold.value[1], given, equal)
    if gold.kind == "number" == given.kind:
        return _same_number(gold, given)
    if "%" in (gold.unit, given.unit) and gold.unit != given.unit:
        return False
    if {gold.kind, given.kind} <= {"number", "algebra"}:
        worked_out = gold.kind == "algebra" and operations(given.text) <= operations(gold.text)
        return worked_out and equal(gold.value, given.value)
    if not isinstance(gold.value, tuple):
        return gold.kind == "based" and given.text == gold.value
    if gold.kind == "set" and len(gold.value) == 1 and not isinstance(given.value, tuple):
        return same(gold.value[0], given, equal)
    if gold.kind in ("list", "set"):
        return given.kind in ("list", "set") and _same_in_any_order(gold.value, given.value, equal)
    comparable = given.kind == gold.kind or (given.kind == "list" and gold.kind[0] in "([")
    if not comparable or len(gold.value) != len(given.value):
        return False
    return all(same(*pair, equal) for pair in zip(gold.value, given.value, strict=True))


def _same_in_any_order(gold: Sequence[Answer], given: Sequence[Answer], equal: Equal) -> bool:
    left = list(given)
    for wanted in gold:
        place = next((place for place, got in enumerate(left) if same(wanted, got, equal)), None)
        if place is None:
            return False
        del left[place]
    return not left


def _same_number(gold: Answer, given: Answer) -> bool:
    """Exactly equal numbers; per cent may be left out where the answer key has them."""
    wanted, got = [gold.value], given.value
    if gold.unit == "%" != given.unit:
        wanted.append(gold.value / 100)
    elif given.unit == "%" != gold.unit:
        got /= 100
    error = Fraction(0)
    if match := re.search(r"\.(\d+)(·10\^|e)?", gold.text, re.IGNORECASE):
        if match[2]:
            error = abs(gold.value) * ABOUT
        elif len(match[1]) >= ROUNDED_DECIMALS:
            error = Fraction(1, 2 * 10 ** len(match[1]))
    return any(abs(value - got) <= error for value in wanted)


def _is_constant(side: Answer) -> bool:
    """Whether a side is a number, as far as its text shows."""
    return side.kind == "number" or not re.search(r"[A-Za-z]", re.sub(r"\\[a-zA-Z]+", "", side.text))


def _same_chain(gold: Answer, given: Answer, equal: Equal) -> bool:
    """An answer with relations: an equation, or a value with what it is the value of.

    Its last side counts, but all sides without a variable must be equal: 3 = x = 7 says two things, of
    which a policy would soon offer many.
    """
    sides, relations = given.value, given.relations
    if len(relations) == 1 and (len(gold.relations) == 1 or (gold.name and gold.kind == "algebra")):
        halves = [_split(one.text, RELATIONS) for one in (gold, given)]
        return equal(*((left, relation, right) for (left, right), relation in halves))
    constants = [side for side in sides if _is_constant(side)]
    if not set(relations) <= {"=", "≈"}:
        return False
    if not _is_constant(gold):
        return not constants and same(gold, sides[-1], equal)
    error = ABOUT if "≈" in relations else Fraction(0)
    for one, other in itertools.pairwise(constants):
        if one.kind == other.kind == "number" and one.unit == other.unit:
            if abs(one.value - other.value) > error * abs(one.value):
                return False
        elif not equal(one.value, other.value, float(error)):
            return False
    return any(same(gold, side, equal) for side in (constants if error else constants[-1:]))
