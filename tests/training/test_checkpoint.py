"""Checkpoints: whole or not resumed from; what people, callbacks and GRPOTrainer leave there."""

import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
import tiny_run
import torch
from conftest import TRAINS
from datasets import Dataset
from safetensors.torch import load_file
from tiny_run import arguments, make, make_task, same_weights, trained
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from gdro.files import LEDGER
from gdro.trainer import GDROConfig, GDROTrainer
from gdro.trl.checkpoints import STATE_FILE, find_checkpoint

pytestmark = TRAINS


class Notes(TrainerCallback):
    """Adds a file to each checkpoint while it is saved, as callbacks for adapters do."""

    def on_save(self, args, state, control, **kwargs):
        Path(f"{args.output_dir}/checkpoint-{state.global_step}/notes.txt").write_text("mine")


class Stop(TrainerCallback):
    """Ctrl-C after the third step."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 3:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def checkpoints(base, tmp_path_factory):
    """A run's folder with checkpoint-2 and checkpoint-4, each with a file of a callback."""
    folder = tmp_path_factory.mktemp("checkpoints")
    trainer = make(base, folder, max_steps=4, save_strategy="steps", save_steps=2)
    trainer.add_callback(Notes())
    trainer.train()
    return folder


@pytest.fixture
def run(checkpoints, tmp_path):
    return shutil.copytree(checkpoints, tmp_path / "run")


def damage(path, how):
    if how == "delete":
        path.unlink()
        return
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


# how else a folder may be broken: tests/core/test_files.py
CASES = [("delete", LEDGER), ("flip a bit", STATE_FILE), ("flip a bit", "notes.txt")]


@pytest.mark.parametrize(("how", "file"), CASES)
def test_a_broken_checkpoint_is_not_resumed_from(run, capsys, how, file):
    older, newest = run / "checkpoint-2", run / "checkpoint-4"
    assert find_checkpoint(run) == newest
    damage(newest / file, how)
    assert find_checkpoint(run) == older
    assert str(newest) in capsys.readouterr().out
    with pytest.raises(ValueError, match="checkpoint-4"):
        find_checkpoint(run, newest)
    damage(older / file, how)
    if (how, file) == ("delete", LEDGER):  # as if killed while they were written
        assert find_checkpoint(run) is None
    else:
        with pytest.raises(ValueError, match=r"-4.*-2"):
            find_checkpoint(run)


class Terminated(TrainerCallback):
    """Sends SIGTERM after step 2, and waits until transformers asks for a checkpoint."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(4)  # transformers waits for 3 s


def test_a_checkpoint_that_is_saved_on_a_signal_is_whole(base, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    trainer = make(base, tmp_path, max_steps=6, enable_jit_checkpoint=True)
    trainer.add_callback(Terminated())
    trainer.train()
    signal.signal(signal.SIGTERM, before)
    found = find_checkpoint(tmp_path)
    assert found is not None
    assert int(found.name.partition("-")[2]) < 6


def test_nothing_of_a_broken_checkpoint_is_loaded_and_the_older_one_is_resumed(
    base, checkpoints, run
):
    (run / "checkpoint-8").mkdir()  # killed while it was written
    damage(run / "checkpoint-4" / "optimizer.pt", "flip a bit")
    trainer = make(base, run, max_steps=4)
    before = [parameter.clone() for parameter in trainer.model.parameters()]
    with pytest.raises(ValueError, match=r"optimizer.pt"):
        trainer.train(resume_from_checkpoint=str(run / "checkpoint-4"))
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))
    assert trainer.train(resume_from_checkpoint=True).global_step == 4  # as TRL answers
    whole = load_file(checkpoints / "checkpoint-4" / "model.safetensors")
    assert len(trainer.record) == 4
    assert all(torch.equal(p, whole[n]) for n, p in trainer.model.named_parameters() if n in whole)


def test_other_data_under_the_same_uids_are_refused(base, run):
    rows = [dict(row) for row in tiny_run.make_task().train]
    make(base, run, rows[::-1], max_steps=4).train(resume_from_checkpoint=True)  # order is free
    rows[0]["uid"], rows[1]["uid"] = rows[1]["uid"], rows[0]["uid"]
    with pytest.raises(ValueError, match=re.escape(f"uid {rows[0]['uid']!r} ")):
        make(base, run, rows, max_steps=4).train(resume_from_checkpoint=True)


@pytest.mark.parametrize("column", [None, "family"])
def test_new_prompts_join_and_known_ones_keep_their_history(base, tmp_path, column):
    rows = [dict(row) for row in tiny_run.make_task().train]
    changes = {"gdro_method": "pivotal", "group_column": column}
    first = trained(base, tmp_path, rows=rows[:40], save_strategy="steps", max_steps=2, **changes)
    grown = trained(base, tmp_path, tmp_path / "checkpoint-2", rows=rows, max_steps=4, **changes)
    assert grown.state.global_step == 4
    assert len(grown.record) == 4
    before, after = first.controller.bins.row_of, grown.controller.bins.row_of
    assert len(before) == 40
    assert set(after) == {row["uid"] for row in rows}
    assert {uid: after[uid] for uid in before} == before
    if column is None:
        return
    rows[0]["family"] = next(r["family"] for r in rows if r["family"] != rows[0]["family"])
    with pytest.raises(ValueError, match=f"labels.*{rows[0]['uid']}"):
        make(base, tmp_path, rows, max_steps=4, **changes).train(resume_from_checkpoint=True)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"per_device_train_batch_size": 16}, "generation_batch_size"),
        ({"gradient_accumulation_steps": 2, "steps_per_generation": 1}, "optimizer step"),
        ({"num_iterations": 2}, "num_iterations"),
        ({"num_generations": 8}, "num_generations"),
        ({"shuffle_dataset": False}, "shuffle_dataset"),
        ({"seed": 4}, "seed"),
    ],
)
def test_a_checkpoint_whose_prompts_came_otherwise_is_refused(base, run, changes, named):
    with pytest.raises(ValueError, match=named):
        make(base, run, **{"max_steps": 6} | changes).train(resume_from_checkpoint=True)


def test_a_checkpoint_within_a_generation_batch_is_resumed_from_as_trl_does(base, tmp_path):
    saves = {"num_iterations": 2, "max_steps": 4, "save_strategy": "steps", "save_steps": 3}
    resumed = []
    for kind, config in ((GRPOTrainer, GRPOConfig), (GDROTrainer, GDROConfig)):
        folder = tmp_path / kind.__name__
        own = {"gdro_method": "grpo", "trim_batches": False} if kind is GDROTrainer else {}
        args = tiny_run.arguments(config, folder, **saves, **own)
        tiny_run.make_trainer(kind, args, base).train()
        shutil.rmtree(folder / "checkpoint-4")
        trainer = tiny_run.make_trainer(kind, args, base)
        trainer.train(resume_from_checkpoint=True)
        assert trainer.state.global_step == 4
        resumed.append(trainer)
    assert len(resumed[1].record) == 3  # the second batch was sampled twice
    assert same_weights(*resumed)


def test_a_trainer_stopped_within_a_batch_goes_on_from_its_checkpoint(base, tmp_path):
    saves = {"num_iterations": 2, "max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    whole = trained(base, tmp_path / "whole", gdro_method="both", **saves)
    cut = make(base, tmp_path / "cut", gdro_method="both", **saves)
    cut.add_callback(Stop)
    with pytest.raises(KeyboardInterrupt):
        cut.train()
    cut.remove_callback(Stop)
    cut.train(resume_from_checkpoint=True)
    assert same_weights(whole, cut)
    assert cut.record == whole.record


def test_a_checkpoint_of_grpo_trainer_is_a_start(base, tmp_path):
    saves = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    args = tiny_run.arguments(GRPOConfig, tmp_path, **saves)
    stock = tiny_run.make_trainer(GRPOTrainer, args, base)
    stock.train()
    shutil.rmtree(tmp_path / "checkpoint-4")
    start = (tmp_path / "checkpoint-2").rename(tmp_path / "my-start")  # any name will do
    for method in ("grpo", "pivotal"):
        changes = {"max_steps": 4, "gdro_method": method, "trim_batches": False}
        trainer = trained(base, tmp_path / "none", start, **changes)
        assert trainer.state.global_step == 4
        assert trainer.controller.step == len(trainer.record) == 2
        assert same_weights(stock, trainer) == (method == "grpo")
    ended = trained(base, tmp_path / "none", start, max_steps=2, gdro_method="grpo")
    assert (ended.state.global_step, ended.record) == (2, [])


def test_a_run_that_had_ended_resumes_to_its_best_model(base, tmp_path):
    best = []
    for greater_is_better in (False, True):  # either way around, one is not the last
        runs = [evaluated_run(base, tmp_path, greater_is_better) for _ in range(2)]
        ended, again = runs
        ended.train()
        again.train(resume_from_checkpoint=True)
        assert again.state.best_model_checkpoint == ended.state.best_model_checkpoint
        assert same_weights(again, ended)
        best.append(Path(ended.state.best_model_checkpoint).name)
    assert sorted(best) == ["checkpoint-2", "checkpoint-4"]


def evaluated_run(base, folder, greater_is_better):
    """A trainer that is evaluated at steps 2 and 4, by the length of its completions."""
    args = arguments(
        GDROConfig,
        folder / str(greater_is_better),
        max_steps=4,
        gdro_method="pivotal",
        max_completion_length=30,
        save_strategy="steps",
        save_steps=2,
        eval_strategy="steps",
        eval_steps=2,
        load_best_model_at_end=True,
        metric_for_best_model="eval_completions/mean_length",
        greater_is_better=greater_is_better,
    )
    held_out = Dataset.from_list(list(make_task().train)[:8])
    return tiny_run.make_trainer(GDROTrainer, args, base, eval_dataset=held_out)
