"""What an answer says, and when two answers say the same.

An answer is read from its LaTeX into a number, a set, an interval and so on; what an answer key has in
digits is decided here, exactly and at once. Whatever needs algebra is handed to a function ``equal``
(`gdro.tasks.verify` has one, by sympy in another process). docs/rewards.md lists the rules with their cases.

One rule decides most: **an answer must be worked out as far as its answer key**. For the key 1024, 2^{10} is
wrong, as ``\\sqrt{2}``, ``\\sin`` or ``\\sum`` are where the key has a number. Otherwise a policy soon learns
to put the question itself into the box.
"""

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

LONGEST = 1000  # characters; nobody writes a longer answer
ROUNDED_DECIMALS = 6  # an answer key with as many is a rounded value
MEASURED = Fraction(1, 100)  # error allowed where the answer key is a measured value such as 1.6 × 10^{-19}
LOOSE = Fraction(1, 100)  # what ≈ may stand between

Equal = Callable[..., bool]  # of two LaTeX texts, or of two pairs (left, right) with a relation


class Unreadable(ValueError):
    """A text that is no answer."""


class Answer(NamedTuple):
    """An answer as read.

    kind: "number", "based" (digits in a base), "text", "algebra", "list", "set", "chain" (sides joined by
        relations), "matrix", or the two brackets of a tuple or interval, such as "[)".
    value: a Fraction, a text, LaTeX, or a tuple of answers; of a chain, sides and relations.
    text: the whole answer in one spelling; equal texts are equal answers.
    unit: of a number, "" without one. name: what it is the value of, as the x of x = 3.
    """

    kind: str
    value: Any
    text: str
    unit: str = ""
    name: str = ""


# ---- one spelling -----------------------------------------------------------------------------

# signs that decide the structure become one character each, so that brackets can be counted
SIGNS = {
    "≤": r"\\leqslant|\\leq|\\le|<=",
    "≥": r"\\geqslant|\\geq|\\ge|>=",
    "<": r"\\lt",
    ">": r"\\gt",
    "≠": r"\\not\s*=|\\neq|\\ne",
    "≈": r"\\approx|\\simeq",
    "∈": r"\\in",
    "→": r"\\(?:long)?(?:right|Right|left|Left|leftright|Leftright)arrow|\\to|\\implies|\\iff|\\mapsto|⇒|⟹",
    "∪": r"\\cup",
    "±": r"\\pm",
    "⦃": r"\\\{|\\lbrace",
    "⦄": r"\\\}|\\rbrace",
    "°": r"\^\s*\{?\s*\\circ\s*\}?|\^\s*\{°\}|\\degree",
    "∞": r"\\infty",
    "%": r"\\%",
    "π": r"\\pi",
    "-": "−|–",
    "·": r"\\cdot|\\times|×|⋅|\*",
    "√": r"\\sqrt",
    ":": r"\\colon",
    "|": r"\\[lr]?vert|\\mid",
    "⦃⦄": r"\\emptyset|\\varnothing",
    "ℝ": r"\\mathbb\s*\{?R\}?|\\R",
    "^\\prime": "'",
}
BACK = {"π": r"\pi ", "·": r"\cdot ", "√": r"\sqrt", "∞": r"\infty ", "°": r"^{\circ}", "ℝ": r"\mathbb{R}"}
SPACE = re.compile(r"(?<!\\)\\[,;: ]|~|\\q?quad|\\hspace\{[^{}]*\}|\s+")
DROPPED = re.compile(
    r"(?<!\\)\\!|\\(?:displaystyle|textstyle|limits|[lL]arge|LARGE|[hH]uge|boxed|fbox|(?:left|right)(?![a-zA-Z])\.?|[bB]igg?[lr]?(?![a-zA-Z]))"
    r"|(?<!\\)\$|(?<!\\)\\[()\[\]]|&(?==)"
)
FONT = re.compile(r"\\(?:mathbf|boldsymbol|bm|mathit|mathsf|bf)\s*\{([^{}]*)\}")
WORDS = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mbox|operatorname|rm)\s*\{([^{}]*)\}")
BARE_WORD = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{2,}")
LABEL = re.compile(r"^\s*(?:\\text\{(?:the|final|answer|is|equals)\}[: ]*)+(?=.)", re.IGNORECASE)
FUNCTIONS = "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log exp".split()
ALIASES = {
    **dict.fromkeys(("percent", "percentage"), "%"),
    **{"dollar": "usd", "euro": "eur", "cent": "cents", "°": "degree", "deg": "degree", "hr": "hour"},
    **{"meter": "m", "metre": "m", "centimeter": "cm", "centimetre": "cm", "kilometer": "km", "mile": "mi"},
    **{"millimeter": "mm", "kilometre": "km", "foot": "ft", "feet": "ft", "inch": "in", "inches": "in"},
    **{"gram": "g", "kilogram": "kg", "liter": "l", "litre": "l", "second": "s", "sec": "s", "minute": "min"},
    **{"h": "hour", "mph": "mi/hour", "kph": "km/hour", "yard": "yd", "pound": "lb", "cubic": "cube"},
}
SHORT = {"cm", "km", "mm", "kg", "ft", "mi", "mph", "usd", "eur", "or", "and", "sec", "min", "not", "per", "deg", "no"}
SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12}
# words that make another answer of a number
NO_UNITS = set("not no half dozen squared cubed factorial to mod plus minus times if when unless for but".split())


def spell(latex: str) -> str:
    """One spelling for texts that differ in typesetting alone; words end up in ``\\text{…}``."""
    text = re.sub(r"\bnp\.(?=[a-z])", "", latex)
    text = DROPPED.sub("", text)
    for sign, spellings in SIGNS.items():
        text = re.sub(rf"(?:{spellings})(?![a-zA-Z])" if "\\" in spellings else spellings, lambda _, s=sign: s, text)
    text = re.sub(r"\\[dtc]frac", r"\\frac", FONT.sub(r"\1", text))
    text = WORDS.sub(lambda words: re.sub(r"([A-Za-z]+)", r"\\text{\1}", words[1]), text)
    text = re.sub(r"(?:\\\$|\$)\s*(-?[\d.,{}]+)", r"\1\\text{dollar}", SPACE.sub(" ", text))
    text = re.sub(r"€\s*([\d.,]+)", r"\1\\text{euro}", text)
    everything_is_words = re.fullmatch(r"[A-Za-z ]*[A-Za-z]{3}[A-Za-z ]*", text.strip(" ."))

    def mark(match: re.Match) -> str:
        word = match[0].lower()
        if word in FUNCTIONS:
            return "\\" + word
        known = word in SHORT or len(word) > 3 or everything_is_words
        return f"\\text{{{match[0]}}}" if known else match[0]

    text = LABEL.sub("", BARE_WORD.sub(mark, text))
    text = re.sub(r"(\\frac|√)\s*(\w|π)", r"\1{\2}", text)
    text = re.sub(r"(\\frac\s*\{[^{}]*\})\s*(\w|π)", r"\1{\2}", text)
    # 1,000 is a number, but (1,200) a pair
    comma = r"\{,\}| " if re.search(r"[(\[⦃]", text) else r"\{,\}|,| "
    text = re.sub(
        rf"(?<![\d.,])\d{{1,3}}(?:(?:{comma})\d{{3}})+(?!\d)", lambda m: re.sub(r"\D", "", m[0]), text
    )
    text = re.sub(r"(?<=[A-Za-z\d]) (?=[A-Za-z\d])", "␣", text)  # the spaces that may mean something
    return re.sub(r"[.,;:\\]+$", "", text.replace(" ", "").strip("␣")).replace("␣", " ")


# ---- reading ----------------------------------------------------------------------------------

OPEN, CLOSE = "([{⦃", ")]}⦄"
DECIMAL = r"(?:\d+(?:\.\d*)?|\.\d+)"
NUMBER = re.compile(
    rf"""(?P<sign>[+-]?)(?:
    (?P<whole>\d+)(?:\\frac\{{(?P<up>\d+)\}}\{{(?P<low>\d+)\}}|[ ](?P<up2>\d+)/(?P<low2>\d+))
    |\\frac\{{(?P<top>[+-]?{DECIMAL})\}}\{{(?P<bottom>[+-]?{DECIMAL})\}}
    |(?P<over>{DECIMAL})/(?P<under>-?{DECIMAL})
    |(?P<before>\d*)\.(?P<fixed>\d*)\\(?:overline|bar|dot)\{{(?P<period>\d+)\}}
    |(?:(?P<mantissa>{DECIMAL})·)?10\^\{{?(?P<power>[+-]?\d{{1,3}})\}}?
    |(?P<digits>{DECIMAL})[eE](?P<exponent>[+-]?\d{{1,3}})
    |(?P<plain>{DECIMAL}))""",
    re.VERBOSE | re.ASCII,
)
BASED = re.compile(r"([0-9A-F]+)_\{?(\d+)\}?")
UNIT = re.compile(r"(.+?)((?:[ ]?\\text\{[A-Za-z]+\}(?:\^\{?[23]\}?)?|[/.-](?=\\text)|°|%)+)")
MATRIX = re.compile(r"\\begin\{([pbv]?matrix|array)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}")
VARIABLE = re.compile(r"[A-Za-z]")
NAME = re.compile(r"[A-Za-z](?:_\{?\w+\}?)?(?:\([\w,]+\))?")  # x, a_n, f(x)
ALL_BUT = re.compile(r"ℝ\\setminus⦃([^,]+)⦄")


def read(latex: str) -> Answer:
    """Read an answer; `Unreadable` for what is none."""
    if len(latex) > LONGEST:
        raise Unreadable("too long")
    try:
        return _read(re.sub(r"\\text\{(?:or|and)\}|\\lor|\\vee", ";", spell(latex)))
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
    sides, relations = _split(text, "=<>≤≥≠≈∈")
    if relations:
        return _read_chain(text, sides, "".join(relations))
    if text[0] in OPEN and _split(text[1:], CLOSE, only_below=0)[0][0] == text[1:-1]:
        return _read_brackets(text)
    if match := MATRIX.fullmatch(text):
        rows = tuple(tuple(map(_read, row.split("&"))) for row in match[2].split("\\\\") if row.strip())
        return Answer("matrix", rows, text)
    return _read_single(text)


def _split(text: str, at: str, only_below: int | None = None) -> tuple[list[str], list[str]]:
    """Parts of a text outside all brackets, and the characters between them."""
    parts, between, depth = [""], [], 0
    for character in text:
        if character in at and depth == (only_below or 0) and (only_below is None or len(parts) == 1):
            parts.append("")
            between.append(character)
            continue
        depth += (character in OPEN) - (character in CLOSE)
        if depth < 0 and only_below is None:
            raise Unreadable("a bracket is closed that was not opened")
        parts[-1] += character
    if depth and only_below is None:
        raise Unreadable("a bracket is not closed")
    return parts, between


def _read_brackets(text: str) -> Answer:
    items = [_read(part) for part in _split(text[1:-1], ",;")[0]] if text != "⦃⦄" else []
    brackets = text[0] + text[-1]
    if brackets == "⦃⦄":
        return Answer("set", tuple({item.text: item for item in items}.values()), text)
    if len(items) == 1 and brackets in ("()", "[]", "{}"):
        return items[0]
    return Answer(brackets, tuple(items), "".join([text[0], ",".join(i.text for i in items), text[-1]]))


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
    return Answer("chain", (tuple(map(_read, sides)), relations), text)


def _read_single(text: str) -> Answer:
    """A number, with or without a unit, a text, or algebra."""
    if words := re.fullmatch(r"(?:[ -]?\\text\{[A-Za-z]+\})+", text):
        letters = "".join(re.findall(r"\{(?!(?:an?|the)\})([A-Za-z]+)\}", words[0]))
        return Answer("text", letters.lower(), letters.lower()) if len(letters) > 1 else _read_single(letters)
    if based := BASED.fullmatch(text):
        return Answer("based", (based[1].lstrip("0"), based[2]), f"{based[1]}_{based[2]}")
    unit = ""
    if match := UNIT.fullmatch(text):
        words = [word.lower() for word in re.findall(r"\{([A-Za-z]+)\}", match[2])]
        if not NO_UNITS & set(words) and not re.search(r"\\(?:arc)?(?:sin|cos|tan|cot)", match[1]):
            inner, unit = _read(match[1]), _unit(match[2])
            scale = SCALES.get(unit)
            if inner.kind == "number" and scale:
                return Answer("number", inner.value * scale, text)
            return inner._replace(unit=unit, text=f"{inner.text} {unit}")
    if number := NUMBER.fullmatch(text):
        value = _number(number.groupdict())
        return Answer("number", value, text)
    return Answer("algebra", text, text)


def _unit(text: str) -> str:
    """A unit in one spelling: ``square meters`` and ``m^2`` are the same."""
    unit = text.replace("per}cent", "percent}").replace("\\text{per}\\text{cent}", "%").replace("\\text{per}", "/")
    words = re.findall(r"[A-Za-z]+|\^\{?\d|/|°|%", unit.replace("\\text", ""))
    named = []
    for word in words:
        low = word.lower().replace("{", "")
        low = low if low in ALIASES or len(low) < 3 else low.removesuffix("s")
        named.append(ALIASES.get(low, low))
    unit = "".join(named)
    for word, power in (("square", "^2"), ("cube", "^3"), ("sq", "^2")):
        if unit.startswith(word) and unit != word:
            unit = unit.removeprefix(word) + power
    return unit


def _number(part: dict[str, str | None]) -> Fraction:
    """Value of a match of `NUMBER`."""
    if whole := part["whole"]:
        value = int(whole) + Fraction(int(part["up"] or part["up2"] or 0), int(part["low"] or part["low2"] or 0))
    elif part["top"] or part["over"]:
        value = _decimal(part["top"] or part["over"]) / _decimal(part["bottom"] or part["under"])
    elif period := part["period"]:
        fixed = part["fixed"] or ""
        value = _decimal(f"{part['before'] or 0}.{fixed or 0}")
        value += Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(fixed))
    elif part["power"]:
        value = _decimal(part["mantissa"] or "1") * Fraction(10) ** int(part["power"])
    else:
        value = _decimal(part["plain"] or part["digits"]) * Fraction(10) ** int(part["exponent"] or 0)
    return -value if part["sign"] == "-" else value


def _decimal(text: str | None) -> Fraction:
    return Fraction((text or "").strip("+").removesuffix(".") or "0")


# ---- comparing --------------------------------------------------------------------------------

TRIGONOMETRY = set(FUNCTIONS[:12])
LOGARITHMS = set(FUNCTIONS[12:]) | {"lg"}
ALWAYS = {"frac", "overline", "text", "alpha", "beta", "theta", "lambda", "mu", "sigma", "omega", "phi"}


def operations(latex: str) -> set[str]:
    """What an expression has beyond the four operations, powers and roots."""
    found = set(re.findall(r"\\([a-zA-Z]+)", latex)) | set(re.findall(r"[!|°]|prime|\\frac\{d", latex))
    for family in (TRIGONOMETRY, LOGARITHMS):
        if found & family:
            found |= family
    return found - ALWAYS


def in_digits(answer: Answer) -> bool:
    """Whether an answer key needs no algebra to be understood."""
    if isinstance(answer.value, tuple) and answer.kind not in ("chain", "matrix", "based"):
        return all(map(in_digits, answer.value))
    return answer.kind in ("number", "text", "based") or answer.text in ("∞", "-∞", "+∞")


def same(gold: Answer, given: Answer, equal: Equal) -> bool:
    """Whether an answer is right. `equal` decides on algebra."""
    if (gold.name and given.name and gold.name != given.name) or not _units_agree(gold, given):
        return False
    if gold.text == given.text:
        return True
    if given.kind == "chain":
        return _same_chain(gold, given, equal)
    if gold.kind == "chain":  # an equation such as f(2) = 7, of which the answer gives the value
        sides, relations = gold.value
        return set(relations) == {"="} and _constant(sides[0]) < _constant(sides[-1]) and same(sides[-1], given, equal)
    if gold.kind == "number" and given.kind == "number":
        return _same_number(gold, given)
    if {gold.kind, given.kind} <= {"number", "algebra"}:
        worked_out = gold.kind == "algebra" and operations(given.text) <= operations(gold.text)
        return worked_out and equal(gold.value, given.value)
    if gold.kind == "based":
        return given.value == gold.value or given.text == gold.value[0]
    if gold.kind == "matrix" == given.kind:
        rows = zip(gold.value, given.value, strict=False)
        shapes = [list(map(len, answer.value)) for answer in (gold, given)]
        return shapes[0] == shapes[1] and all(_in_order(wanted, got, equal) for wanted, got in rows)
    if gold.kind in ("list", "set"):
        if given.kind not in ("list", gold.kind) and not (gold.kind == "list" and given.kind == "set"):
            return gold.kind == "set" and len(gold.value) == 1 and same(gold.value[0], given, equal)
        return _in_any_order(gold.value, given.value, equal)
    if gold.kind[0] in "([":
        return given.kind in ("list", gold.kind) and _in_order(gold.value, given.value, equal)
    return False


def _in_order(gold: tuple, given: tuple, equal: Equal) -> bool:
    return len(gold) == len(given) and all(same(*pair, equal) for pair in zip(gold, given, strict=True))


def _in_any_order(gold: tuple, given: tuple, equal: Equal) -> bool:
    left = list(given)
    for wanted in gold:
        place = next((place for place, got in enumerate(left) if same(wanted, got, equal)), None)
        if place is None:
            return False
        del left[place]
    return not left


def _units_agree(gold: Answer, given: Answer) -> bool:
    """A unit may be left out or added, but not exchanged; per cent are part of the number."""
    return not gold.unit or not given.unit or gold.unit == given.unit


def _same_number(gold: Answer, given: Answer) -> bool:
    wanted, got = [gold.value], given.value
    if gold.unit == "%" != given.unit:
        wanted.append(gold.value / 100)
    elif given.unit == "%" != gold.unit:
        got /= 100
    error = Fraction(0)
    if match := re.search(r"\.(\d+)(·10\^|e)?", gold.text, re.IGNORECASE):
        if match[2]:
            error = abs(gold.value) * MEASURED
        elif len(match[1]) >= ROUNDED_DECIMALS:
            error = Fraction(1, 2 * 10 ** len(match[1]))
    return any(abs(value - got) <= error for value in wanted)


def _constant(side: Answer) -> bool:
    """Whether a side is a number, as far as it can be told without algebra."""
    return side.kind == "number" or not re.search(r"[A-Za-z]", re.sub(r"\\[a-zA-Z]+", "", side.text))


def _same_chain(gold: Answer, given: Answer, equal: Equal) -> bool:
    """An answer with relations: an equation, or a value with what it is the value of.

    Its last side counts, but all sides without a variable must be equal: 3 = x = 7 says two things, of
    which a policy would soon offer many.
    """
    sides, relations = given.value
    if gold.kind == "chain" or (gold.name and gold.kind == "algebra"):
        theirs = gold.value[1] if gold.kind == "chain" else "="
        if len(theirs) == len(relations) == 1:
            return equal(_halves(gold.text), _halves(given.text))
    if not set(relations) <= {"=", "≈"}:
        return False
    constants = [side for side in sides if _constant(side)]
    if not _constant(gold):
        return not constants and same(gold, sides[-1], equal)
    if not constants:
        return False
    for one, other in zip(constants, constants[1:], strict=False):
        error = LOOSE if "≈" in relations else 0
        if one.kind == other.kind == "number" and one.unit == other.unit:
            if abs(one.value - other.value) > error * abs(one.value):
                return False
        elif not equal(one.value, other.value, error):
            return False
    stated = constants if "≈" in relations else constants[-1:]
    return any(same(gold, side, equal) for side in stated)


def _halves(text: str) -> tuple[str, str, str]:
    sides, relations = _split(text, "=<>≤≥≠≈∈")
    return sides[0], relations[0], sides[1]
