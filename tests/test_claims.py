"""The numbers of the pages are those of the stored rows, and a changed one is found."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

from gdro.checks import Refusal
from gdro_lab import claims


@pytest.fixture
def copied(tmp_path):
    """README with one row of its table, its claims, and the rows that they are made of."""
    lines = (claims.ROOT / "README.md").read_text("utf-8").splitlines()
    ids = [line.split("`")[-2] if line.endswith("` |") else "rare-hard/both" for line in lines]
    shown = [line for line, one in zip(lines, ids, strict=True) if one == "rare-hard/both"]
    shown = [line for line in shown if line.startswith("|") or "±" not in line]
    (tmp_path / "README.md").write_text("\n".join(shown), "utf-8")
    folder = Path(claims.STUDIES, "games-confirmed")
    shutil.copytree(claims.ROOT / folder, tmp_path / folder)
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


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("score", "@sys.modules['os'].mkdir('ran')"),  # was run as code
        ("score", "study"),
        ("score", "mean_at_8 of nobody"),
        ("study", "nobody"),
        ("world", "nobody"),
        ("configuration", "both@fast"),
        ("configuration", "both@3e-4"),
        ("baseline", "grpo"),
        ("replicates", "2118"),
        ("replicates", "1-2"),
    ],
)
def test_a_cell_that_no_rows_answer_is_said_in_one_line(copied, column, value, monkeypatch):
    monkeypatch.chdir(copied)
    kept = claims.read_claims(copied).head(1)
    kept.assign(**{column: value}).to_csv(copied / claims.CLAIMS, index=False)
    (found,) = claims.faults(copied)
    assert "rare-hard/both" in found
    assert not (copied / "ran").exists()
    with pytest.raises(Refusal):
        claims.write(copied)


def test_rows_that_were_cut_are_found_where_the_claims_need_none_of_them(copied):
    file = copied / claims.STUDIES / "games-confirmed/runs.csv"
    lines = file.read_text("utf-8").splitlines(keepends=True)
    parts = [line.partition(",")[0] for line in lines]
    last = parts.index("games-confirmed/tuning-out-of-reach")
    assert "games-confirmed/equal-rates" not in parts[last:]
    file.write_text("".join(lines[:last]), "utf-8")
    assert "runs.csv is missing, or not as it was written" in claims.faults(copied)[0]
    file.write_text("", "utf-8")
    assert len(claims.faults(copied)) == 1


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


def test_a_claim_at_equal_cost_is_read_where_both_have_spent_the_same():
    claim = pd.Series(
        {"id": "x", "study": "steps/study", "world": "steps", "replicates": "110-111"}
    )
    claim["score"] = "mean_at_8 at equal rollouts"
    claim["configuration"], claim["baseline"] = "pivotal@5e-5", "grpo@5e-5"
    pairs = claims.pairs_of(claim)
    ends = claims.pairs_of(claim.replace(claim.score, "mean_at_8"))
    assert pairs.index.tolist() == [110, 111]
    assert pairs.difference.tolist() == pytest.approx(ends.difference.tolist())  # at their ends
    for field, wrong in {
        "configuration": "pivotal@1e-3",
        "baseline": "grpo@5e-5#160",  # cut off from the course before it
        "world": "nowhere",
        "score": "mean_at_8 at equal weather",
    }.items():
        with pytest.raises(Refusal):
            claims.pairs_of(pd.Series({**claim, field: wrong}))


@pytest.mark.parametrize(
    ("field", "wrong"),
    [("baseline", "grpo@1e-4"), ("configuration", "pivotal@1e-3"), ("replicates", "0-3")],
)
def test_a_star_is_of_the_test_in_the_table(field, wrong):
    kept = claims.read_claims()
    tested = kept[(kept.id == "rare-hard/pivotal") & (kept.family == claims.WHOLE_TABLE)]
    pairs = [claims.pairs_of(claim) for claim in tested.itertuples()]
    with pytest.raises(Refusal, match="rare-hard/pivotal"):
        claims.significance(tested.assign(**{field: wrong}), pairs, claims.ROOT)


def test_studies_that_disagree_on_a_run_are_not_joined():
    kept = claims.read_claims()
    claim = kept[kept.id == "rare-hard/both"].iloc[0].copy()
    claim["study"] = "ablations/rare-hard + by-prompt/averaging-hard"
    claim["configuration"], claim["baseline"] = "rollout@2e-4", "grpo@2e-4"
    with pytest.raises(Refusal, match="agree"):
        claims.pairs_of(claim)
