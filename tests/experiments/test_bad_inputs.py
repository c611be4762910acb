"""Bad inputs of every kind: exit code 2, one line that says what is wrong, and nothing written."""

import pytest
import yaml
from click.testing import CliRunner
from conftest import SMALL_PROFILE, TRAINS

from gdro_lab.cli import main

pytestmark = TRAINS
SECRET = "hf_SECRETSECRETSECRETSECRET"

# values of `train:` that TRL, transformers, peft, accelerate or torch refuse themselves
TRAIN = [
    {"adam_beta1": 2.0},
    {"adam_beta2": -1.0},
    {"adam_epsilon": -1.0},
    {"weight_decay": -0.1},
    {"reward_weights": [1.0, 2.0]},
    {"reward_weights": []},
    {"remove_unused_columns": True},
    {"dataloader_num_workers": -1},
    {"dataloader_prefetch_factor": 2},
    {"report_to": ["wandb"]},
    {"report_to": "comet_ml"},
    {"report_to": ["nobody"]},
    {"push_to_hub": True},
    {"eval_on_start": True},
    {"logging_steps": 0},
    {"top_entropy_quantile": 3.0},
    {"top_entropy_quantile": -0.5},
    {"optim": "nobody"},
    {"optim": "adamw_bnb_8bit"},
    {"optim": "galore_adamw"},
    {"lr_scheduler_type": "reduce_lr_on_plateau"},
    {"lr_scheduler_type": "linear", "lr_scheduler_kwargs": {"nobody": 1}},
    {"warmup_steps": -1},
    {"cache_implementation": "nobody"},
    {"generation_kwargs": {"num_beams": 3, "num_beam_groups": 2}},
    {"neftune_noise_alpha": -1.0},
    {"loss_type": "nobody"},
    {"fp16": True, "bf16": True},
    {"use_liger_kernel": True},
    {"auto_find_batch_size": True},
    {"accelerator_config": {"nobody": 1}},
    {"torch_empty_cache_steps": 0},
    {"temperature": float("nan")},
    {"temperature": "0.9"},
    {"lr_scheduler_type": "constnat"},
    {"top_p": 2.0},
    {"num_generations": 1},
    {"num_generations": 10**9},
    {"scale_rewards": "nobody"},
    {"importance_sampling_level": "nobody"},
    {"output_dir": "elsewhere"},
    {"nobody": 1},
]
LORA = {"kind": "lora"}
BOMB = "a: &a0 [x, x, x, x, x, x, x, x, x]\n" + "\n".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n > 1 else '*a0'] * 9)}]" for n in range(1, 12)
)
NAMED = {  # what the message must name: the profile's fields, or its text
    "deepspeed": {"train": {"deepspeed": "x.json"}},
    "beta": {"train": {"beta": -1.0}},
    "temperature": {"train": {"temperature": 0.0}},
    "save_total_limit": {"train": {"save_total_limit": 0}},
    "-3": {"train": {"save_total_limit": -3}},
    "save_only_model": {"train": {"save_only_model": True}},
    "learning_rte": {"train": {"learning_rte": 1}},
    "attn_implementation": {"model": {"attn_implementation": "none_such"}},
    "lora.r": {"model": LORA | {"lora": {"r": "abc"}}},
    "rr": {"model": LORA | {"lora": {"rr": 3}}},
    "seeds": {"seeds": [2**32]},
    "method": {"variants": {"grpo": {"method": "gpro"}}},
    "variants": {"variants": {"../esc": {"method": "grpo"}}},
    "more than": BOMB,
    "must hold": "",
    **{f"methods_from must: {name}": {"methods_from": name} for name in ("def.py", "exit.py", ".")},
}
MODEL = [
    {"kind": "lora", "lora": {"target_modules": ["nobody"]}},
    {"kind": "lora", "lora": {"target_modules": []}},
    {"kind": "lora", "lora": {"r": -1}},
    {"kind": "lora", "lora": {"lora_dropout": 2.0}},
    {"kind": "lora", "lora": {"layers_to_transform": [99]}},
    {"kind": "lora", "lora": {"init_lora_weights": "nobody"}},
    {"kind": "lora", "lora": {"task_type": "CAUSAL_LM"}},
    {"source": "no/such/folder"},
    {"source": "no.gguf"},
    {"source": "."},
]
VARIANT = [
    {"groups": "nobody"},
    {"label": "a$b_{$"},
    {"label": "a | b"},
    {"options": {"n_max": 2**31}},
    {"options": {"nobody": 1}},
    {"preset": "nobody"},
    {"train": {"adam_beta1": 2.0}},
    {"model": {"kind": "lora", "lora": {"target_modules": ["nobody"]}}},
]
SECRETS = [
    {"train": {"hub_token": SECRET}},
    {"train": {"push_to_hub_token": SECRET}},
    {"train": {"run_name": SECRET}},
    {"train": {"vllm_server_base_url": f"http://me:{SECRET}@host:8000"}},
    {"train": {"model_init_kwargs": {"token": SECRET}}},
    {"train": {"generation_kwargs": {"list": [{"api_key": SECRET}]}}},
    {"launch": {"wandb_api_key": SECRET}},
    {"title": f"https://me:{SECRET}@host"},
    {"variants": {"grpo": {"method": "grpo", "train": {"hub_token": SECRET}}}},
    {"variants": {"grpo": {"method": "grpo", "options": {"password": SECRET}}}},
]
NINES = "9" * 5000
TEXTS = {  # of the whole file
    "an integer of 5,000 digits": f"seeds: [{NINES}]",
    "one in hexadecimal": f"seeds: [0x{NINES}]",
    "one that numpy cannot hold": "task: {n_train: 36893488147419103232}",
    "a set": "train: {chat_template_kwargs: {x: !!set {a}}}",
    "a date": "train: {run_name: 2026-01-01}",
    "a time": "train: {run_name: 2026-01-01T00:00:00Z}",
    "bytes": "train: {run_name: !!binary aGVsbG8=}",
    "pairs": "train: {generation_kwargs: !!omap [a: 1]}",
    "a number as a name": "train: {generation_kwargs: {1: 2}}",
    "nothing as a name": "train: {~: 2}",
    "a list as a name": "? [a, b]\n: 1",
    "an alias of itself": "train: &a {x: *a}",
    "nested deeply": "train: " + "[" * 5000,
    "a tag": "seeds: !!python/object/apply:os.system ['true']",
    "a key twice": "seeds: [0]\nseeds: [1]",
    "two documents": "seeds: [0]\n---\nseeds: [1]",
    "a control character": "title: \x07",
    "an integer that is empty": 'seeds: !!int ""',
    "a truth that is none": "seeds: !!bool maybe",
    "a text": "seeds",
    "bytes that are no text": b"title: \xff\xfe",
}
LINES = [
    "arena rare-hard --methods grpo --replicates 100000000",
    "arena rare-hard --methods grpo --replicates 0",
    "arena rare-hard --methods grpo --first-replicate 99999999999999999999",
    "arena rare-hard --methods grpo --cores 1000000000",
    "arena rare-hard --methods grpo --learning-rates nan",
    "arena rare-hard --methods grpo --learning-rates inf",
    "arena rare-hard --methods grpo --learning-rates 1e-4,",
    "arena rare-hard --methods grpo --steps 99999999999999999999",
    "arena rare-hard --methods grpo:prompts=1e1",
    "arena rare-hard --methods grpo:preset=1",
    "arena rare-hard --methods both:n_max=2147483648",
    "arena , --methods grpo",
    "arena own.yaml --methods grpo",
    "run own.yaml --cores 0",
    "report arena",
    "report own.yaml",
    "report own.yaml --runs own.yaml",
    "train own.yaml grpo --folder own.yaml/run",
    "train own.yaml grpo --cache-dir own.yaml",
    "train own.yaml grpo --folder dangling",
    f"train own.yaml grpo --folder {NINES}",
    "run own.yaml --runs own.yaml/runs",
    "base own.yaml --cache-dir own.yaml",
    "arena rare-hard --methods grpo --runs own.yaml",
    "train own.yaml grpo --seed " + NINES,
    "train own.yaml base",
    "microscope make pool.npz --world-seed -1",
    "microscope make pool.npz --cache-dir own.yaml",
    "microscope make pool.npz --world gym-text",
    "evaluate own.yaml grpo",
    "evaluate own.yaml grpo --folder own.yaml",
    "train \udcff.yaml grpo",
]
NAMED_LINES = {
    "train tiny ../../../../esc": "esc",
    "evaluate tiny nobody": "nobody",
    "train tiny grpo --seed 4294967296": "4294967296",
    "train tiny grpo --seed -1": "-1",
    "train arena grpo": "gdro run",
    "arena rare-hard": "--methods",
    f"arena rare-hard --methods pivotal:k={'[' * 100_000}": "k should",
    f"arena rare-hard --methods pivotal:k={NINES}": "k should",
    "arena rare-hard --methods nobody": "got 'nobody'",
    "arena rare-hard,no-such-world --methods grpo": "got 'no-such-world'",
    "arena rare-hard --methods grpo --steps 0": "max_steps",
    "arena rare-hard --methods grpo:prompts=true": "prompts",
    "arena rare-hard --methods grpo --learning-rates fast": "'fast'",
    "arena rare-hard --methods grpo --methods-from no.py": "no.py",
    "run tniy": "tniy",
    "report tiny": "runs/tiny",
    "report tniy": "tniy",
    "model nobody": "nobody",
}
THREADS = ["999999999999", NINES, "-1", "0", "4,2", "many", "٣"]


def short(value):
    return str(value).replace(" ", "")[:60]


def folder_with(folder, fields):
    """A working folder with own.yaml: the small profile, with other fields or of another text."""
    if isinstance(fields, dict):
        base = {"steps": 1, "batch_size": 2}
        profile = SMALL_PROFILE | {"base": base, "variants": {"grpo": {"method": "grpo"}}}
        train = profile["train"] | fields.get("train", {})
        fields = yaml.safe_dump(profile | fields | {"train": train})
    data = fields.encode() if isinstance(fields, str) else fields
    (folder / "own.yaml").write_bytes(data)
    (folder / "dangling").symlink_to("nowhere/at/all")
    (folder / "def.py").write_text("def")
    (folder / "exit.py").write_text("import sys; sys.exit(0)")
    return folder


def written(folder):
    return {path for path in folder.rglob("*") if "bases" not in path.parts}


def assert_refused(folder, words, monkeypatch, named=""):
    monkeypatch.chdir(folder)
    monkeypatch.setattr("gdro_lab.experiments.jobs.set_up_process", lambda: None)
    before = written(folder)
    ended = CliRunner().invoke(main, words)
    assert ended.exit_code == 2, (ended.output, ended.exception)
    lines = [line for line in ended.stderr.splitlines() if line.startswith("gdro ")]
    is_clicks_own = "Usage:" in ended.stderr
    assert len(lines) == 1 or is_clicks_own, ended.stderr
    assert "Traceback" not in ended.stderr
    assert named in ended.stderr
    assert SECRET not in ended.output
    assert written(folder) == before


TRAIN_OWN = ["train", "own.yaml", "grpo", "--cache-dir", "bases"]


@pytest.mark.parametrize("train", TRAIN, ids=short)
def test_a_value_that_a_library_refuses(tmp_path, monkeypatch, train):
    assert_refused(folder_with(tmp_path, {"train": train}), TRAIN_OWN, monkeypatch)


@pytest.mark.parametrize("named", NAMED)
def test_a_profile_that_cannot_be_meant_is_refused_by_name(tmp_path, monkeypatch, named):
    folder = folder_with(tmp_path, NAMED[named])
    assert_refused(folder, TRAIN_OWN, monkeypatch, named.partition(" must:")[0])


@pytest.mark.parametrize("model", MODEL, ids=short)
def test_a_model_that_cannot_be_made(tmp_path, monkeypatch, model):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert_refused(folder_with(tmp_path, {"model": model}), TRAIN_OWN, monkeypatch)


@pytest.mark.parametrize("variant", VARIANT, ids=short)
def test_a_variant_that_cannot_be_trained(tmp_path, monkeypatch, variant):
    fields = {"variants": {"grpo": {"method": "grpo"} | variant}}
    assert_refused(folder_with(tmp_path, fields), TRAIN_OWN, monkeypatch)


@pytest.mark.parametrize("fields", SECRETS, ids=short)
def test_a_secret_is_refused_and_not_printed(tmp_path, monkeypatch, fields):
    assert_refused(folder_with(tmp_path, fields), TRAIN_OWN, monkeypatch)


@pytest.mark.parametrize("kind", TEXTS)
def test_a_file_that_is_no_profile(tmp_path, monkeypatch, kind):
    assert_refused(folder_with(tmp_path, TEXTS[kind]), TRAIN_OWN, monkeypatch)


@pytest.mark.parametrize("line", LINES, ids=short)
def test_a_line_that_cannot_be_meant(tmp_path, monkeypatch, line):
    assert_refused(folder_with(tmp_path, {}), line.split(), monkeypatch)


@pytest.mark.parametrize("line", NAMED_LINES)
def test_what_a_line_names_in_vain_is_said(tmp_path, monkeypatch, line):
    assert_refused(folder_with(tmp_path, {}), line.split(), monkeypatch, NAMED_LINES[line])


@pytest.mark.parametrize("threads", THREADS, ids=short)
def test_a_number_of_threads_is_one(tmp_path, monkeypatch, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    assert_refused(folder_with(tmp_path, {}), TRAIN_OWN, monkeypatch, "OMP_NUM_THREADS")


def test_an_arithmetic_that_does_not_exist(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "nobody")
    assert_refused(folder_with(tmp_path, {}), TRAIN_OWN, monkeypatch)
