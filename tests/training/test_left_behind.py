"""What others leave in a run's folder: files of people, checkpoints of other runs; a parent that has died."""

import os
import subprocess
import sys

import pytest

from gdro.training.checkpoints import LEDGER, last_whole, write_ledger
from gdro.training.lifetime import PARENT


def checkpoint(folder, run=""):
    folder.mkdir()
    (folder / "weights").write_bytes(b"1")
    write_ledger(folder, run)
    return folder


def test_files_of_other_names_block_no_run(tmp_path):
    whole = checkpoint(tmp_path / "checkpoint-2")
    for name in ("checkpoint-4.bak", "checkpoint-best", "checkpoint-tmp"):
        (tmp_path / name).mkdir()
    for name in (".DS_Store", ".nfs0001"):
        (whole / name).touch()
    assert last_whole(tmp_path) == whole


def test_a_checkpoint_of_another_run_is_passed_over(tmp_path, capsys):
    own, other = checkpoint(tmp_path / "checkpoint-2", "own"), checkpoint(tmp_path / "checkpoint-4", "other")
    assert last_whole(tmp_path, run="own") == own
    assert f"{other} is a checkpoint of another run. Resuming from checkpoint-2" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"is a checkpoint of another run\. Put the files back, or delete"):
        last_whole(tmp_path, other, "own")
    for folder in (own, other):
        (folder / LEDGER).unlink()
    assert last_whole(tmp_path, run="own") is None
    assert capsys.readouterr().out.endswith("not completed. Starting from step 0\n")


@pytest.mark.parametrize(("parent", "code"), [("itself", 0), ("another", 128 + 15)])
def test_a_parent_that_died_before_the_start_is_noticed(parent, code):
    expected = str(os.getpid() if parent == "itself" else os.getpid() + 1)
    lines = "from gdro.training.lifetime import end_with_parent; end_with_parent()"
    environment = os.environ | {PARENT: expected}
    assert subprocess.run([sys.executable, "-c", lines], env=environment, check=False).returncode == code
