r"""What a mathematical text is made of: lists, brackets, sides of an equation, words.

Texts are in LaTeX, as `standard` makes them.
"""

import re

from gdro_lab.tasks.numerals import FUNCTION, SPACING, clean, in_latex
from gdro_lab.tasks.quantities import TEXT

BOLD = re.compile(r"\*\*([^*]+)\*\*")
DOLLAR = re.compile(r"(?<!\\)\$")
SIZES = re.compile(r"\\(?:left|right|[bB]igg?[lrm]?)(?![A-Za-z])")
REPLACED = {
    r"\dfrac": r"\frac",
    r"\tfrac": r"\frac",
    r"+\infty": r"\infty",
    r"\varnothing": r"\emptyset",
}
STYLED = re.compile(r"\\(?:text(?:bf|it|rm|sf|normal)?|mbox|math(?:rm|bf|it|sf))\s*\{([^{}]*)\}")
# without braces: \frac\pi2, \sqrt[3]4
FIRST_ARGUMENT = re.compile(r"(\\(?:[dtc]?frac|binom|sqrt(?:\[[^][]*\])?)(?![A-Za-z]))\s*(\\pi|\w)")
SECOND_ARGUMENT = re.compile(r"(\\(?:[dtc]?frac|binom)\s*\{[^{}]*\})\s*(\\pi(?![A-Za-z])|\w)")

COMMA = (
    r"[,;]?\s*(?:\\(?:text|mbox)\s*\{\s*,?\s*(?:and|or)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])"
    r"|\\(?:l?or|land|vee|wedge)(?![A-Za-z]))|[,;]"
)
OR = r"\\(?:text|mbox)\s*\{\s*or\s*\}|(?<![A-Za-z\\])or(?![A-Za-z])|\\(?:l?or|vee)(?![A-Za-z])"
CUP = r"\\cup(?![A-Za-z])"
EQUALS = r"(?<![<>!:\\])=(?![<>=])"
PLUS_MINUS = re.compile(r"\\pm(?![A-Za-z])")
VECTOR = re.compile(r"\\begin\{[pbv]?matrix\}(.*)\\end\{[pbv]?matrix\}", re.DOTALL)
BRACKET = re.compile(r"\\.|[()\[\]{}]", re.DOTALL)
OPENING = ("(", "[", "{", r"\{")
CLOSING = (")", "]", "}", r"\}")
RELATION = re.compile(r"[<>]=?|!=|\\(?:leqslant|leq?|geqslant|geq?|neq?|lt|gt)(?![A-Za-z])")
UNKNOWN = re.compile(r"\\?[A-Za-z]+(?:_(?:\w|\{\w+\}))?")

# subscripts, and what is no text: the kind of a matrix
NO_WORDS = re.compile(
    rf"\\(?:begin|end)\{{[^{{}}]*\}}"
    rf"|_\s*(?:\{{\s*)?{TEXT}\{{[^{{}}]*\}}(?:\s*\}})?|_\s*\{{[^{{}}]*\}}"
)
WORD = re.compile(r"(?<![\\A-Za-z])[^\W\d_]{3,}|\b[Nn]o\b")
SPACES = re.compile(r"(?<!\d)\s+|\s+(?!\d)")


def standard(text: str) -> str:
    """The text in LaTeX, without signs of size and emphasis, and with one name for each sign."""
    text = BOLD.sub(r"\1", in_latex(text).strip()).lstrip("= ")
    if len(DOLLAR.findall(text)) % 2 == 0:  # those around mathematics
        text = DOLLAR.sub(" ", text).strip()
    text = FIRST_ARGUMENT.sub(r"\1{\2}", text)
    text = SECOND_ARGUMENT.sub(r"\1{\2}", text)
    text = re.sub(SPACING, " ", SIZES.sub("", text)).strip()
    if match := STYLED.fullmatch(text):
        text = match[1].strip()
    for old, new in REPLACED.items():
        text = text.replace(old, new)
    return text.strip()


def has_words(text: str) -> bool:
    """Whether a text has words that are no names of functions, and so is no expression."""
    text = NO_WORDS.sub("", text)
    words = [word for word in WORD.findall(text) if not re.fullmatch(FUNCTION, word)]
    if re.search(r"[\d\\+*/^=-]", text):  # "abc" is a word, and in "2abc" a product
        return any(len(word) > 3 for word in words)
    return bool(words)


def as_text(text: str) -> str:
    """The text to compare as it is: without spaces, or of words without their case."""
    if has_words(text):
        return clean(text).casefold()
    return SPACES.sub("", clean(text))


def split(text: str, separator: str) -> list[str]:
    """The parts of a text between separators that are in no brackets; at least one."""
    parts = []
    start = 0
    depth = 0
    for match in re.finditer(rf"(?P<separator>{separator})|{BRACKET.pattern}", text, re.DOTALL):
        if not match["separator"]:
            depth = max(0, depth + (match[0] in OPENING) - (match[0] in CLOSING))
        elif depth == 0:
            parts.append(text[start : match.start()].strip())
            start = match.end()
    return list(filter(None, [*parts, text[start:].strip()])) or [text]


def items_of(text: str) -> tuple[str, list[str]]:
    r"""The brackets around a list, such as "[)" or "\{\}", and its items.

    Brackets around one item only group it and are left out, but for those of a set.
    """
    brackets = _brackets_around(text)
    inner = text[len(brackets[0]) : -len(brackets[1])].strip() if brackets else text
    items = [form for item in split(inner, COMMA) for form in _with_both_signs(item)]
    return "".join(brackets), items


def _brackets_around(text: str) -> tuple[str, str] | tuple[()]:
    """The bracket that a text opens with and the one that closes it, if that is at its end."""
    depth = 0
    first = BRACKET.match(text)
    if first is None or first[0] not in (*OPENING[:2], OPENING[3]):
        return ()
    for match in BRACKET.finditer(text):
        depth += (match[0] in OPENING) - (match[0] in CLOSING)
        if depth == 0:
            return (first[0], match[0]) if match.end() == len(text) else ()
    return ()


def _with_both_signs(text: str) -> list[str]:
    r"""The two values of a text with one \pm, else the text."""
    if len(PLUS_MINUS.findall(text)) != 1:
        return [text]
    return [PLUS_MINUS.sub(sign, text) for sign in "+-"]


def same_notation(key: str, answer: str) -> tuple[str, str]:
    """Both texts, with a vector as a tuple and inequalities as intervals if one alone has them."""
    texts = [key, answer]
    vectors = [VECTOR.fullmatch(text) for text in texts]
    if vectors.count(None) == 1:
        texts = [_as_tuple(text) for text in texts]
    ranges = [_as_intervals(text) for text in texts]
    names = {found[0] for found in ranges if found}
    others = [text for text, found in zip(texts, ranges, strict=True) if not found]
    if len(names) == 1 and all(_brackets_around(split(text, CUP)[0]) for text in others if text):
        texts = [found[1] if found else text for text, found in zip(texts, ranges, strict=True)]
    return texts[0], texts[1]


def _as_tuple(text: str) -> str:
    """A matrix of one row or column as a tuple; any other text as it is."""
    match = VECTOR.fullmatch(text)
    if match is None:
        return text
    rows = match[1].strip().removesuffix(r"\\").split(r"\\")
    cells = [row.split("&") for row in rows]
    if min(len(cells), len(cells[0])) > 1:
        return text
    return f"({', '.join(cell.strip() for row in cells for cell in row)})"


def _as_intervals(text: str) -> tuple[str, str] | None:
    """The unknown of an inequality and its intervals; None for any other text."""
    found = [_as_interval(part) for part in split(text, OR)]
    names = {interval[0] for interval in found if interval}
    if not found or None in found or len(names) != 1:
        return None
    return names.pop(), r" \cup ".join(interval[1] for interval in found if interval)


def _as_interval(text: str) -> tuple[str, str] | None:
    r"""x<2 as x and (-\infty,2), 1 \le x < 2 as x and [1,2)."""
    signs = [
        sign.lstrip("\\").replace("lt", "<").replace("gt", ">") for sign in RELATION.findall(text)
    ]
    ends = [end.strip() for end in RELATION.split(text)]
    if signs and all(sign[0] in ">g" for sign in signs):
        signs = ["<" if sign == ">" else "<=" for sign in reversed(signs)]
        ends.reverse()
    if len(signs) == 1 and signs[0][0] in "!n":
        end, name = sorted(ends, key=lambda end: bool(UNKNOWN.fullmatch(end)))
        return (name, rf"(-\infty,{end}) \cup ({end},\infty)") if UNKNOWN.fullmatch(name) else None
    if len(signs) == 1:
        is_first = bool(UNKNOWN.fullmatch(ends[0]))
        signs.insert(0 if is_first else 1, "<")
        ends.insert(0 if is_first else 2, r"-\infty" if is_first else r"\infty")
    if (
        len(signs) != 2
        or any(sign[0] not in "<l" for sign in signs)
        or not UNKNOWN.fullmatch(ends[1])
    ):
        return None
    low, name, high = ends
    return name, f"{'(' if signs[0] == '<' else '['}{low},{high}{')' if signs[1] == '<' else ']'}"
