"""The controller that a configuration of verl asks for, and what is refused before Ray starts."""

import sys
from pathlib import Path

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, ListConfig, OmegaConf
from pyarrow import parquet

from gdro.advantages import preset_options
from gdro.checks import Refusal, build
from gdro.controller import GDROController

# A plan is of one batch, and correctness is read from the rewards that verl trains on.
MUST_BE = {
    "trainer.use_v1": True,
    "algorithm.adv_estimator": "gdro",
    "algorithm.filter_groups.enable": False,
    "algorithm.use_kl_in_reward": False,
    "trainer.v1.sampler.sync_refill_failed_groups": False,
    "skip.rollout_tq.enable": False,
}


class Check(Callback):
    """Hydra's callback that ends a run with one sentence in place of a traceback."""

    def on_job_start(self, config: DictConfig, **others: object) -> None:
        try:
            controller_of(config)
            check_batch(config)
        except ValueError as error:
            sys.exit(f"gdro: {error}")  # of a callback, Hydra ignores all other exceptions


def controller_of(config: DictConfig) -> GDROController:
    """The controller that `gdro:` asks for; n̄ is `actor_rollout_ref.rollout.n`.

    Raises:
        ValueError: for options that the controller or the method does not take, a method that needs
            more than one generation a step, losses or kept texts, and settings of verl that would
            bring other rollouts than those planned.
    """
    chosen = OmegaConf.to_container(config.get("gdro") or OmegaConf.create(), resolve=True)
    name = chosen.get("method", "???")
    if name == "???":
        raise Refusal("gdro.method must be named, such as gdro.method=pivotal, got none")
    for option, wanted in MUST_BE.items():
        value = OmegaConf.select(config, option, default=wanted)
        if value != wanted:
            raise Refusal(f"{option} must be {wanted} with gdro, got {value}")
    preset = chosen.get("preset", "default")
    advantages = {"scale_rewards": scale_of(config)} | preset_options(preset)
    controller = build(
        "gdro.options",
        GDROController,
        advantages | (chosen.get("options") or {}),
        method=name,
        preset=preset,
        seed=OmegaConf.select(config, "data.seed") or 0,  # verl's default is None
        mean_rollouts=config.actor_rollout_ref.rollout.n,
    )
    method = controller.method
    needs = {
        "several generations a step": method.samples_again,
        "surrogate losses": method.needs_losses,
        "kept texts": method.replays,
    }
    for need, is_needed in needs.items():
        if is_needed:
            raise Refusal(f"gdro.method must not need {need}, which verl cannot give, got {name!r}")
    return controller


def check_batch(config: DictConfig) -> None:
    """Refuse a batch larger than the training data: verl would divide by no batches an epoch.

    Files that are not here, or neither Parquet nor lines of JSON, are left to verl.
    """
    files = config.data.train_files
    files = list(files) if isinstance(files, ListConfig) else [files]
    rows = 0
    for path in (Path(file).expanduser() for file in files):
        if not path.is_file() or path.suffix not in (".parquet", ".jsonl"):
            return
        if path.suffix == ".parquet":
            rows += parquet.read_metadata(path).num_rows
        else:
            rows += sum(1 for line in path.open("rb") if line.strip())
    most = config.data.get("train_max_samples", -1)
    rows = min(rows, most) if most > 0 else rows
    if config.data.train_batch_size > rows:
        raise Refusal(
            "data.train_batch_size must be at most the rows of data.train_files, "
            f"{rows}, got {config.data.train_batch_size}"
        )


def scale_of(config: DictConfig) -> str:
    """What verl divides advantages by, as a value of `Run.scale_rewards`."""
    return "group" if config.algorithm.norm_adv_by_std_in_grpo else "none"
