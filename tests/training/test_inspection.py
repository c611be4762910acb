"""The page of `gdro inspect` beside a training is that of the training's own log."""

import json

import numpy as np
import pandas as pd
import pytest
from conftest import TRAINS
from datasets import Dataset
from scripted import ROWS, even, text_of
from tiny_run import half_right, make, nothing

import gdro.inspect

pytestmark = TRAINS
COUNTED = ("rollouts", "prompts", "steps", "groups", "silent", "over_the_run", "mixed_by_n")


def train(base, folder, resume=None, **changes):
    trainer = make(base, folder, **changes)
    trainer.leaves_page = True
    return trainer.train(resume)


@pytest.mark.parametrize("method", ["rollout", "reinforce_ada", "dapo"])
def test_a_training_leaves_the_page_of_its_log(base, tmp_path, capsys, method):
    """In rounds, too, and with rollouts that are discarded."""
    train(base, tmp_path, gdro_method=method, log_completions=True, max_steps=5)
    said = capsys.readouterr().out
    summary = json.loads((tmp_path / "inspect.json").read_text())
    logged = gdro.inspect.summarize(gdro.inspect.read(tmp_path / "completions"))
    logged = json.loads(json.dumps(logged))
    assert {name: summary[name] for name in COUNTED} == {name: logged[name] for name in COUNTED}
    assert summary["rollouts"] >= 5 * 32
    assert "\n".join(gdro.inspect.in_short(summary)) in said
    assert (tmp_path / "inspect.png").read_bytes().startswith(b"\x89PNG")


def test_a_second_training_leaves_a_page_of_its_own(base, tmp_path):
    trainer = make(base, tmp_path, max_steps=1)
    trainer.leaves_page = True
    trainer.train()
    once = json.loads((tmp_path / "inspect.json").read_text())
    trainer.train()
    twice = json.loads((tmp_path / "inspect.json").read_text())
    assert (twice["rollouts"], twice["steps"]) == (once["rollouts"], once["steps"])


def test_a_resumed_training_leaves_the_page_of_all_its_steps(base, tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4, "gdro_method": "dars"}
    train(base, tmp_path, **saving)
    whole = (tmp_path / "inspect.json").read_text()
    (tmp_path / "checkpoint-4").rename(tmp_path / "later")
    (tmp_path / "inspect.json").unlink()
    train(base, tmp_path, resume=True, **saving)
    assert (tmp_path / "inspect.json").read_text() == whole


@pytest.mark.parametrize("failing", ["rewards", "a picture"])
def test_a_training_without_a_page_ends_as_others_do(base, tmp_path, capsys, monkeypatch, failing):
    if failing == "a picture":
        monkeypatch.setattr("gdro.inspect.draw", None)
    reward = nothing if failing == "rewards" else half_right
    assert train(base, tmp_path, max_steps=1, reward=reward).global_step == 1
    assert ("two rollouts" in capsys.readouterr().out) == (failing == "rewards")


def test_the_table_of_completions_says_whose_rollouts_they_are(trained):
    """And which were discarded; those of an evaluation are of no group."""
    given = {"eval_dataset": Dataset.from_list(ROWS[:1])}
    options = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 8}
    options |= {"eval_on_start": True, "log_completions": True}

    def noted(completions, log_extra, **columns):
        log_extra("length", [len(text_of(one)) for one in completions])
        return even(completions)

    for method in ("grpo", "rollout", "pivotal", "dapo", "reinforce_ada"):
        trainer = trained(method, noted, ROWS, given=given, **options)
        folder = f"{trainer.args.output_dir}/completions"
        table, mixed = (pd.read_parquet(f"{folder}/completions_0000{n}.parquet") for n in (1, 2))
        assert (table["prompt"] == "Spell " + table["uid"] + ".").all()
        assert (table["length"] == table["completion"].map(len)).all()
        assert (table.groupby("rollout_group")["uid"].nunique() == 1).all()
        rows = [row for row in trainer.record if row["global_step"] == 0]
        assert len(table) == sum(row["rollouts_spent"] for row in rows)
        assert (~table["discarded"]).sum() == 8
        means = [row["mean_reward"] for row in rows]
        assert table["noted"].mean() == pytest.approx(np.mean(means))
        is_evaluated = mixed["rollout_group"] < 0
        assert is_evaluated.sum() == 4
        assert mixed["uid"][is_evaluated].isna().all()
