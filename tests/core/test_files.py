"""Folders that are whole or not used: one ledger for bases, checkpoints and models of runs."""

import json
import os

import pytest

from gdro.checks import Refusal
from gdro.files import LEDGER, fault_of, load_state, write_ledger
from gdro_lab.tasks.cache import find_or_make

FILES = ("config.json", "model.safetensors", "deep/tokenizer.json")


def make(folder):
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")


@pytest.fixture
def base(tmp_path):
    return find_or_make(tmp_path / "base", make)


def edit_ledger(folder, **changes):
    ledger = json.loads((folder / LEDGER).read_text())
    (folder / LEDGER).write_text(json.dumps(ledger | changes))


def leave_out(folder, name):
    files = json.loads((folder / LEDGER).read_text())["files"]
    edit_ledger(folder, files={file: entry for file, entry in files.items() if file != name})


DAMAGES = {
    "chat_template.jinja": lambda base: (base / "chat_template.jinja").write_text(""),
    "linked": lambda base: (base / "linked").symlink_to(base.parent),
    "config.json": lambda base: (base / "config.json").write_text("[]"),
    "model.safetensors": lambda base: (base / "model.safetensors").unlink(),
    "deep/tokenizer.json": lambda base: leave_out(base, "deep/tokenizer.json"),
    f"{LEDGER} cannot": lambda base: (base / LEDGER).write_bytes(b"\xff"),
    "names no files": lambda base: edit_ledger(base, files=None),
    "holds the files of other": lambda base: edit_ledger(base, name="other"),
}


@pytest.mark.parametrize("named", DAMAGES)
def test_a_file_that_is_missing_altered_added_or_not_named_is_refused(base, named):
    DAMAGES[named](base)
    assert named in fault_of(base)
    with pytest.raises(Refusal, match=named):
        find_or_make(base, make)


@pytest.mark.parametrize("name", [".DS_Store", ".cache/huggingface/x.lock"])
def test_hidden_files_do_no_harm(base, name):
    (base / name).parent.mkdir(parents=True, exist_ok=True)
    (base / name).touch()
    assert find_or_make(base, make) == base


def test_a_folder_without_a_ledger_is_made_again(base):
    (base / LEDGER).unlink()
    (base / "config.json").write_text("half")
    assert (find_or_make(base, make) / "config.json").read_text() == "{}"


def test_what_stops_while_a_folder_is_made_leaves_nothing(tmp_path):
    (tmp_path / ".making-x").mkdir()  # by a process that was killed long ago
    os.utime(tmp_path / ".making-x", (0, 0))

    def stops(folder):
        make(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_or_make(tmp_path / "base", stops)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_belongs_to_its_run(tmp_path):
    make(tmp_path)
    write_ledger(tmp_path, "own")
    assert fault_of(tmp_path) is None
    assert fault_of(tmp_path, "own") is None
    assert "another run" in fault_of(tmp_path, "other")


@pytest.mark.parametrize("text", ["", "[]"])
def test_a_state_that_is_broken_is_named(tmp_path, text):
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(Refusal, match=r"state\.json"):
        load_state(tmp_path / "state.json")
