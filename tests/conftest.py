"""What tests share: small real runs; hypothesis tries the same examples everywhere, keeps none."""

from gdro_lab import numerics

numerics.fix()  # before torch and numpy are imported
numerics.fix_engines()

import drawing_peers  # noqa: F401  (registers methods of examples)
import peers  # noqa: F401
import pytest
import yaml
from hypothesis import HealthCheck, settings

import gdro.peers  # noqa: F401  (registers the published methods)

settings.register_profile(
    "stable",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("stable")

# a worker runs a file, as its fixtures are made once; of these every test, as they share none
APART = {"test_teaching_notebooks"}
# first, so that no worker is left with one of them at the end
LONGEST = [
    "test_teaching_notebooks",
    "test_real_model",
    "test_verl",
    "test_run",
    "test_vllm",
    "test_trl_users",
    "test_parameters",
    "test_trainer",
    "test_notebook",
    "test_jobs",
    "test_trl_setups",
    "test_unsloth",
    "test_accelerate_configs",
    "test_rounds",
    "test_replay_buffer",
    "test_rewards_and_data",
    "test_checkpoint",
    "test_arena",
    "test_fuzz",
]

PATIENCE = 1800  # seconds after which a test ends what hangs: no machine is so busy

# for files that train: torch on one thread; transformers and TRL warn of their own affairs
TRAINS = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings(
        "ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
    ),
]

SMALL_PROFILE = {
    "seeds": [0, 1],
    "one_task": True,
    "task": {"kind": "embedded", "n_train": 60, "n_eval_per_family": 4},
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


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist's own, which reads the groups
def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.timeout(PATIENCE))
        is_apart = item.path.stem in APART
        item.add_marker(pytest.mark.xdist_group(item.nodeid if is_apart else str(item.path)))
        if item.path.parent.name == "gpu":
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.filterwarnings("default"))
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
def folders(tmp_path_factory):
    """The folders of tiny random models, by family."""
    from tiny_models import FAMILIES, save_tiny_model

    root = tmp_path_factory.mktemp("models")
    return {family: save_tiny_model(family, root / family) for family in FAMILIES}


@pytest.fixture(scope="session")
def profile_of(tmp_path_factory):
    """Make a profile of SMALL_PROFILE with other fields."""
    from gdro_lab.experiments.profile import load_profile

    def made(**fields):
        path = tmp_path_factory.mktemp("profile") / "small.yaml"
        path.write_text(yaml.safe_dump(SMALL_PROFILE | fields))
        return load_profile(path)

    return made


@pytest.fixture
def build(folders, tmp_path, monkeypatch):
    """Make a trainer of a tiny model, whose completions are random bytes.

    It is TRL's own where the method is None; `change`: a class whose functions come before it.
    """
    from datasets import Dataset
    from scripted import CHATS, even, scripted
    from tiny_models import byte_tokenizer, fresh_model
    from tiny_run import arguments
    from trl import GRPOConfig, GRPOTrainer

    from gdro.trainer import GDROConfig, GDROTrainer

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", scripted)
    monkeypatch.setattr(GDROTrainer, "leaves_page", False)
    monkeypatch.setattr("gc.collect", lambda: 0)  # of accelerate: most of a small run's time

    def made(
        method,
        reward=even,
        rows=CHATS,
        change=None,
        tokenizer=None,
        given=(),
        args=None,
        family="Qwen3",
        **own,
    ):
        settings = {"per_device_train_batch_size": 8, "max_completion_length": 10, "max_steps": 2}
        settings |= {"learning_rate": 1e-2, "num_generations": 4} | own
        if method is not None:
            settings["gdro_method"] = method
        if method == "grpo":  # which is TRL bit for bit, for comparisons
            settings = {"trim_batches": False} | settings
        config, base = (GRPOConfig, GRPOTrainer) if method is None else (GDROConfig, GDROTrainer)
        kind = type("Changed", (change, base), {}) if change else base
        return kind(
            fresh_model(folders[family]),
            reward,
            args=args or arguments(config, tmp_path / str(method), **settings),
            train_dataset=Dataset.from_list(rows) if isinstance(rows, list) else rows,
            processing_class=tokenizer or byte_tokenizer(),
            **dict(given),
        )

    return made


@pytest.fixture
def trained(build):
    """The same, after its training."""

    def done(*given, resume=None, before=lambda trainer: None, **named):
        trainer = build(*given, **named)
        before(trainer)
        trainer.train(resume)
        return trainer

    return done


@pytest.fixture
def load(tmp_path):
    """Rows of one's own, or their file → the split that a profile's task makes of them."""
    from helpers import write_lines
    from tiny_models import byte_tokenizer

    from gdro_lab.tasks import MathChoice, load_split

    def write(name, rows):
        return str(write_lines(tmp_path / f"{name}.jsonl", rows))

    def make(rows, chat=True, tokenizer=None, **fields):
        tokenizer = tokenizer or byte_tokenizer()
        tokenizer.chat_template = tokenizer.chat_template if chat else None
        other = write("other", [{"question": "Which is evaluated?", "answer": "0"}])
        defaults = {
            "train": rows if isinstance(rows, str) else write("own", rows),
            "evaluate": [{"source": other, "columns": {}, "answer": "whole"}],
        }
        choice = MathChoice(kind="math", **(defaults | fields))
        return load_split(choice, tokenizer, held_out=False)

    return make
