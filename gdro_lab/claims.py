"""Claims: the numbers that the pages print, each with the rows that it is made of.

    python -m gdro_lab.claims all-hard/pkpo    # the pairs behind a row of a table
    python -m gdro_lab.claims --check          # every page against the stored rows
    python -m gdro_lab.claims --write          # fill claims.csv and the tables from the rows

data/claims.csv has a row for each difference from a baseline: where the rows are (folder, world),
the two configurations, spelled METHOD@LEARNING_RATE, the score, the family of tests over which its
p is corrected by Holm (empty: none), and the text as printed. Several folders or worlds are
separated by a space; the score of a replicate is then its mean over the worlds. Where there are two
replicates, the text has the difference of each.

A table of a page is held to the claims if its last column is called `claim`. That column has the id
of the row, and the columns named after scores have the texts. Elsewhere on the pages, a number with
an interval must be that of some claim.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import numpy as np
import pandas as pd

from gdro.files import replace_text
from gdro_lab.experiments.intervals import holm, paired_t
from gdro_lab.experiments.table import METRICS, compare, final_rows

ROOT = Path(__file__).parents[1]
CLAIMS = "data/claims.csv"
PAGES = "README.md", "docs/results.md", "docs/choose.md"
LONG_PAGES = ("docs/results/pivotal.md",)
"""Only their tables with a column `claim` are held; data/studies/recompute.py prints the rest."""
COSTS = {"trained_tokens": "trained tokens", "seconds": "seconds"}
"""What is printed as a multiple of the baseline's."""
SCORES = METRICS | {"memory": "memorization gap"} | COSTS
"""Names of the columns of rows on the pages."""
WHOLE_TABLE = "table"
"""The family of all tests that a folder's own table has, over every method and learning rate."""
NUMBER = re.compile(r"\.\d+ ±\.\d+\*?")


def read_claims(root: Path = ROOT) -> pd.DataFrame:
    """data/claims.csv, all columns as text."""
    return pd.read_csv(root / CLAIMS, dtype=str, keep_default_na=False)


def read_rows(folders: str, root: Path = ROOT) -> pd.DataFrame:
    """The last row of each run in some folders of data/studies, with its memorization gap."""
    keys = ["world", "method", "learning_rate", "draw"]
    tables = []
    for name in folders.split():
        folder = root / "data/studies" / name
        rows = final_rows(pd.read_csv(folder / "scores.csv"))
        if (folder / "families.csv").exists():
            families = pd.read_csv(folder / "families.csv")
            if "memory" in families:
                gaps = families.groupby(keys, as_index=False).memory.mean()
                rows = rows.merge(gaps, how="left", on=keys)
        tables.append(rows)
    return pd.concat(tables, ignore_index=True).drop_duplicates(keys)


def pairs_of(claim: pd.Series, root: Path = ROOT) -> pd.DataFrame:
    """Scores of both configurations, a row a replicate: `score`, `baseline`, `difference`."""
    rows = read_rows(claim.folder, root)
    rows = rows[rows.world.isin(claim.world.split())]
    sides = {}
    for side, spelled in (("score", claim.method), ("baseline", claim.baseline)):
        method, _, rate = spelled.rpartition("@")
        chosen = rows[(rows.method == method) & np.isclose(rows.learning_rate, float(rate))]
        by_world = chosen.pivot(index="draw", columns="world", values=claim.score)
        sides[side] = by_world.dropna().mean(axis=1)
    pairs = pd.DataFrame(sides).dropna()
    if pairs.empty:
        raise ValueError(
            f"claim {claim.id!r} must name runs in {claim.folder!r}, "
            f"got {claim.method!r} and {claim.baseline!r}"
        )
    return pairs.assign(difference=pairs.score - pairs.baseline)


def significance(claims: pd.DataFrame, root: Path = ROOT) -> pd.Series:
    """p of each claim, by Holm over its family; NaN without one."""
    raw = [
        paired_t(pairs_of(claim, root).difference).p if claim.family else np.nan
        for claim in claims.itertuples()
    ]
    p = pd.Series(raw, claims.index)
    for family, members in claims.groupby("family"):
        if family == WHOLE_TABLE:
            for folder, of_folder in members.groupby("folder"):
                p[of_folder.index] = _p_of_table(of_folder, root / "data/studies" / str(folder))
        elif family:
            p[members.index] = holm(p[members.index])
    return p


def _p_of_table(claims: pd.DataFrame, folder: Path) -> list[float]:
    """p of claims in the table of their folder."""
    table = compare(pd.read_csv(folder / "scores.csv"))
    p_of = table.set_index(["world", "method", "metric"]).p_holm
    methods = claims.method.str.rpartition("@")[0]
    return [p_of[key] for key in zip(claims.world, methods, claims.score, strict=True)]


def texts_of(claims: pd.DataFrame, root: Path = ROOT) -> pd.DataFrame:
    """What the rows say: the text of each claim, and its number of replicates."""
    texts = []
    counts = []
    for claim, p in zip(claims.itertuples(), significance(claims, root), strict=True):
        pairs = pairs_of(claim, root)
        counts.append(str(len(pairs)))
        if claim.score in COSTS:
            texts.append(_short(pairs.score.mean() / pairs.baseline.mean(), digits=2))
        elif len(pairs) < 3:
            texts.append(", ".join(_signed(difference) for difference in pairs.difference))
        else:
            test = paired_t(pairs.difference)
            half = _short((test.high - test.low) / 2)
            star = "*" if p < 0.05 else ""
            texts.append(f"{_signed(pairs.difference.mean())} ±{half}{star}")
    return pd.DataFrame({"text": texts, "replicates": counts}, index=claims.index)


def _short(value: float, digits: int = 3) -> str:
    """A number ≥ 0 without the 0 before its point."""
    return f"{value:.{digits}f}".removeprefix("0")


def _signed(value: float) -> str:
    """A difference with its sign, the minus as it is typeset."""
    size = _short(abs(value))
    if not float(size):
        return size
    return ("−" if value < 0 else "+") + size


def faults(root: Path = ROOT) -> list[str]:
    """A sentence for each number that the stored rows do not bear out."""
    claims = read_claims(root)
    made = texts_of(claims, root)
    found = [
        f"{CLAIMS}: {claim.id} {claim.score} must be {text}, got {claim.text}"
        for claim, text in zip(claims.itertuples(), made.text, strict=True)
        if claim.text != text
    ]
    cells = _cells(claims, made)
    # in prose the sign is often a word, as in "loses .014 ±.009", and the star is left out
    known = {part for text in made.text for part in (text[1:], text[1:].rstrip("*"))}
    for page in _pages(root):
        text = page.read_text("utf-8")
        name = page.relative_to(root)
        for old, new in zip(text.splitlines(), _filled(text, cells).splitlines(), strict=True):
            if old != new:
                found.append(f"{name}: {new!r} wanted, got {old!r}")
        if str(name) in LONG_PAGES:
            continue
        held = {line for line, _ in _held_rows(text)}
        for line in text.splitlines():
            loose = [] if line in held else NUMBER.findall(_plain(line))
            found += [f"{name}: no claim has {number!r}" for number in loose if number not in known]
    return found


def _pages(root: Path) -> Iterable[Path]:
    return [root / page for page in (*PAGES, *LONG_PAGES) if (root / page).exists()]


def _cells(claims: pd.DataFrame, made: pd.DataFrame) -> dict[tuple[str, str], str]:
    """What belongs into a cell, by the id of its row and the name of its column."""
    cells = {}
    for claim, row in zip(claims.itertuples(), made.itertuples(), strict=True):
        cells[claim.id, SCORES[claim.score]] = row.text
        cells[claim.id, "replicates"] = row.replicates
    return cells


def _plain(text: str) -> str:
    """Without what Markdown adds to a number: escapes, bold, spaces that do not break."""
    return text.replace("\\*", "*").replace("**", "").replace("\u00a0", " ")


def _split(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _held_rows(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each row of a table with a column `claim`, and the names of the table's columns."""
    header: list[str] = []
    for line in text.splitlines():
        if not line.startswith("|"):
            header = []
        elif not header:
            header = _split(line)
        elif header[-1] == "claim" and not set(line) <= set("|-: "):
            yield line, header


def _filled(text: str, cells: dict[tuple[str, str], str]) -> str:
    """The page with its held cells as the rows have them; what is right stays as it is written."""
    for line, header in list(_held_rows(text)):
        old = _split(line)
        claim = old[-1].strip("`")
        new = list(old)
        for place, name in enumerate(header[:-1]):
            wanted = cells.get((claim, name))
            if wanted is None and name in SCORES.values() and old[place] not in ("", "–"):
                wanted = "no such claim"
            if wanted is not None and _plain(old[place]) != wanted:
                new[place] = wanted.replace("*", "\\*").replace(" ", "\u00a0")
        if new != old:
            text = text.replace(line, f"| {' | '.join(new)} |")
    return text


def write(root: Path = ROOT) -> None:
    """Fill claims.csv and the tables of the pages from the stored rows."""
    claims = read_claims(root)
    made = texts_of(claims, root)
    replace_text(root / CLAIMS, claims.assign(text=made.text).to_csv(index=False))
    for page in _pages(root):
        replace_text(page, _filled(page.read_text("utf-8"), _cells(claims, made)))


@click.command()
@click.argument("claim", required=False)
@click.option("--check", is_flag=True, help="Hold the pages to the stored rows.")
@click.option("--write", "is_writing", is_flag=True, help="Fill the pages from the stored rows.")
def main(claim: str | None, check: bool, is_writing: bool) -> None:
    """Print the pairs behind CLAIM, or hold all pages to the stored rows."""
    if is_writing:
        write()
    if check:
        found = faults()
        click.echo("\n".join(found) or "every number is as the stored rows have it")
        sys.exit(bool(found))
    claims = read_claims()
    chosen = claims[claims.id == claim]
    if claim is not None and chosen.empty:
        raise click.UsageError(f"CLAIM must be one of {sorted(set(claims.id))}, got {claim!r}")
    for one in chosen.itertuples():
        click.echo(f"\n{one.score}: {one.method} minus {one.baseline}, {one.world}, {one.folder}")
        click.echo(f"printed as {one.text}\n\n{pairs_of(one).to_markdown(floatfmt='.4f')}")


if __name__ == "__main__":
    main()
