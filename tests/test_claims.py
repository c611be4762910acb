"""The numbers of the pages are those of the stored rows, and a changed one is found."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from gdro_lab import claims


@pytest.fixture
def copied(tmp_path):
    """README with one row of its table, its claims, and the rows that they are made of."""
    lines = (claims.ROOT / "README.md").read_text("utf-8").splitlines()
    ids = [line.split("`")[-2] if line.endswith("` |") else "rare-hard/both" for line in lines]
    shown = [line for line, one in zip(lines, ids, strict=True) if one == "rare-hard/both"]
    (tmp_path / "README.md").write_text("\n".join(shown), "utf-8")
    file = Path(claims.STUDIES, "games-confirmed/runs.csv")
    (tmp_path / file).parent.mkdir(parents=True)
    shutil.copy(claims.ROOT / file, tmp_path / file)
    kept = claims.read_claims()
    kept[kept.id == "rare-hard/both"].to_csv(tmp_path / claims.CLAIMS, index=False)
    return tmp_path


def test_every_number_is_as_the_stored_rows_have_it():
    assert claims.faults() == []


@pytest.mark.parametrize(
    ("page", "old", "new"),
    [
        ("README.md", "+.024 ±.015", "+.025 ±.015"),  # a value
        ("README.md", "+.024 ±.015\\*", "+.024 ±.015"),  # a star
        ("README.md", "±.007 |", "±.008 |"),  # a half-width
        ("README.md", "| 16 | `rare-hard/both`", "| 17 | `rare-hard/both`"),  # replicates
        ("README.md", "## Start", "It gains +.500 ±.001.\n\n## Start"),  # one that nothing holds
        ("README.md", "`rare-hard/both` |", "`rare-hard/bot` |"),  # a claim that is not there
        ("data/claims.csv", "+.024 ±.015", "+.025 ±.015"),
    ],
)
def test_a_changed_number_is_found_and_written_back(copied, page, old, new):
    text = (copied / page).read_text("utf-8").replace("\u00a0", " ")
    assert old in text
    (copied / page).write_text(text.replace(old, new), "utf-8")
    assert len(claims.faults(copied)) == 1
    claims.write(copied)
    remaining = 1 if "500" in new or "`rare-hard/bot`" in new else 0  # no row holds these
    assert len(claims.faults(copied)) == remaining


def printed(name):
    return CliRunner().invoke(claims.main, [name]).output


def test_an_id_a_number_and_a_study_lead_to_their_rows():
    pairs = printed("rare-hard/both")
    assert " 2131 |" in pairs
    number = claims.read_claims().set_index(["id", "score"]).text["rare-hard/both", "mean_at_8"]
    assert "rare-hard/both, mean_at_8" in printed(number.rstrip("*"))
    assert "| rare-hard | knapsack " in printed("arena/rare-hard")
    assert "got 'nobody'" in printed("nobody")
    assert "'arena/rare-hard'" in printed("arena")  # its parts


def test_a_claim_may_be_of_several_configurations_at_an_earlier_checkpoint():
    claim = claims.read_claims().iloc[0].copy()
    claim["configuration"] = "both@2e-4 + prompt@2e-4#90"
    claim["replicates"] = "2118-2120"
    rows = claims.stored_rows(claim.study).query("family == 'all'")
    scores = rows.set_index(["configuration", "step", "replicate"]).mean_at_8.sort_index()
    both = (scores["both", 150] + scores["prompt", 90]) / 2
    pairs = claims.pairs_of(claim)
    assert pairs.score.to_list() == pytest.approx(both.loc[2118:2120].to_list())
    assert pairs.baseline.to_list() == scores["grpo", 150].loc[2118:2120].to_list()


def test_a_claim_about_runs_that_do_not_exist_is_refused():
    claim = claims.read_claims().iloc[0].copy()
    claim["configuration"] = "both@3e-4"
    with pytest.raises(ValueError, match="both@3e-4"):
        claims.pairs_of(claim)


def test_several_worlds_are_averaged_within_a_replicate(copied):
    kept = claims.read_claims(copied)
    claim = kept[kept.id == "rare-hard/both"].iloc[0].copy()
    alone = claims.pairs_of(claim, copied)
    file = copied / claims.STUDIES / "games-confirmed/runs.csv"
    rows = pd.read_csv(file)
    more = 0.2 * (rows.configuration == "both")
    other = rows.assign(world="other", mean_at_8=rows.mean_at_8 + more)
    pd.concat([rows, other]).to_csv(file, index=False)
    claim["world"] = "rare-hard + other"
    both = claims.pairs_of(claim, copied)
    assert both.difference.to_list() == pytest.approx((alone.difference + 0.1).to_list())
