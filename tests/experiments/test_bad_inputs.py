"""What cannot be meant: exit code 2, and one line that names it."""

import pytest
import yaml
from click.testing import CliRunner
from conftest import SMALL_PROFILE

from gdro_lab.cli import main

FIELDS = {  # what the message must name: the profile's fields
    "save_only_model": {"train": {"save_only_model": True}},
    "deepspeed": {"train": {"deepspeed": "x.json"}},
    "temperature": {"train": {"temperature": "0.9"}},
    "learning_rate": {"train": {"learning_rate": 0.0}},
    "seeds": {"seeds": [2**32]},
    "method": {"variants": {"grpo": {"method": "gpro"}}},
    "variants": {"variants": {"../esc": {"method": "grpo"}}},
    "n_max": {"variants": {"grpo": {"method": "grpo", "options": {"n_max": 1}}}},
    "methods_from": {"methods_from": "no.py"},
    "groups": {"variants": {"grpo": {"method": "grpo", "groups": "nobody"}}},
    "no/such/folder": {"model": {"source": "no/such/folder"}},
}
LINES = {
    "run tniy": "tniy",
    "report tiny": "runs/tiny",
    "train arena grpo": "gdro run",
    "evaluate tiny nobody": "nobody",
    "train tiny grpo --seed -1": "-1",
    "arena rare-hard": "--methods",
    "arena rare-hard --methods nobody": "got 'nobody'",
    "arena rare-hard --methods grpo --steps 0": "max_steps",
    "arena rare-hard --methods grpo --learning-rates fast": "'fast'",
    "arena rare-hard,no-such-world --methods grpo": "got 'no-such-world'",
    "microscope make pool.npz --world gym-text": "gym-text",
}


def refused(folder, words, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("gdro_lab.machine.set_up_process", lambda: None)
    ended = CliRunner().invoke(main, words)
    assert ended.exit_code == 2, (ended.output, ended.exception)
    return ended.stderr


@pytest.mark.parametrize("named", FIELDS)
def test_a_profile_that_cannot_be_meant_is_refused_by_name(tmp_path, monkeypatch, named):
    base = {"steps": 1, "batch_size": 2}
    profile = SMALL_PROFILE | {"base": base, "variants": {"grpo": {"method": "grpo"}}}
    train = profile["train"] | FIELDS[named].get("train", {})
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(profile | FIELDS[named] | {"train": train}))
    assert named in refused(tmp_path, ["train", "own.yaml", "grpo"], monkeypatch)


@pytest.mark.parametrize("line", LINES)
def test_what_a_line_names_in_vain_is_said(tmp_path, monkeypatch, line):
    assert LINES[line] in refused(tmp_path, line.split(), monkeypatch)
