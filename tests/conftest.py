"""What tests share: small real runs; hypothesis tries the same examples everywhere, and keeps none."""

import pytest
import yaml
from hypothesis import HealthCheck, settings

settings.register_profile(
    "stable", derandomize=True, database=None, deadline=None, max_examples=40,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
settings.load_profile("stable")

# first, so that no worker is left with one of them at the end
LONGEST = [
    "test_pipeline", "test_teaching_notebooks", "test_experiment", "test_check", "test_trainer",
    "test_training_notebook", "test_accelerate_configs", "test_jupyterlab", "test_vllm", "test_arena",
]  # fmt: skip

PATIENCE = 1800  # seconds after which a test ends what hangs: no machine is so busy

# for files that train: torch on one thread; transformers and TRL warn of their own affairs
TRAINS = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"),
]

SMALL_PROFILE = {
    "seeds": [0, 1],
    "task": {"kind": "chain", "n_train": 60, "n_eval_per_family": 4},
    "base": {"steps": 60, "batch_size": 32},
    "train": {"max_steps": 6, "prompts_per_step": 8, "save_steps": 2},
    "evaluation": {"samples": 4, "k": 4},
    "variants": {
        "grpo": {"method": "grpo"},
        "prompt": {"method": "prompt", "label": "Prompt-GDRO"},
        "rollout": {"method": "rollout", "label": "Rollout-GDRO"},
        "both": {"method": "both"},
    },
}


def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.timeout(PATIENCE))
    names = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: names.get(item.path.stem, len(names)))


@pytest.fixture(scope="module")
def one_thread():
    """torch on one thread: several on busy cores are many times slower."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    """The folder of a small base, made once."""
    import tiny_run

    return tiny_run.make_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Real runs of two methods with two seeds: (profile, runs folder, cache of bases)."""
    import torch

    from gdro.study import experiment
    from gdro.study.profiles import load_profile, run_folder

    folder = tmp_path_factory.mktemp("experiment")
    variants = {name: SMALL_PROFILE["variants"][name] for name in ("prompt", "rollout")}
    (folder / "small.yaml").write_text(yaml.safe_dump(SMALL_PROFILE | {"variants": variants}))
    profile, threads = load_profile(folder / "small.yaml"), torch.get_num_threads()
    torch.set_num_threads(1)
    for variant in ["base", *profile.variants]:
        for seed in [0] if variant == "base" else profile.seeds:
            run = profile, variant, seed, run_folder(folder / "runs", variant, seed), folder / "bases"
            if variant != "base":
                experiment.train_variant(*run)
            experiment.evaluate_variant(*run)
    torch.set_num_threads(threads)
    return profile, folder / "runs", folder / "bases"
