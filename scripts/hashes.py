"""Print SHA-256 hashes of what a refactoring must not change, a line each.

    python scripts/hashes.py > before.txt
    python scripts/hashes.py | diff before.txt -

Three kinds of runs, all on one thread and with seeds: the controller with every registered method
in both presets, the loop, and GDROTrainer, both on a tiny random model. Times are left out, and so
are the settings in a saved state, which say what a run was asked for and not what it did.
"""

import contextlib
import hashlib
import io
import os
import runpy
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from gdro_lab import numerics

numerics.fix()  # before torch and numpy are imported

import numpy as np
import torch
import transformers
from transformers.utils.logging import disable_progress_bar

from gdro import GDROController, method_names
from gdro_lab import loop
from gdro_lab.tasks import embedded

EXAMPLES = Path(__file__).parents[1] / "examples"
PRESETS = ("default", "paper")
SEEDS = (0, 1)
BATCHES = 12  # of a run of the controller
POOL = 40  # prompts of its data set
PROMPTS = 8  # of a batch, everywhere
ROLLOUTS = 4  # per prompt, on average, everywhere
STEPS = 3  # of a training
TOKENS = 4  # of a completion
# of methods that do little, or nothing, without them
OPTIONS: dict[str, dict[str, Any]] = {
    "oracle": {"rates": lambda uids: np.asarray(uids) % 10 / 10},
    "pivotal_replay": {"prompts": 4, "start_at": 2},
    "raft": {"prompts": 4},
}
LOOP_METHODS = ("grpo", "prompt", "rollout", "both", "pivotal", "pivotal_replay")
TRAINER_METHODS = (*LOOP_METHODS[:-1], "dapo", "dars")
LEFT_OUT = {"seconds", "controller_seconds", "mixed", "settings"}
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}


def digest(*values: Any) -> str:
    """SHA-256 of nested values: arrays by kind, shape and bytes, anything else by its repr."""
    total = hashlib.sha256()
    for value in values:
        total.update(_bytes_of(value))
    return total.hexdigest()


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        return repr((value.dtype.str, value.shape)).encode() + value.tobytes()
    if isinstance(value, Mapping):  # in any order of its keys
        names = sorted(name for name in value if name not in LEFT_OUT)
        value = [(name, value[name]) for name in names]
    if isinstance(value, list | tuple):
        return b"[" + b",".join(map(_bytes_of, value)) + b"]"
    return repr(value).encode()


def controller_run(method: str, preset: str, seed: int) -> str:
    """Everything that a controller answers in some batches, and its state at the end."""
    options = OPTIONS.get(method, {})
    controller = GDROController(method, ROLLOUTS, preset=preset, seed=seed, **options)
    rng = np.random.default_rng(seed)
    uids_D = 1000 + rng.permutation(POOL)
    skills_D = rng.random(POOL)
    solved_D = np.zeros(POOL, bool)
    answers: list[Any] = []
    for _ in range(BATCHES):
        drawn_P = controller.draw(uids_D, PROMPTS)
        answers.append(drawn_P)
        if drawn_P is None:
            drawn_P = rng.choice(POOL, PROMPTS, replace=False)
        plan = controller.plan(uids_D[drawn_P])
        more_P = plan.rollouts
        groups_R = np.zeros(0, np.int64)
        correct_R = np.zeros(0, bool)
        while more_P is not None:
            answers.append(more_P)
            new_R = np.repeat(np.arange(PROMPTS), more_P)
            groups_R = np.append(groups_R, new_R)
            correct_R = np.append(correct_R, rng.random(len(new_R)) < skills_D[drawn_P[new_R]])
            more_P = controller.extend(plan, groups_R, correct_R * 1.0, correct=correct_R)
        kept_R = rng.random(len(groups_R)) < 0.95  # an engine may drop some
        losses_R = rng.normal(size=len(groups_R))[kept_R]
        observed = controller.observe(
            plan,
            groups_R[kept_R],
            correct_R[kept_R] * 1.0,
            correct=correct_R[kept_R],
            losses=losses_R if controller.method.needs_losses else None,
        )
        answers += [observed.weights, observed.advantages, observed.row, observed.ready]
        solved_D[drawn_P[groups_R[correct_R]]] = True
        answers.append(controller.replay(uids_D[solved_D]))
    return digest(answers, controller.state_dict())


def half_right(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    """A reward that a random model earns now and then."""
    pairs = zip(completions, answer, strict=True)
    return [float(bool(text) and (ord(text[0]) + ord(right[0])) % 2) for text, right in pairs]


def random_model(task: Any) -> tuple[Any, Any]:
    """A tiny Qwen3 that nobody trained, always the same, and the task's tokenizer."""
    tokenizer = task.tokenizer()
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer),
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **SIZES,
    )
    torch.manual_seed(0)
    return transformers.Qwen3ForCausalLM(config), tokenizer


def loop_run(method: str) -> str:
    """Record and weights of a training by the loop."""
    task = embedded.DEFAULT_SPEC.draw(0)
    model, tokenizer = random_model(task)
    controller = GDROController(method, ROLLOUTS, **OPTIONS.get(method, {}))
    record = loop.train(
        model,
        tokenizer,
        task.train[:POOL],
        half_right,
        controller,
        steps=2 * STEPS,
        prompts=PROMPTS,
        learning_rate=1e-3,
        max_new_tokens=TOKENS,
        seed=0,
    )
    return digest(record, list(model.parameters()), controller.state_dict())


def train_in_trl(model: Any, tokenizer: Any, rows: Any, **arguments: Any) -> Any:
    """The trainer of a training that has ended."""
    from datasets import Dataset

    from gdro.trainer import GDROConfig, GDROTrainer

    with tempfile.TemporaryDirectory() as folder:
        args = GDROConfig(
            output_dir=folder,
            seed=0,
            num_generations=ROLLOUTS,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            **arguments,
        )
        trainer = GDROTrainer(
            model,
            half_right,
            args=args,
            train_dataset=Dataset.from_list(list(rows)),
            processing_class=tokenizer,
        )
        trainer.train()
    return trainer


def trainer_run(method: str) -> str:
    """Record and weights of a training in TRL."""
    task = embedded.DEFAULT_SPEC.draw(0)
    trainer = train_in_trl(
        *random_model(task),
        task.train[:POOL],
        gdro_method=method,
        trim_batches=False,  # the bits of what may be left out depend on how it is left out
        gdro_options=OPTIONS.get(method),
        max_steps=STEPS,
        per_device_train_batch_size=PROMPTS * ROLLOUTS,
        max_completion_length=TOKENS,
        learning_rate=1e-3,
    )
    weights = list(trainer.model.parameters())
    return digest(trainer.record, weights, trainer.controller.state_dict())


def runs() -> Iterator[tuple[str, Callable[[], str]]]:
    """The name of each run, and what computes its hash."""
    for file in ("peers.py", "drawing_peers.py"):  # which register further methods
        runpy.run_path(str(EXAMPLES / file))
    for method in method_names():
        for preset in PRESETS:
            for seed in SEEDS:
                name = f"controller/{method}/{preset}/{seed}"
                yield name, partial(controller_run, method, preset, seed)
    for method in LOOP_METHODS:
        yield f"loop/{method}", partial(loop_run, method)
    for method in TRAINER_METHODS:
        yield f"trainer/{method}", partial(trainer_run, method)


def main() -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    disable_progress_bar()
    torch.set_num_threads(1)
    for name, compute in runs():
        with contextlib.redirect_stdout(io.StringIO()):  # TRL prints its last log
            made = compute()
        print(name, made, flush=True)


if __name__ == "__main__":
    main()
