"""The command: every subcommand explains itself, refuses with 2, fails with 1."""

import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from gdro_lab.cli import main


@pytest.mark.parametrize("name", list(main.commands))
def test_every_subcommand_has_help_with_an_example(name):
    told = CliRunner().invoke(main, [name, "--help"])
    assert told.exit_code == 0
    assert re.search(rf"Example:\s+gdro {name} ", told.output)


@pytest.mark.parametrize(
    ("error", "code"), [(ValueError("bad"), 2), (OSError("bad"), 2), (RuntimeError("bad"), 1)]
)
def test_what_is_refused_and_what_failed_exit_differently(error, code):
    def raises():
        raise error

    main.add_command(click.Command("raises", callback=raises))
    try:
        ended = CliRunner().invoke(main, ["raises"])
    finally:
        del main.commands["raises"]
    assert (ended.exit_code, ended.stderr) == (code, "gdro raises: bad\n")


def test_a_misspelt_profile_is_refused_without_a_traceback():
    command = [sys.executable, "-m", "gdro_lab", "train", "tniy", "grpo"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("gdro train: profile must be one of")
    assert "Traceback" not in ended.stderr
