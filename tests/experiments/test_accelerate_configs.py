"""The shipped accelerate configurations: read by accelerate itself, and tried on CPU processes."""

import json
import sys
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from types import SimpleNamespace

import pytest
import sharded_run
import yaml
from accelerate.commands import launch
from accelerate.commands.config import config_args
from conftest import SMALL_PROFILE, TRAINS
from processes import REPOSITORY, run_ranks
from safetensors.torch import load_file

from gdro_lab.experiments import training as experiment
from gdro_lab.experiments.play import open_training, train_run
from gdro_lab.experiments.profile import load_profile
from gdro_lab.experiments.records import read_manifest, read_table

pytestmark = TRAINS
CONFIGS = REPOSITORY / "gdro_lab/launch/accelerate"
SCRIPT = REPOSITORY / "tests" / "sharded_run.py"
PROFILE = SMALL_PROFILE | {
    "name": "sharded",
    "task": {"kind": "embedded", "n_train": 48, "n_eval_per_family": 2},
    "train": {
        "max_steps": 10,
        "prompts_per_step": 8,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-3,
        "beta": 0.01,
        "save_steps": 2,
        # as the shipped profiles that shard; whole gradients would be kept on each GPU otherwise
        "accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}},
    },
    "variants": {"both": {"method": "both"}},
    "seeds": [0],
}


@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
def test_accelerate_reads_the_configuration(name):
    # refuses unknown keys
    config = config_args.load_config_from_file(str(CONFIGS / f"{name}.yaml"))
    assert config.mixed_precision == "bf16"
    assert str(config.distributed_type.value) == ("MULTI_GPU" if name == "ddp" else "FSDP")
    # unknown keys within these blocks it passes over in silence
    given = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    options = given.get("fsdp_config", {})
    assert set(options) <= set(vars(launch.launch_command_parser().parse_args(["script.py"])))
    if name != "ddp":
        assert options["fsdp_state_dict_type"] == "FULL_STATE_DICT"
        assert options["fsdp_cpu_ram_efficient_loading"] is False


def parsed(command):
    """Accelerate's reading of a command: its arguments, and the environment of its processes."""
    parsed = launch.launch_command_parser().parse_args(list(map(str, command[3:])))
    args, *_ = launch._validate_launch_command(parsed)
    return args, launch.prepare_multi_gpu_env(args)


@pytest.fixture
def start_training(base, tmp_path, monkeypatch):
    """Train by a shipped configuration as `Training.launch` does, in float32."""

    def launched(name, folder, run):
        config = tmp_path / f"{name}.yaml"
        text = (CONFIGS / f"{name}.yaml").read_text()
        config.write_text(text.replace("mixed_precision: bf16", "mixed_precision: 'no'"))
        options = {"processes": 2, "config": str(config)}
        file = tmp_path / "sharded.yaml"
        fields = {"launch": options, "model": {"source": str(base)}}
        file.write_text(yaml.safe_dump(PROFILE | fields))
        monkeypatch.setattr(experiment.subprocess, "run", run)
        open_training(load_profile(file).run("both", 0), folder).launch()

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    return launched


def forked(command, check, die_at=None):
    """In place of the launcher: its processes, with what it tells them, without their imports."""
    args, environment = parsed(command)
    run_ranks(2, sharded_run.command, args.training_script_args, die_at, **environment)
    return SimpleNamespace(returncode=0)


def test_two_processes_and_two_shards_train_as_one_process_does(
    base, tmp_path, start_training, monkeypatch
):
    folders = [tmp_path / name for name in ("one", "two", "sharded")]
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(PROFILE | {"model": {"source": str(base)}}))
    with monkeypatch.context() as patch:
        patch.setattr("gdro.trainer.GDROTrainer", sharded_run.SharedSampling)
        train_run(load_profile(tmp_path / "one.yaml").run("both", 0), folders[0])
    start_training("ddp", folders[1], run=forked)
    start_training("fsdp2", folders[2], run=forked)
    processes = [read_manifest(folder / "training.json")["processes"] for folder in folders]
    assert processes == [1, 2, 2]
    records = [read_table(folder / "record.jsonl") for folder in folders]
    assert records[0] == records[1] == records[2]
    states = [file.read_text() for folder in folders for file in folder.glob("controller*")]
    assert len(states) == 5
    assert len(set(states)) == 1
    planned = [n for row in records[0] for n in row["rollouts"] if n is not None]
    assert min(planned) < 4 < max(planned)

    # gradients are summed in another order, so the models agree to rounding
    trained = [folder / "model" for folder in folders]
    start, one, *others = (load_file(f / "model.safetensors") for f in (base, *trained))
    for name, weight in one.items():
        moved = (weight - start[name]).abs().max()
        assert moved > 0
        assert all((weight - other[name]).abs().max() < 0.02 * moved for other in others), name
    # tied, and written once more
    assert all(set(other) - set(one) <= {"lm_head.weight"} for other in others)

    # stopped as one process dies in step 5, then resumed
    with pytest.raises(BrokenProcessPool):
        start_training("fsdp2", tmp_path / "stopped", run=partial(forked, die_at="5"))
    assert not (tmp_path / "stopped" / "training.json").exists()
    assert list((tmp_path / "stopped").glob("checkpoints-*/checkpoint-4"))
    start_training("fsdp2", tmp_path / "stopped", run=forked)
    for name, weight in load_file(tmp_path / "stopped" / "model" / "model.safetensors").items():
        assert weight.equal(others[1][name]), name


def test_two_shards_leave_out_what_teaches_nothing_and_keep_no_whole_gradients(base, tmp_path):
    """The savings change no weight, and `sync_each_batch` is what a sharded run needs."""
    command = [sys.executable, "-m", "accelerate.commands.launch"]
    command += ["--config_file", CONFIGS / "fsdp2.yaml"]
    _, environment = parsed([*command, "--num_processes=2", "--mixed_precision=no", SCRIPT])
    run_ranks(2, sharded_run.compare_savings, base, tmp_path, **environment)
    for rank in range(2):
        report = json.loads((tmp_path / f"savings{rank}.json").read_text())
        # rounding: 4e-6 to 9e-6 with PyTorch's three sets of CPU kernels
        assert report["difference"] < 1e-4 * report["moved"]
        assert min(report["rows"]["on"]) < 8 == min(report["rows"]["off"])
        assert max(report["whole_gradients"]["on"]) == 0 < max(report["whole_gradients"]["off"])
        assert ["sharded" in reason for reason in report["said"]] == [True]


def test_two_processes_compute_each_prompt_once(base, tmp_path):
    run_ranks(2, sharded_run.compare_savings, base, tmp_path, 0.04)
    for rank in range(2):
        report = json.loads((tmp_path / f"savings{rank}.json").read_text())
        assert report["difference"] < 1e-4 * report["moved"]
        assert report["said"] == []
        assert rank or max(report["tokens"]) < 1
