"""The controller that a configuration of verl asks for, and what is refused before Ray starts."""

import sys

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

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
        except ValueError as error:
            sys.exit(f"gdro: {error}")  # of a callback, Hydra ignores all other exceptions


def controller_of(config: DictConfig) -> GDROController:
    """The controller that `gdro:` asks for; n̄ is `actor_rollout_ref.rollout.n`.

    ValueError for options that the controller or the method does not take, a method that needs
    more than one generation a step, losses or kept texts, and settings of verl that would bring
    other rollouts than those planned.
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


def scale_of(config: DictConfig) -> str:
    """What verl divides advantages by, as a value of `Run.scale_rewards`."""
    return "group" if config.algorithm.norm_adv_by_std_in_grpo else "none"
