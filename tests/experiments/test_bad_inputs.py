"""What cannot be meant: exit code 2, and one line that names it."""

import subprocess
import sys

import pytest
import yaml
from conftest import SMALL_PROFILE
from processes import gdro

FIELDS = {  # what the message must name: the profile's fields
    "save_only_model": {"train": {"save_only_model": True}},
    "temperature": {"train": {"temperature": "0.9"}},
    "learning_rate": {"train": {"learning_rate": 0.0}},
    "method": {"variants": {"grpo": {"method": "gpro"}}},
    "variants": {"variants": {"../esc": {"method": "grpo"}}},
    "methods_from": {"methods_from": "no.py"},
    "groups": {"variants": {"grpo": {"method": "grpo", "groups": "nobody"}}},
    "no/such/folder": {"model": {"source": "no/such/folder"}},
    "prompts_per_step": {"train": {"prompts_per_step": 10**9}},
}
LINES = {
    "run tniy": "tniy",
    "report tiny": "runs/tiny",
    "train loop.yaml grpo": "gdro run",
    "evaluate tiny nobody": "nobody",
    "arena rare-hard": "--methods",
    "arena rare-hard --methods nobody": "got 'nobody'",
    "arena rare-hard --methods grpo --steps 0": "max_steps",
    "evaluate tiny base --folder /proc/none": "/proc/none",
}


def refused(folder, words, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("gdro_lab.machine.set_up_process", lambda: None)
    ended = gdro(folder, *words)
    assert ended.exit_code == 2, (ended.output, ended.exception)
    return ended.stderr


@pytest.mark.parametrize("named", FIELDS)
def test_a_profile_that_cannot_be_meant_is_refused_by_name(tmp_path, monkeypatch, named):
    base = {"steps": 1, "batch_size": 2}
    profile = SMALL_PROFILE | {"base": base, "variants": {"grpo": {"method": "grpo"}}}
    train = profile["train"] | FIELDS[named].get("train", {})
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(profile | FIELDS[named] | {"train": train}))
    said = refused(tmp_path, ["train", "own.yaml", "grpo"], monkeypatch)
    assert named in said
    assert said.count("\n") == 1
    # no base is made for what is refused, but for columns that the data lack
    assert (tmp_path / ".cache").exists() == (named == "groups")


@pytest.mark.parametrize("line", LINES)
def test_what_a_line_names_in_vain_is_said(tmp_path, monkeypatch, line):
    loop = {"backend": "loop", "methods": ["grpo"], "seeds": [0]}
    (tmp_path / "loop.yaml").write_text(yaml.safe_dump(loop))
    assert LINES[line] in refused(tmp_path, line.split(), monkeypatch)


def test_a_process_may_be_set_up_twice():
    code = "from gdro_lab.machine import set_up_process as up; up(); up()"
    subprocess.run([sys.executable, "-c", code], check=True)
