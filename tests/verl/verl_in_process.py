"""What needs verl and no run: python verl_in_process.py FOLDER.

A model and data for a run; our advantages beside verl's own on the same rows; what is refused.
"""

import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import ray
import torch
from make_run import make_run
from omegaconf import OmegaConf
from verl.protocol import DataProto
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

import examples.peers  # noqa: F401  (has dr_grpo)
from gdro.verl.config import controller_of, scale_of
from gdro.verl.trainer import GDROTrainerSync

SIZES = (2, 3, 4, 5, 6)
TOKENS = 7
REFUSED = {  # what a message must name: what was set
    "gdro.method": {},
    "kept texts": {"gdro.method": "raft"},
    "surrogate losses": {"gdro.method": "prompt", "gdro.options": {"signal": "surrogate"}},
    "filter_groups": {"gdro.method": "grpo", "algorithm.filter_groups.enable": True},
    "adv_estimator": {"gdro.method": "grpo", "algorithm.adv_estimator": "grpo"},
    "gdro.options": {"gdro.method": "both", "gdro.options": {"n_maxx": 8}},
}


def config_of(changes):
    config = OmegaConf.create()
    own = {"algorithm.norm_adv_by_std_in_grpo": True, "algorithm.adv_estimator": "gdro"}
    for name, value in (own | {"actor_rollout_ref.rollout.n": 4} | changes).items():
        OmegaConf.update(config, name, value)
    return config


def refusal(changes):
    try:
        controller_of(config_of(changes))
    except ValueError as error:
        return str(error)
    return ""


def ended_by_the_command():
    """How verl's command ends with a method that it cannot have, and whether Ray had started."""
    own = ["--config-path=pkg://gdro.verl", "--config-name=gdro"]
    sys.argv = ["main_ppo", *own, "gdro.method=dapo", "hydra.run.dir=."]
    try:
        runpy.run_module("verl.trainer.main_ppo", run_name="__main__")
    except SystemExit as ended:
        return {"said": ended.code, "has_started": ray.is_initialized()}


def rows(rng):
    """Keys, rewards (R, T) and masks (R, T) of groups; every fifth rollout has two outputs."""
    keys = []
    for prompt, size in enumerate(SIZES):
        for session in range(size):
            outputs = 2 if (prompt + session) % 5 == 0 else 1
            keys += [f"prompt{prompt}_{session}_{output}" for output in range(outputs)]
    keys = [keys[place] for place in rng.permutation(len(keys))]
    lengths = rng.integers(1, TOKENS + 1, len(keys))
    mask = torch.arange(TOKENS) < torch.tensor(lengths)[:, None]
    rewards = torch.zeros(len(keys), TOKENS)
    rewards[torch.arange(len(keys)), torch.tensor(lengths) - 1] = torch.tensor(
        rng.normal(size=len(keys)), dtype=torch.float32
    )
    return keys, rewards, mask.float()


def verls_own(keys, rewards, mask, norm):
    tensors = {"token_level_rewards": rewards, "response_mask": mask}
    prompts = np.array([key.split("_")[0] for key in keys], dtype=object)
    data = DataProto.from_dict(tensors=tensors, non_tensors={"uid": prompts})
    data = compute_advantage_for_multi_trajectories(
        data, keys, "grpo", norm_adv_by_std_in_grpo=norm, config=None
    )
    return data.batch["advantages"]


def ours(keys, rewards, mask, norm, method):
    """Of the trainer's own function, with two rows of padding."""
    config = config_of({"gdro.method": method, "algorithm.norm_adv_by_std_in_grpo": norm})
    controller = controller_of(config)
    plan = controller.plan([f"prompt{prompt}" for prompt in range(len(SIZES))])
    # as if the plan had been uneven
    controller._open[plan.number][:] = SIZES
    trainer = SimpleNamespace(
        config=config,
        controller=controller,
        plan=plan,
        is_verls=controller.is_trainers_own(scale_of(config)),
        _keys=[*keys, "pad0_0_0", "pad0_1_0"],
        _place_of={f"prompt{prompt}": prompt for prompt in range(len(SIZES))},
    )
    index = np.array([key.split("_")[0] for key in trainer._keys], dtype=object)
    rewards = torch.cat([rewards, torch.zeros(2, TOKENS)])
    mask = torch.cat([mask, torch.ones(2, TOKENS)])
    advantages, _ = GDROTrainerSync._advantages(trainer, rewards, mask, index)
    return advantages


def main(folder):
    make_run(Path(folder))
    keys, rewards, mask = rows(np.random.default_rng(0))
    found = {
        "rows": len(keys),
        "rollouts": sum(SIZES),
        "prompts": len(SIZES),
        "largest": float(verls_own(keys, rewards, mask, True).abs().max()),
        "padding": 0.0,
        "refused": {named: refusal(changes) for named, changes in REFUSED.items()},
    }
    cases = {"grpo": ("grpo", True), "unnormalized": ("grpo", False), "dr_grpo": ("dr_grpo", False)}
    for name, (method, norm) in cases.items():
        mine = ours(keys, rewards, mask, norm, method)
        found[name] = float((mine[:-2] - verls_own(keys, rewards, mask, norm)).abs().max())
        found["padding"] += float(mine[-2:].abs().max())
    found["command"] = ended_by_the_command()
    Path(folder, "report.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
