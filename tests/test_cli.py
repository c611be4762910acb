"""The command: every subcommand explains itself, refuses with 2, fails with 1."""

import click
import pytest
from click.testing import CliRunner

from gdro_lab.cli import main


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


@pytest.mark.parametrize("name", list(main.commands))
def test_every_subcommand_has_help_and_refuses_a_misspelt_profile(name):
    assert CliRunner().invoke(main, [name, "--help"]).exit_code == 0
    if name in ("run", "train", "evaluate", "base"):
        words = [name, "tniy", *["grpo"] * (name in ("train", "evaluate"))]
        ended = CliRunner().invoke(main, words)
        assert ended.exit_code == 2
        assert "profile" in ended.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["train", "smoke", "../../../../esc"],
        ["evaluate", "smoke", "nobody"],
        ["train", "smoke", "grpo", "--seed", str(2**32)],
        ["train", "arena", "grpo"],
        ["arena", "rare-hard", "--methods", "nobody"],
        ["arena", "no-such-world", "--methods", "grpo"],
        ["arena", "rare-hard"],
    ],
)
def test_what_is_refused_writes_nothing(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(main, words)
    assert ended.exit_code == 2, ended.output
    assert list(tmp_path.iterdir()) == []
