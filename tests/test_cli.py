"""The command: every subcommand explains itself; what it refuses: test_bad_inputs.py."""

import json
from pathlib import Path

from click.testing import CliRunner

from gdro_lab.cli import main


def test_every_subcommand_has_help_and_a_summary_of_one_line():
    summaries = CliRunner().invoke(main, ["--help"]).output.partition("Commands:")[2]
    assert [line.split()[0] for line in summaries.split("\n") if line][:2] == ["inspect", "run"]
    assert "..." not in summaries
    for name in main.commands:
        assert CliRunner().invoke(main, [name, "--help"]).exit_code == 0


def test_a_run_has_the_first_seed_of_its_profile_unless_another_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # the process of the tests keeps its handlers
    monkeypatch.setattr("gdro_lab.machine.set_up_process", lambda: None)
    profile = {"seeds": [3, 4], "one_task": True, "variants": {"grpo": {"method": "grpo"}}}
    Path("own.yaml").write_text(json.dumps(profile))
    seeds = []

    def evaluate(run, folder, cache_dir):
        seeds.append((run.replicate, str(folder)))
        return [{"successes": 1, "trials": 2}]

    monkeypatch.setattr("gdro_lab.experiments.play.evaluate_run", evaluate)
    monkeypatch.setattr("gdro_lab.experiments.play.train_run", evaluate)
    for more in ([], ["--seed", "4"]):
        ended = CliRunner().invoke(main, ["evaluate", "own.yaml", "base", *more])
        assert ended.exit_code == 0, ended.output
    ended = CliRunner().invoke(main, ["train", "own.yaml", "grpo"])
    assert ended.exit_code == 0, ended.output
    seeds_and_folders = [(3, "base/seed3"), (4, "base/seed4"), (3, "grpo/seed3")]
    assert seeds == [(seed, f"runs/own/{folder}") for seed, folder in seeds_and_folders]
