"""The stored log of a tiny run of TRL, and the page that docs/inspect.md shows of it."""

import re

from click.testing import CliRunner
from processes import REPOSITORY as ROOT

import gdro.inspect
from gdro_lab.cli import main

LOG = ROOT / "data/studies/inspect/trl"


def test_groups_are_those_by_which_trl_normalized():
    """TRL's advantages are 0 just where the rewards of a group are equal, and add up to 0."""
    import numpy as np
    import pandas as pd

    rollouts = gdro.inspect.read(LOG)
    files = sorted((LOG / "completions").iterdir())
    advantages_R = pd.concat([pd.read_parquet(file) for file in files])["advantage"].to_numpy()
    sums_G = np.bincount(rollouts.groups_R, advantages_R)
    np.testing.assert_allclose(sums_G, 0, atol=1e-4)
    groups = gdro.inspect.form_groups(rollouts, 0.0)
    assert set(groups.trials_G) == {4}
    flat_R = np.bincount(rollouts.groups_R, advantages_R != 0) == 0
    assert groups.is_flat_G.mean() == flat_R.mean()


def test_the_page_of_the_docs_is_what_the_command_prints(monkeypatch):
    monkeypatch.chdir(ROOT)
    text = (ROOT / "docs/inspect.md").read_text("utf-8")
    [shown] = re.findall(r"^```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    ended = CliRunner().invoke(main, ["inspect", "data/studies/inspect/trl"])
    assert ended.stdout == shown
