"""Claims: the numbers that the pages print, each with the rows that it is made of.

    python -m gdro_lab.claims all-hard/pkpo    # the pairs behind a row of a table
    python -m gdro_lab.claims ".024 ±.015"     # those behind a number
    python -m gdro_lab.claims arena/rare-hard  # the table of a study, every method against GRPO
    python -m gdro_lab.claims --check          # every page against the stored rows
    python -m gdro_lab.claims --write          # fill claims.csv and the tables from the rows

data/claims.csv has a row for each number. A configuration is spelled METHOD@LEARNING_RATE, and
METHOD@LEARNING_RATE#STEP at an earlier checkpoint. Without a baseline the number is a mean, else
the mean difference from it in pairs by replicate. Several studies, worlds or configurations are
joined by " + "; the score of a replicate is then its mean over them. A score is a column of
runs.csv, or a sum or difference of some, of all families or "of" one; "mean_at_8 at equal seconds"
is taken where both have spent the same (`gdro_lab.experiments.costs`). `replicates` is a range, as
in 3-6, or empty for all. `family` names the tests over which p is corrected by Holm (empty: none).

A table of a page is held to the claims if its last column is called `claim`. That column has the id
of the row, and the columns named after scores have the texts. Elsewhere on the pages, a number with
an interval must be that of some claim. The folder of each study has a ledger, which --write renews:
rows that were cut or altered since are found.
"""

import re
import sys
from functools import cache
from pathlib import Path

import click
import numpy as np
import pandas as pd

from gdro.checks import Refusal
from gdro.files import fault_of, replace_text, write_ledger
from gdro_lab.experiments.blocks import BASE
from gdro_lab.experiments.costs import scores_at_equal_cost
from gdro_lab.experiments.scores import COLUMNS
from gdro_lab.experiments.table import (
    BASELINE,
    COSTS,
    METRICS,
    RUN_KEY,
    compare,
    format_table,
    stored_rows,
)
from gdro_lab.failures import at_the_door
from gdro_lab.intervals import holm, paired_t
from gdro_lab.pages import NO_CLAIM, NUMBER, filled, held_rows, pages_of, plain, prose_of
from gdro_lab.tasks.base import ALL

ROOT = Path(__file__).parents[1]
CLAIMS = "data/claims.csv"
STUDIES = "data/studies"
RATIOS = {"trained_tokens": "trained tokens", "seconds": "seconds"}
"""What is printed as a multiple of the baseline's."""
SUM = "mean_at_8 + pass_at_8"
"""The score by which learning rates are chosen; its columns on a page are named after these."""
GAP = "memorization_gap"
"""Averaged over the families."""
SCORES = METRICS | {GAP: "memorization gap", "any_of_32": "pass@32", "distinct": "texts"} | RATIOS
"""Names of the columns of rows on the pages; "mean_at_8 of amp" is in the column amp."""
WHOLE_TABLE = "table"
"""The family of all tests in a study's own table, over every method and learning rate."""
CHECKPOINT = [*RUN_KEY, "step"]
MEASURED = COLUMNS[COLUMNS.index("family") + 1 :]
FIELDS = ["id", "score", "study", "world", "configuration", "baseline"]
FIELDS += ["replicates", "family", "text"]
CONFIGURATION = re.compile(r"(.+)@(\d+(?:\.\d+)?(?:e-\d+)?)(?:#(\d+))?")


def read_claims(root: Path = ROOT) -> pd.DataFrame:
    """data/claims.csv, all columns as text; Refusal if it is no such table."""
    with at_the_door(f"{CLAIMS} cannot be read"):
        claims = pd.read_csv(root / CLAIMS, dtype=str, keep_default_na=False)
    if list(claims.columns) != FIELDS:
        raise Refusal(f"{CLAIMS} must have the columns {FIELDS}, got {list(claims.columns)}")
    return claims


def values_of(studies: str, score: str, root: Path = ROOT) -> pd.DataFrame:
    """A score as `value`, a row a run and checkpoint; `at_end` is where training ends."""
    written = []
    for study in studies.split(" + "):
        file = root / STUDIES / study.partition("/")[0] / "runs.csv"
        if not file.is_file():
            raise Refusal(f"study must have rows in {STUDIES}, got {study!r}")
        written.append(file.stat().st_mtime_ns)
    return _values(studies, score, root, tuple(written))


@cache
def _values(studies: str, score: str, root: Path, written: tuple[int, ...]) -> pd.DataFrame:
    """`values_of` files that were written at these times."""
    score, _, family = score.partition(" of ")
    tables = []
    for study in studies.split(" + "):
        rows = stored_rows(study, root / STUDIES)
        at_end = rows.step == rows.step.max()
        is_of_family = rows.family != ALL if score == GAP else rows.family == (family or ALL)
        values = rows[CHECKPOINT].assign(value=_score(rows, score), at_end=at_end)[is_of_family]
        tables.append(values.groupby([*CHECKPOINT, "at_end"], as_index=False).value.mean())
    # a run may be in two studies
    joined = pd.concat(tables).drop_duplicates([*CHECKPOINT, "value"])
    if joined.duplicated(CHECKPOINT).any():
        raise Refusal(f"studies must agree on the runs that they share, got {studies!r}")
    return joined


def _score(rows: pd.DataFrame, score: str) -> pd.Series:
    """A column of rows, or the sum or difference of some."""
    names = re.split(" [+-] ", score)
    if not set(names) <= set(MEASURED):
        raise Refusal(f"score must be of the columns {MEASURED}, got {score!r}")
    signs = [1, *(-1 if sign == "-" else 1 for sign in re.findall(" ([+-]) ", score))]
    return (rows[names] * signs).sum(axis=1, skipna=False)


def runs_of(claim: pd.Series, spelled: str, score: str, root: Path = ROOT) -> pd.DataFrame:
    """A score of one configuration as `value`, in the claim's worlds and replicates.

    The row of each run at the spelled step, else at all of its checkpoints.
    """
    match = CONFIGURATION.fullmatch(spelled)
    if match is None:
        raise Refusal(f"configuration must be METHOD@LEARNING_RATE#STEP, got {spelled!r}")
    method, learning_rate, step = match.groups()
    rows = values_of(claim.study, score, root)
    worlds = set(claim.world.split(" + "))
    is_of_study = worlds.issubset(rows.world)
    is_rate = np.isclose(rows.learning_rate, float(learning_rate))
    rows = rows[rows.world.isin(worlds) & is_rate & (rows.configuration == method)]
    if claim.replicates:
        limits = re.fullmatch(r"(\d+)-(\d+)", claim.replicates)
        if limits is None:
            raise Refusal(f"replicates must be a range such as 3-6, got {claim.replicates!r}")
        rows = rows[rows.replicate.between(int(limits[1]), int(limits[2]))]
    if step:
        rows = rows[rows.step == int(step)]
    if rows.empty or not is_of_study:
        raise Refusal(f"runs must be those of {claim.study!r}, got {spelled!r} in {claim.world!r}")
    return rows


def side_of(claim: pd.Series, spelled: str, root: Path = ROOT) -> pd.Series:
    """The score of some configurations by replicate, the mean over these and the claim's worlds."""
    parts = []
    for one in spelled.split(" + "):
        rows = runs_of(claim, one, claim.score, root)
        chosen = rows if "#" in one else rows[rows.at_end]
        parts.append(chosen.pivot(index="replicate", columns="world", values="value"))
    return pd.concat(parts, axis=1).dropna().mean(axis=1)


def pairs_at_equal_cost(claim: pd.Series, score: str, cost: str, root: Path = ROOT) -> pd.DataFrame:
    """The score of two configurations by replicate where both have spent the same."""
    joined = re.search(r" \+ |#", claim.world + claim.configuration + claim.baseline)
    if cost not in COSTS or joined:
        raise Refusal(
            f"a claim at equal cost must be of {COSTS}, of one world and two whole "
            f"configurations, got {claim.score!r} of {claim.id!r}"
        )
    courses = []
    for spelled in (f"{BASE}@0", claim.configuration, claim.baseline):
        values = runs_of(claim, spelled, score, root).set_index(["replicate", "step"]).value
        spent = runs_of(claim, spelled, cost, root).set_index(["replicate", "step"]).value
        courses.append(pd.DataFrame({"spent": spent, "score": values}).reset_index())
    return scores_at_equal_cost(*courses)


def pairs_of(claim: pd.Series, root: Path = ROOT) -> pd.DataFrame:
    """The score by replicate; with a baseline also its score, and the difference."""
    score, _, cost = claim.score.partition(" at equal ")
    if cost:
        pairs = pairs_at_equal_cost(claim, score, cost, root)
    else:
        pairs = side_of(claim, claim.configuration, root).to_frame("score")
        if not claim.baseline:
            return pairs
        pairs["baseline"] = side_of(claim, claim.baseline, root)
        pairs = pairs.dropna()
    return pairs.assign(difference=pairs.score - pairs.baseline)


def significance(claims: pd.DataFrame, pairs: list[pd.DataFrame], root: Path) -> pd.Series:
    """p of each claim, by Holm over its family; NaN without one."""
    raw = [
        paired_t(of.difference).p if family else np.nan
        for family, of in zip(claims.family, pairs, strict=True)
    ]
    p = pd.Series(raw, claims.index)
    for family, members in claims.groupby("family"):
        if family == WHOLE_TABLE:
            for study, of_study in members.groupby("study"):
                p[of_study.index] = _p_of_table(of_study, stored_rows(str(study), root / STUDIES))
        elif family:
            p[members.index] = holm(p[members.index])
    return p


def _p_of_table(claims: pd.DataFrame, rows: pd.DataFrame) -> list[float]:
    """p of claims in the table of their study."""
    table = compare(rows[rows.family == ALL])
    rates = {*zip(table.world, table.configuration, table.learning_rate, strict=True)}
    p_of = table.set_index(["world", "configuration", "metric"]).p_holm
    p = []
    for claim in claims.itertuples():
        sides = [CONFIGURATION.fullmatch(side) for side in (claim.configuration, claim.baseline)]
        runs = [(claim.world, side[1], float(side[2])) for side in sides if side and not side[3]]
        key = (*runs[0][:2], claim.score) if runs else ()
        is_at_end = len({*runs}) == 2 and runs[1][1] == BASELINE and not claim.replicates
        if not is_at_end or {*runs} - rates or key not in p_of.index:
            raise Refusal(f"family {WHOLE_TABLE!r} must be of that table, got {claim.id!r}")
        p.append(p_of[key])
    return p


def texts_of(claims: pd.DataFrame, pairs: list[pd.DataFrame], root: Path) -> pd.DataFrame:
    """What the rows say: the text of each claim, and its number of replicates."""
    p = significance(claims, pairs, root)
    texts = list(map(_text, claims.itertuples(), pairs, p))
    counts = [str(len(of)) for of in pairs]
    return pd.DataFrame({"text": texts, "replicates": counts}, index=claims.index)


def _text(claim: pd.Series, pairs: pd.DataFrame, p: float) -> str:
    """A number as it is printed."""
    if not claim.baseline:
        mean = pairs.score.mean()
        return f"{mean:,.0f}" if claim.score in RATIOS else _short(mean)
    if claim.score in RATIOS:
        return _short(pairs.score.mean() / pairs.baseline.mean(), digits=2)
    interval = paired_t(pairs.difference)
    star = "*" if p < 0.05 else ""
    return f"{_signed(float(interval.mean))} ±{_short(float(interval.half))}{star}"


def _short(value: float, digits: int = 3) -> str:
    """A number without the 0 before its point."""
    return f"{value:.{digits}f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.{digits}f}"


def _signed(value: float) -> str:
    """A difference with its sign, the minus as it is typeset."""
    size = _short(abs(value))
    if not float(size):
        return size
    return ("−" if value < 0 else "+") + size


def answered(claims: pd.DataFrame, root: Path) -> tuple[list[pd.DataFrame], list[str]]:
    """The pairs behind each claim, and a sentence for each that no rows answer."""
    pairs = []
    found = []
    for claim in claims.itertuples():
        try:
            if claim.family and not claim.baseline:
                raise Refusal(f"a test must have a baseline, got none in family {claim.family!r}")
            pairs.append(pairs_of(claim, root))
            if len(pairs[-1]) < (2 if claim.baseline else 1):  # one difference has no interval
                raise Refusal(f"replicates must be those of the rows, got {len(pairs[-1])} of them")
        except Refusal as error:
            found.append(f"{CLAIMS}: {claim.id} {claim.score}: {error}")
    return pairs, found


def folders_of(claims: pd.DataFrame, root: Path = ROOT) -> list[Path]:
    """The folders of the studies that these claims are about."""
    parts = {part for studies in claims.study for part in studies.split(" + ")}
    return [root / STUDIES / name for name in sorted({part.partition("/")[0] for part in parts})]


def faults(root: Path = ROOT) -> list[str]:
    """A sentence for each number that the stored rows do not bear out."""
    try:
        claims = read_claims(root)
        folders = [folder for folder in folders_of(claims, root) if folder.is_dir()]
        if found := [fault for folder in folders if (fault := fault_of(folder))]:
            return found
        pairs, found = answered(claims, root)
        if found:
            return found
        made = texts_of(claims, pairs, root)
    except Refusal as error:
        return [str(error)]
    found = [
        f"{CLAIMS}: {claim.id} {claim.score} must be {text}, got {claim.text}"
        for claim, text in zip(claims.itertuples(), made.text, strict=True)
        if claim.text != text
    ]
    cells = _cells(claims, made)
    # in prose the sign is often a word, as in "loses .014 ±.009", and the star is left out
    unsigned = [text.lstrip("+−") for text in made.text]
    known = {part for text in unsigned for part in (text, text.rstrip("*"))}
    for page in pages_of(root):
        text = prose_of(page)
        name = page.relative_to(root)
        wanted = filled(text, cells, SCORES.values())
        for old, new in zip(text.splitlines(), wanted.splitlines(), strict=True):
            if old != new or NO_CLAIM in plain(new):
                found.append(f"{name}: {new!r} wanted, got {old!r}")
        held = {line for line, _ in held_rows(text)}
        for line in text.splitlines():
            loose = [] if line in held else NUMBER.findall(plain(line))
            found += [f"{name}: no claim has {number!r}" for number in loose if number not in known]
    return found


def _cells(claims: pd.DataFrame, made: pd.DataFrame) -> dict[tuple[str, str], str]:
    """What belongs into a cell, by the id of its row and the name of its column."""
    cells = {}
    for claim, row in zip(claims.itertuples(), made.itertuples(), strict=True):
        cells[claim.id, _column(claim)] = row.text
        cells[claim.id, "replicates"] = row.replicates
    return cells


def _column(claim: pd.Series) -> str:
    """Where a page has the claim: under its score, its family, or for a sum its learning rate."""
    score, at_equal, cost = claim.score.partition(" at equal ")
    score, _, family = score.partition(" of ")
    if score == SUM:
        return claim.configuration.rpartition("@")[2]
    return (family or SCORES.get(score, score)) + at_equal + cost


def write(root: Path = ROOT) -> None:
    """Fill claims.csv, the tables of the pages and the ledgers from the stored rows."""
    claims = read_claims(root)
    pairs, found = answered(claims, root)
    if found:
        raise Refusal("\n".join(found))
    made = texts_of(claims, pairs, root)
    replace_text(root / CLAIMS, claims.assign(text=made.text).to_csv(index=False))
    cells = _cells(claims, made)
    for page in pages_of(root):
        if page.suffix == ".md":
            replace_text(page, filled(page.read_text("utf-8"), cells, SCORES.values()))
    for folder in folders_of(claims, root):
        write_ledger(folder)


def behind(name: str) -> str:
    """What is behind a claim, a number or a study: the pairs, or the table."""
    claims = read_claims()
    texts = claims.text.str.replace("−", "-")
    chosen = claims[(claims.id == name) | texts.str.contains(name.replace("−", "-"), regex=False)]
    texts = []
    for one in chosen.itertuples():
        minus = f" minus {one.baseline}" if one.baseline else ""
        title = f"{one.id}, {one.score}: {one.configuration}{minus}, {one.world}, in {one.study}"
        pairs = pairs_of(one).to_markdown(floatfmt=".4f")
        texts.append(f"{title}\nprinted as {one.text}\n\n{pairs}\n")
    if not texts and (ROOT / STUDIES / name.partition("/")[0] / "runs.csv").is_file():
        rows = stored_rows(name)
        scores = rows[rows.family == ALL]
        texts = [format_table(compare(scores), "grpo")]
    if not texts:
        raise Refusal(f"CLAIM must be a study or in {CLAIMS}, got {name!r}")
    return "\n".join(texts)


@click.command()
@click.argument("claim", required=False)
@click.option("--check", is_flag=True, help="Hold the pages to the stored rows.")
@click.option("--write", "is_writing", is_flag=True, help="Fill the pages from the stored rows.")
def main(claim: str | None, check: bool, is_writing: bool) -> None:
    """Print what is behind CLAIM (an id, a number, a study), or hold the pages to the rows."""
    try:
        if is_writing:
            write()
        if claim is not None:
            click.echo(behind(claim))
    except Refusal as error:
        raise click.ClickException(str(error)) from error
    if check:
        found = faults()
        click.echo("\n".join(found) or "every number is as the stored rows have it")
        sys.exit(bool(found))


if __name__ == "__main__":
    main()
