"""The shipped accelerate configurations: read by accelerate itself, and tried on CPU processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import SMALL_PROFILE
from safetensors.torch import load_file

from gdro.experiment import base
from gdro.profiles import load_profile
from gdro.records import read_manifest, read_table

REPOSITORY = Path(__file__).parent.parent
CONFIGS = REPOSITORY / "configs" / "accelerate"
NAMES = ("ddp", "fsdp2", "deepspeed-zero2", "deepspeed-zero3")
PROFILE = SMALL_PROFILE | {
    "name": "sharded",
    "task": {"kind": "chain", "n_train": 48, "n_eval_per_family": 2},
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


@pytest.mark.parametrize("name", NAMES)
def test_accelerate_reads_the_configuration(name):
    config_args = pytest.importorskip("accelerate.commands.config.config_args")
    config = config_args.load_config_from_file(str(CONFIGS / f"{name}.yaml"))  # refuses unknown keys
    assert config.mixed_precision == "bf16"
    assert (config.num_machines, config.machine_rank) == (1, 0)
    kind = name.split("-")[0].rstrip("2")
    assert str(config.distributed_type.value) == {"ddp": "MULTI_GPU"}.get(kind, kind.upper())


def test_all_that_is_shipped_is_checked():
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == set(NAMES)


@pytest.mark.parametrize("name", ["fsdp2", "deepspeed-zero2", "deepspeed-zero3"])
def test_its_own_options_are_options_of_the_launcher(name):
    """Accelerate passes unknown ones over in silence."""
    launch = pytest.importorskip("accelerate.commands.launch")
    known = vars(launch.launch_command_parser().parse_args(["script.py"]))
    config = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    options = config.get("fsdp_config") or config["deepspeed_config"]
    assert set(options) <= set(known)


def test_what_a_sharded_run_must_not_lack():
    fsdp = yaml.safe_load((CONFIGS / "fsdp2.yaml").read_text())["fsdp_config"]
    assert fsdp["fsdp_state_dict_type"] == "FULL_STATE_DICT"
    assert fsdp["fsdp_cpu_ram_efficient_loading"] is False
    zero = yaml.safe_load((CONFIGS / "deepspeed-zero3.yaml").read_text())["deepspeed_config"]
    assert zero["zero3_save_16bit_model"] is True


def launch(name, profile, folder, cache, processes=2, die=""):
    """Train by a shipped configuration; `die` is an option of sharded_run.py."""
    command = ["accelerate.commands.launch", "--config_file", CONFIGS / f"{name}.yaml"]
    command += ["--num_processes", processes, "--mixed_precision", "no"]
    command += [REPOSITORY / "tests" / "sharded_run.py", *([f"--die={die}"] if die else [])]
    command += ["work", profile, "both", 0, folder, "--cache-dir", cache]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    result = subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert (result.returncode == 0) == (not die), result.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_two_processes_and_two_shards_train_as_one_process_does(tmp_path):
    profile_file, cache = tmp_path / "sharded.yaml", tmp_path / "bases"
    profile_file.write_text(yaml.safe_dump(PROFILE))
    start = load_file(Path(base(load_profile(profile_file), cache)) / "model.safetensors")
    folders = {key: tmp_path / f"{key[0]}-{key[1]}" for key in (("ddp", 1), ("ddp", 2), ("fsdp2", 2))}
    for (name, processes), folder in folders.items():
        launch(name, profile_file, folder, cache, processes)
        assert read_manifest(folder / "training.json")["processes"] == processes
    one, two, sharded = (read_table(folder / "record.jsonl") for folder in folders.values())
    assert one == two == sharded
    states = [file.read_text() for folder in folders.values() for file in folder.glob("controller*")]
    assert len(states) == 5
    assert len(set(states)) == 1
    planned = [n for row in one for n in row["rollouts"] if n is not None]
    assert min(planned) < 4 < max(planned)

    # gradients are summed in another order, so the models agree to rounding
    one, *others = (load_file(folder / "model" / "model.safetensors") for folder in folders.values())
    for name, weight in one.items():
        moved = (weight - start[name]).abs().max()
        assert moved > 0
        assert all((weight - other[name]).abs().max() < 0.02 * moved for other in others), name
    assert all(set(other) - set(one) <= {"lm_head.weight"} for other in others)  # tied, written once more

    # stopped as one process dies in step 5, and before the model is written; then resumed
    for moment in ("5", "save"):
        folder = tmp_path / f"stopped-{moment}"
        launch("fsdp2", profile_file, folder, cache, die=moment)
        assert not (folder / "training.json").exists()
        launch("fsdp2", profile_file, folder, cache)
        for name, weight in load_file(folder / "model" / "model.safetensors").items():
            assert weight.equal(others[1][name]), (moment, name)
