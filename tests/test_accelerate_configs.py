"""The shipped accelerate configurations: read by accelerate itself, and tried on two CPU processes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gdro.estimate import _sharding
from gdro.profiles import LaunchChoice, Profile

REPOSITORY = Path(__file__).parent.parent
CONFIGS = REPOSITORY / "configs" / "accelerate"
NAMES = ("ddp", "fsdp2", "deepspeed-zero2", "deepspeed-zero3")
PROFILE = {
    "name": "sharded",
    "task": {"n_train": 48, "n_eval_per_family": 2},
    "base": {"steps": 60, "batch_size": 32},
    "train": {
        "steps": 6,
        "prompts_per_step": 8,
        "micro_batch": 8,
        "learning_rate": 1e-3,
        "beta": 0.01,
        "save_steps": 2,
    },
    "evaluation": {"samples": 2, "k": 2},
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


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("ddp", (1, True)),
        ("fsdp2", (4, True)),
        ("deepspeed-zero2", (4, False)),
        ("deepspeed-zero3", (4, True)),
    ],
)
def test_the_estimate_knows_what_is_split(name, split):
    assert _sharding(LaunchChoice(processes=4, config=name)) == split


def launch(config, profile, folder, cache, processes=2):
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config)]
    command += ["--num_processes", str(processes), "--mixed_precision", "no"]
    command += [str(REPOSITORY / "tests" / "sharded_run.py"), "train", str(profile), "both", "0"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    result = subprocess.run(
        [*command, str(folder), str(cache)],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_fsdp2_trains_as_ddp_does(tmp_path):
    from safetensors.torch import load_file

    from gdro.experiment import make_base

    profile = Profile(**PROFILE)
    profile_file, cache = tmp_path / "sharded.yaml", tmp_path / "bases"
    profile_file.write_text(yaml.safe_dump(PROFILE))
    start = load_file(make_base(profile, cache) / "model.safetensors")
    for name in ("ddp", "fsdp2"):
        launch(CONFIGS / f"{name}.yaml", profile_file, tmp_path / name, cache)
        assert json.loads((tmp_path / name / "training.json").read_text())["processes"] == 2
    whole = load_file(tmp_path / "ddp" / "model" / "model.safetensors")
    path = tmp_path / "fsdp2" / "model" / "model.safetensors"
    sharded = load_file(path)
    assert (tmp_path / "ddp" / "record.jsonl").read_text() == (
        tmp_path / "fsdp2" / "record.jsonl"
    ).read_text()
    assert set(sharded) - set(whole) <= {"lm_head.weight"}  # tied: written once more, equal
    for name, weight in whole.items():
        moved = (weight - start[name]).abs().max()
        assert moved > 0
        assert (weight - sharded[name]).abs().max() < 0.02 * moved, name

    # stopped after step 4 and resumed; then stopped after the last step, before the model was written
    checkpoints = next((tmp_path / "fsdp2").glob("checkpoints-*"))
    for last in ("checkpoint-4", "checkpoint-6"):
        path.unlink()
        if last == "checkpoint-4":
            shutil.rmtree(checkpoints / "checkpoint-6")
        launch(CONFIGS / "fsdp2.yaml", profile_file, tmp_path / "fsdp2", cache)
        for name, weight in load_file(path).items():
            assert weight.equal(sharded[name]), (last, name)
