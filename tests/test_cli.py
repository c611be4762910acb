"""The command: every subcommand explains itself, refuses with 2, fails with 1, in one line."""

import errno
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from safetensors import SafetensorError

from gdro.checks import Refusal
from gdro_lab.cli import main


def ended_by(monkeypatch, tmp_path, error):
    """How a subcommand ends in which something raises this error; logs go to `tmp_path`."""

    def fails(folder):
        raise error

    folder = click.Option(["--folder"])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    command = click.Command("fails", callback=fails, params=[folder])
    monkeypatch.setitem(main.commands, "fails", command)
    return CliRunner().invoke(main, ["fails", "--folder", str(tmp_path)])


def test_a_refusal_is_one_line(monkeypatch, tmp_path):
    ended = ended_by(monkeypatch, tmp_path, Refusal("bad\n value"))
    assert (ended.exit_code, ended.stderr) == (2, "gdro fails: bad value\n")
    assert list(tmp_path.iterdir()) == []


FAULTS = [
    ValueError("bad"),  # none of ours
    OSError(5, "Input/output error"),
    RuntimeError("mat1 and mat2\nshapes cannot be multiplied"),
    KeyError("key"),
    AssertionError(),
    MemoryError(),
    RecursionError("maximum recursion depth exceeded"),
    SafetensorError("Error while deserializing"),
    UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    ExceptionGroup("two", [ValueError("one"), ValueError("other")]),
]


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
def test_any_other_error_is_one_line_and_a_log_with_the_traceback(monkeypatch, tmp_path, error):
    ended = ended_by(monkeypatch, tmp_path, error)
    assert ended.exit_code == 1
    assert "Traceback" not in ended.stderr
    [line] = ended.stderr.splitlines()
    [log] = tmp_path.iterdir()
    assert line.endswith(f"(traceback: {log})")
    text = log.read_text()
    assert "Traceback" in text
    assert "in fails" in text
    assert type(error).__name__ in text


def test_where_no_log_can_be_written_the_traceback_is_printed(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    ended = ended_by(monkeypatch, tmp_path / "nowhere", KeyError("key"))
    assert ended.exit_code == 1
    assert "Traceback" in ended.stderr


def full_disk_of_torch():
    """As torch.save says it: the reason is lost, and an error that follows hides the first."""
    try:
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0")
    except RuntimeError as error:
        follows = ValueError("bad")
        follows.__context__ = error
        return follows


FULL = {
    "the system": OSError(errno.ENOSPC, "No space left on device"),
    "a quota": OSError(errno.EDQUOT, "Disk quota exceeded"),
    "safetensors": SafetensorError("I/O error: No space left on device (os error 28)"),
    "torch": full_disk_of_torch(),
    "a refusal": Refusal("[Errno 28] No space left on device"),
}


@pytest.mark.parametrize("who", FULL)
def test_a_full_disk_is_named(monkeypatch, tmp_path, who):
    ended = ended_by(monkeypatch, tmp_path, FULL[who])
    assert ended.exit_code == 1
    assert "disk is full" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_ctrl_c_ends_a_command_as_usual(monkeypatch, tmp_path):
    ended = ended_by(monkeypatch, tmp_path, KeyboardInterrupt())
    assert (ended.exit_code, ended.stderr.strip()) == (1, "Aborted!")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("utf8", "named"), [("0", "PYTHONUTF8"), ("1", "größe")])
def test_an_ascii_locale_is_refused_before_trl_fails_in_it(tmp_path, utf8, named):
    locale = {"LC_ALL": "C", "PYTHONUTF8": utf8, "PYTHONCOERCECLOCALE": "0"}
    words = [sys.executable, "-m", "gdro_lab", "report", "größe"]
    environment = os.environ | locale | {"PYTHONPATH": str(Path(__file__).parents[1])}
    ended = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.count(b"\n") == 1
    assert named in ended.stderr.decode()


@pytest.mark.parametrize("name", list(main.commands))
def test_every_subcommand_has_help(name):
    assert CliRunner().invoke(main, [name, "--help"]).exit_code == 0


def test_a_run_has_the_first_seed_of_its_profile_unless_another_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # the process of the tests keeps its handlers
    monkeypatch.setattr("gdro_lab.experiments.jobs.set_up_process", lambda: None)
    profile = {"seeds": [3, 4], "one_task": True, "variants": {"grpo": {"method": "grpo"}}}
    Path("own.yaml").write_text(json.dumps(profile))
    seeds = []

    def evaluate(profile, variant, seed, folder, cache_dir):
        seeds.append((seed, str(folder)))
        return [{"successes": 1, "trials": 2}]

    monkeypatch.setattr("gdro_lab.experiments.evaluation.evaluate_variant", evaluate)
    monkeypatch.setattr("gdro_lab.experiments.training.train_variant", evaluate)
    for more in ([], ["--seed", "4"]):
        ended = CliRunner().invoke(main, ["evaluate", "own.yaml", "base", *more])
        assert ended.exit_code == 0, ended.output
    ended = CliRunner().invoke(main, ["train", "own.yaml", "grpo", "--folder", ""])
    assert ended.exit_code == 0, ended.output
    seeds_and_folders = [(3, "base/seed3"), (4, "base/seed4"), (3, "grpo/seed3")]
    assert seeds == [(seed, f"runs/own/{folder}") for seed, folder in seeds_and_folders]
