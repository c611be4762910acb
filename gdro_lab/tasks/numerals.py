r"""The exact value of a written number, such as 1,200, \frac{1}{2}, 2 1/2, 0.\overline{3} or 7e-5.

What is not worked out is no number here: 3+4, 2^{10}, \sqrt{4}.
"""

import re
import unicodedata
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

LONGEST = 200  # characters of a text that is read as a number

# what a text says in Unicode, as LaTeX says it
SIGNS = {
    **{chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)},  # of full width
    **dict.fromkeys("−–﹣‐‑", "-"),
    **dict.fromkeys("\u200b\u2060\ufeff", ""),  # of no width
    "×": r"\times ",
    "·": r"\cdot ",
    **dict.fromkeys("\u2044\u2215", "/"),
    "’": "'",
    "π": r"\pi ",
    "∞": r"\infty ",
    "°": r"^\circ ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "≠": r"\ne ",
    "∪": r"\cup ",
    "±": r"\pm ",
    "≈": r"\approx ",
    "⟨": "(",
    "⟩": ")",
    "\u00a0": " ",
    **dict.fromkeys("\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f", r"\,"),
}
SIGNS |= {
    sign: re.sub(r"(\d)\u2044(\d)", r" \\frac{\1}{\2} ", unicodedata.normalize("NFKC", sign))
    for sign in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
}
IN_UNICODE = str.maketrans(SIGNS)
RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+")
ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|(\d+|[A-Za-z]|\\pi))")

# a space that separates thousands stands between a digit and exactly three digits; others are none
SPACING = r"(?<!\\)\\[,;: ](?!(?<=\d\\.)\d{3}(?!\d))|~(?!(?<=\d~)\d{3}(?!\d))"
# what changes the look of a text and not what it says
STYLE = re.compile(
    rf"{SPACING}|\\(?:text)?color(?:box)?\s*\{{[^{{}}]*\}}"
    r"|\\(?:text|mbox|underline|displaystyle|left|right|[lL]arge|[hH]uge|bf|boldsymbol|f?boxed"
    r"|math(?:rm|bf|bb)|text(?:bf|it|normal))(?![A-Za-z])"
    r"|\\[!()\[\]]|\\?\$|\\q?quad(?![A-Za-z])"
)
GROUP = re.compile(r"(?<![\^_A-Za-z}\]])\{([^{},]*)\}(?!\{)")  # braces that are not arguments
# only of numbers: without brackets (x+1)/2 would become x+1/2
PART = r"\s*(?:\{([-+]?[\d.,\s]+)\}|(\d))"
FRACTION = re.compile(rf"\\[dtc]?frac{PART}{PART}", re.ASCII)
REPEATING = re.compile(
    r"(\d*)\.(\d*)(?:\\(?:overline|bar|dot)\s*(?:\{(\d+)\}|(\d))|\((\d+)\))", re.ASCII
)
DIGITS = r"(?:\d{1,3}(?:(?:,|\{,\}|\\,|\\ |[ ~])\d{3})+(?!\d)|\d+)"  # perhaps in thousands
# 1.250,50 and 4,5 have a decimal comma; 4,500 is in thousands, and "4, 5" a list
COMMA = r"(?:\d{1,3}(?:\.\d{3})+|\d+)(?:,|\{,\})\d+"
PLAIN = rf"(?:{DIGITS}(?:\.\d*)?(?![\d.,{{]*\d)|{COMMA}|\.\d+)"
TEN_TO_THE = r"10\s*(?:\^|\*\*)\s*(?:[{(]\s*([-+]?\s*\d{1,3})\s*[})]|([-+]?\d{1,3}))"
NUMBER = re.compile(
    rf"([-+]?)\s*(?:(\d+)\s+(?=\d+\s*/))?"  # the sign, and the whole part of a mixed number
    rf"(?:({PLAIN})(?:\s*/\s*([-+]?\s*{PLAIN})|[eE]([-+]?\d{{1,3}}))?"
    rf"(?:\s*(?:\\times|\\cdot|\*|[xX])\s*{TEN_TO_THE})?|{TEN_TO_THE})",
    re.ASCII,
)
ALONE = re.compile(r"([-−]?)\s*\$?\s*((?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d*)?|\.\d+)", re.ASCII)
QUOTIENT = re.compile(r"([-+]?)\s*\\[dtc]?frac\s*\{([^/]*)\}\s*\{([^/]*)\}")  # of powers of ten
FLOAT_DIGITS = 15  # of a decimal that a computer has printed: it is as exact as floating point


@dataclass(frozen=True)
class Number:
    """A written number."""

    value: Fraction
    precision: float = 0.0
    """How far its last decimal may be off, relative to it, if it has as many as a float."""

    def part(self, divisor: int) -> "Number":
        """This number divided by an integer."""
        return Number(self.value / divisor, self.precision)

    def is_met_by(self, other: "Number") -> bool:
        """Whether another number is the same, up to what a printed float may be off."""
        tolerance = max(self.precision, other.precision)
        return abs(self.value - other.value) <= Fraction(tolerance) * abs(self.value)


def in_latex(text: str) -> str:
    """The text with LaTeX in place of Unicode's signs, such as ½, √3, π and 2516₈."""
    text = ROOT.sub(lambda match: rf"\sqrt{{{match[1] or match[2]}}}", text)
    text = RAISED.sub(lambda match: f"^{{{unicodedata.normalize('NFKC', match[0])}}}", text)
    text = re.sub(r"\^?\s*\{?\s*\\degree(?![A-Za-z])\s*\}?", r"^\\circ ", text)
    return text.translate(IN_UNICODE)


def clean(text: str) -> str:
    """A text in LaTeX without commands of style, and with fractions of numbers as 1/2."""
    if len(text) > LONGEST:
        return text.strip()
    text = STYLE.sub(" ", text.replace("\\!", ""))
    text = REPEATING.sub(_as_fraction, text)
    before = ""
    while text != before:  # from the inside out
        before = text
        text = GROUP.sub(r" \1 ", FRACTION.sub(r" \1\2/\3\4 ", text))
    return re.sub(r"\s+", " ", text).strip().removesuffix(".").strip()


def _as_fraction(match: re.Match[str]) -> str:
    """0.1\\overline{6} as 1/6."""
    whole, fixed, *periods = (group or "" for group in match.groups())
    period = "".join(periods)
    value = int(whole + fixed + period) - int((whole + fixed) or 0)
    return f" {Fraction(value, 10 ** len(fixed) * (10 ** len(period) - 1))} "


def number_of(text: str) -> Number | None:
    """The number that a cleaned text is; None for any other text."""
    # (1,200) is a number, and (2,0) a point
    if text.startswith("(") and text.endswith(")") and not re.search(r",(?!\d{3}(?!\d))", text):
        text = text[1:-1].strip()
    if len(text) > LONGEST:
        return None
    if match := QUOTIENT.fullmatch(text):
        above, below = number_of(match[2].strip()), number_of(match[3].strip())
        if above is None or below is None or below.value == 0:
            return None
        return Number(above.value / below.value * (-1 if match[1] == "-" else 1))
    match = NUMBER.fullmatch(text)
    if match is None:
        return None
    sign, whole, top, bottom, *powers = match.groups()
    power = next((int(re.sub(r"\s", "", power)) for power in powers[1:] if power), 0)
    value = _decimal(top or "1") * Fraction(10) ** (power + int(powers[0] or 0))
    if bottom:
        divisor = _decimal(bottom)
        if divisor == 0:
            return None
        value /= divisor
    value += int(whole or 0)
    digits = len(re.sub(r"\D", "", top or "").strip("0"))
    is_float = value.denominator > 1 and bottom is None and digits >= FLOAT_DIGITS
    precision = max(4e-16, 10.0 ** (1 - digits)) if is_float else 0.0
    return Number(-value if sign == "-" else value, precision)


def _decimal(text: str) -> Fraction:
    if re.fullmatch(COMMA, text, re.ASCII) and not re.fullmatch(DIGITS, text, re.ASCII):
        text = re.sub(r"[{}]", "", text).replace(".", "").replace(",", ".")
    return Fraction(re.sub(r"[^\d.-]", "", text))


def plain_number(text: str) -> str | None:
    """A text that is a number without thousands separators and idle zeros; None for another.

    `1,450` becomes `1450` and `145.0` becomes `145`.
    """
    match = ALONE.fullmatch(text.strip())
    if match is None:
        return None
    digits = f"{Decimal(match[2].replace(',', '')):f}"
    if "." in digits:
        digits = digits.rstrip("0").rstrip(".")
    return f"-{digits}" if match[1] and digits != "0" else digits


# Numbers in a text. A word, a colon or the end of a sentence ends a number; so "50-8 = 42" is one
# piece, of which the right side counts, and "[5, 6]" one that is no number.
TAIL = 120  # characters before the last digit of a text that its last number may reach back
# A digit right behind letters is part of the word: CO2, cm2.
WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|['’][A-Za-z]+"
    r"|(?<![\\A-Za-zÀ-ӿ])(?:(?:Rs|No)\.(?=\d)|[A-Za-zÀ-ӿ]{2,}\d*|[^\W\d_]{2,})"
    r"|(?<!\S)[aAI](?!\S)|:(?!\d)|(?<!\d):|\.(?=\s|$)|,(?=\s|$)(?!\s*[-$\d])"
    r"|[#;?!|。、→⇒∴∎■✓✔✅\U0001f300-\U0001faff\ufe0f]+"
)
# between words, and no sign, as it is in "is - 5"
DASH = re.compile(r"([A-Za-z:])(?:(?<!\bis)(?<!\bare)(?<!\bequals)\s*[-−–]|\s*—)\s+")
BULLET = re.compile(r"^\s*[-−–]\s+", re.MULTILINE)  # where several lines begin so
UNIT_LETTER = re.compile(r"(?<=\d)\s+[mgslLhKCFNJWV](?:\s*/\s*[mgslLh]?)?$")
POWER_OF_UNIT = re.compile(
    r"(?<![A-Za-z\\])((?:[cdkm]?m|in|ft|yd|mi|s)\s*)"
    r"(?:\^\s*(?:\{\s*-?[123]\s*\}|[23])|(?<=\S)[23](?![\d.]))"
)
CELSIUS = re.compile(r"\s*\^\s*\{?\s*\\circ\s*\}?\s*[CFK]?$")
DECORATION = '*€£¥₹"~` '
# beside a number, these make it another number or none
NUMBER_WORD = (
    "hundreds?|thousands?|millions?|billions?|trillions?|bn|dozens?|lakhs?|crores?"
    "|hundert|tausend|million(?:en)?|milliarden?|billionen|mio|mrd|mille|milliers?|milliards?"
    "|mil|millón|millones|milhão|milhões|mila|milioni|milione|miliardi"
    "|тысяч[аи]?|тыс|миллион(?:а|ов)?|млн|миллиард(?:а|ов)?|млрд|ribu|juta"
    "|[百千万亿兆萬億백천만억조]"
    "|half|halves|thirds?|fourths|fifths|tenths|hundredths|point|minus|negative|base"
    "|squared|cubed|factorial"
)
FUNCTION = (
    "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|exp|ln|log|lg|sqrt|min|max|gcd|lcm"
    "|det|mod|pi|infty|infinity|inf|alpha|beta|gamma|delta|epsilon|theta|lambda|mu|rho|sigma|tau"
    "|phi|omega"
)
STAND_IN = "1234567"  # for what is in a box
BOX = re.compile(r"\\f?boxed\s*\{[^{}]*\}")
BINDS_BEFORE = re.compile(r"\d(?:\s+:\s*|:)$")
BINDS_AFTER = re.compile(r":[\d\\]|\s+:\s*[\d\\]|\s*\|\s*[-+*/^]")
RELATION = re.compile(
    r"[=<>]|\\(?:approx|sim|simeq|cong|equiv|[lg]eq?(?:slant)?|[lg]t|neq?|to|in|implies|iff"
    r"|therefore|[A-Za-z]*arrow|pmod|tag|checkmark|blacksquare|square)(?![A-Za-z])"
)
BRACKETS = r" .,;()[]{}\+"
UNIT_SIGN = re.compile(
    r"(?:\\mu\s*)?\\(?:mathrm|text|mbox|rm|operatorname)\s*\{[~\s]*\\?[A-Za-z][~\s]*\}"
    r"|\\(?:AA|Omega)(?![A-Za-z])"
)
NO_NUMBER = re.compile(rf"{NUMBER_WORD}|pi|sqrt|exp|ln|log|sin|cos|tan|mod")


def read_last_number(text: str) -> str | None:
    """The last number of a text, as `number_of` reads it, perhaps with a percent sign.

    None where what stands last is none: `\\sqrt{2}`, `[5,6]`, `2^4`, 4 million, 5-3.
    """
    text = text[-20_000:]
    last = max((match.end() for match in re.finditer(r"[\d½⅓⅔¼¾]", text)), default=0)
    tail = text[max(0, last - TAIL) : last + TAIL // 2]
    if last > TAIL:
        tail = re.sub(r"^\S*\s", "", tail)
    found = _numbers(tail)
    if not found:
        return None
    before, number, after = found[-1]
    return _checked(before[-1:], number, after[:1])


def is_side(before: str, after: str) -> bool:
    """Whether a number between these texts would be a side of a formula, perhaps with a unit."""
    before = BOX.sub(" 0 ", before).replace("\\!", "").replace("{:}", ":")
    if BINDS_BEFORE.search(before) or BINDS_AFTER.match(after):
        return False
    after = UNIT_SIGN.sub(" ; ", after)
    before = re.sub(r"(?<=[^\W\d_])$", " ", before)
    for words, piece, more in _numbers(before + STAND_IN + after):
        for side in RELATION.split(piece):
            if STAND_IN in side:
                number = _checked(words[-1:], side.strip(BRACKETS), more[:1])
                return number in (STAND_IN, STAND_IN + "%")
    return False


def _numbers(text: str) -> list[tuple[list[str], str, list[str]]]:
    """The pieces of a text that have digits, each with the words before and after it."""
    if len(BULLET.findall(text)) > 1:
        text = BULLET.sub("", text)
    text = DASH.sub(r"\1 ", text)
    text = clean(in_latex(text).replace("\n", " ; "))
    text = POWER_OF_UNIT.sub(r"\1", text)
    words = [word.lower().rstrip("0123456789") for word in WORD.findall(text)]
    pieces = WORD.split(text)
    return [
        (words[:place], piece, words[place:])
        for place, piece in enumerate(pieces)
        if re.search(r"\d", piece)
    ]


def _checked(before: list[str], piece: str, after: list[str]) -> str | None:
    """The spelling of a number with these words beside it; None where it is no number."""
    if any(map(NO_NUMBER.fullmatch, [*before, *after])):
        return None
    piece = piece.rpartition("=")[2].strip(DECORATION)
    if ("(" in piece) != (")" in piece):
        piece = piece.strip("()")
    piece = CELSIUS.sub("", UNIT_LETTER.sub("", piece.rstrip()).rstrip(".,/ "))
    bare, signs = re.subn(r"\s*\\?%$", "", piece)
    bare = bare.strip(DECORATION)
    percent = "%" if signs else ""
    if number_of(bare) is None:
        return None
    return (plain_number(bare) or bare.strip("()")) + percent
