"""Small trainings on a GPU, and a look at each of their generation batches.

The model is the embedded task's base of 40 million parameters; nothing is downloaded.
"""

import signal
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import torch
from safetensors.numpy import load_file

from gdro.method import Method
from gdro.registry import register
from gdro_lab.experiments.play import open_training
from gdro_lab.experiments.profile import Profile
from gdro_lab.experiments.records import read_table

CACHE = ".cache/bases"
TOLERANCE = 0.02  # of a mean |Δ log-probability| in 16 bits


@register("one-two-three")
class OneTwoThree(Method):
    """Rollouts in the proportions 1, 2, 3, 1, 2, 3, …, however well a model does."""

    def allocate(self, prompts, budget, rng):
        return np.arange(len(prompts)) % 3 + 1.0


def small_profile(method, model=None, launch=None, **train):
    """A profile of one variant, "one"."""
    settings = {
        "prompts_per_step": 64,
        "num_generations": 8,
        "max_steps": 3,
        "learning_rate": 1e-3,
        "trim_batches": True,
        "vllm_gpu_memory_utilization": 0.1,
        "vllm_importance_sampling_mode": "token_truncate",
    } | train
    return Profile.model_validate(
        {
            "name": "small",
            "seeds": [0],
            "gpus": (launch or {}).get("processes", 1),
            "base": {"size": "mid"},
            "task": {"kind": "embedded", "n_train": 128, "n_eval_per_family": 6},
            "model": model or {},
            "launch": launch or {},
            "train": {"save_steps": settings["max_steps"]} | settings,
            "variants": {"one": {"method": method}},
        }
    )


def make_trainer(folder, method, model=None, **train):
    """A GDROTrainer, put together as a profile's trainings are, and its `Watch`."""
    profile = small_profile(method, model, **train)
    trainer = open_training(profile.run("one", 0), folder, CACHE).make_trainer()
    return trainer, Watch(trainer)


class Watch:
    """Looks at rollouts, advantages and the engine's log-probabilities of a trainer's batches.

    Attributes:
        gaps, old_gaps: means over tokens of |log-probability by the engine − by the trainer|, with
            its weights of now and with those of the batch before.
        ratios: means of the ratio of these probabilities.
        came, planned: rollouts of each prompt, in order of size.
        errors: largest differences of the advantages to (3) in plain numpy.
        inputs: of the losses.
    """

    def __init__(self, trainer):
        self.trainer, self.before = trainer, {}
        self.gaps, self.old_gaps, self.ratios, self.inputs = [], [], [], []
        self.came, self.planned, self.errors = [], [], []
        self.score, self.loss = trainer._generate_and_score_completions, trainer.compute_loss
        self.observe = trainer.controller.observe
        trainer._generate_and_score_completions = self._score
        trainer.controller.observe, trainer.compute_loss = self._observe, self._compute_loss

    def _observe(self, plan, group_ids, rewards, **given):
        self.planned.append(sorted(n for n in plan.rollouts.tolist() if n))
        self.rewards_R = np.asarray(rewards)
        return self.observe(plan, group_ids, rewards, **given)

    def _compute_loss(self, model, inputs, *args, **given):
        self.inputs.append(dict(inputs))
        return self.loss(model, inputs, *args, **given)

    def _score(self, rows):
        output = self.score(rows)
        pairs = zip(output["prompt_ids"], output["prompt_mask"], strict=True)
        prompts_R = [tuple(ids[mask.bool()].tolist()) for ids, mask in pairs]
        self.came.append(sorted(Counter(prompts_R).values()))
        advantages_R = output["advantages"].cpu().numpy()
        self.errors.append(advantage_error(prompts_R, self.rewards_R, advantages_R))
        if output.get("sampling_per_token_logps") is not None:
            self._compare(output)
        return output

    @torch.no_grad()
    def _compare(self, output):
        sampled = output["sampling_per_token_logps"]
        kept = output["completion_mask"].bool() & ~sampled.isnan()
        trained = {n: w for n, w in self.trainer.model.named_parameters() if w.requires_grad}
        now = {name: weight.detach().clone() for name, weight in trained.items()}
        gap = (self._own_logps(output) - sampled)[kept]
        for name, weight in trained.items():
            weight.copy_(self.before.get(name, weight))
        old_gap = (self._own_logps(output) - sampled)[kept]
        for name, weight in trained.items():
            weight.copy_(now[name])
        if self.before:
            self.old_gaps.append(float(old_gap.abs().mean()))
        self.gaps.append(float(gap.abs().mean()))
        self.ratios.append(float(gap.exp().mean()))
        self.before = now

    def _own_logps(self, output):
        """Log-probabilities of the completions by the trainer's model, (R, T)."""
        ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
        mask = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
        length = output["completion_ids"].size(1)
        logps, *_ = self.trainer._get_per_token_logps_and_entropies(
            self.trainer.model, ids, mask, length, batch_size=64
        )
        # Unsloth's rows begin with the end of the longest prompts
        start_R = (logps.size(1) - length - (output["prompt_mask"] == 0).sum(dim=1)).clamp(min=0)
        return logps.gather(1, start_R[:, None] + torch.arange(length, device=logps.device))

    def check_plans(self):
        """Each prompt came as often as planned, and its advantages are those of plain numpy."""
        assert self.came == self.planned
        assert len({n for counts in self.came for n in counts}) > 1
        assert max(self.errors) < 1e-4

    def check_engine(self, allowed=TOLERANCE, ratio=0.01, times=10):
        """The engine samples from the weights of the step, and not from those before it."""
        assert self.gaps[0] <= allowed
        assert abs(self.ratios[0] - 1) <= ratio
        new, old = max(self.gaps[1:3]), min(self.old_gaps[:2])
        assert new <= allowed
        assert old >= times * new


def advantage_error(prompts_R, rewards_R, advantages_R):
    """The largest difference of advantages to (3) in plain numpy."""
    groups_R = np.unique([hash(prompt) for prompt in prompts_R], return_inverse=True)[1]
    wanted_R = np.zeros(len(groups_R))
    for group in set(groups_R.tolist()):
        rewards = rewards_R[groups_R == group]
        spread = rewards.std(ddof=1) if len(rewards) > 1 else 0.0
        wanted_R[groups_R == group] = (rewards - rewards.mean()) / (spread + 1e-4)
    return float(np.abs(wanted_R - advantages_R).max())


def frozen_weights(model):
    """Copies of the weights that are not trained."""
    return {n: w.detach().clone() for n, w in model.named_parameters() if not w.requires_grad}


def largest_change(model, before):
    """The largest relative change of a weight since `frozen_weights`."""
    now = dict(model.named_parameters())
    return max(
        float((now[name] - weight).float().norm() / weight.float().norm())
        for name, weight in before.items()
        if weight.any()
    )


def flat_gradient(model):
    """The gradients of all weights that have one, one after another."""
    found = [w.grad.detach().float().flatten() for w in model.parameters() if w.grad is not None]
    return torch.cat(found).cpu()


def check_trimming(folder, model=None):
    """Leaving out the rows without a signal leaves the gradient as it is, in 16 bits."""
    for loss in ("grpo", "bnpo", "dapo"):
        trainer, watch = make_trainer(folder / loss, "both", model, loss_type=loss, max_steps=1)
        trainer.train()
        trainer.model.train()
        inputs, grads = watch.inputs[0], []
        signs_R = torch.arange(len(inputs["advantages"])) % 3 - 1.0  # a third without a signal
        inputs["advantages"] = signs_R.to(inputs["advantages"])
        for trim in (False, True):
            trainer.args.trim_batches = trim
            trainer.model.zero_grad()
            watch.loss(trainer.model, dict(inputs)).backward()
            grads.append(flat_gradient(trainer.model))
        assert (grads[1] - grads[0]).norm() <= 2e-2 * grads[0].norm()


def check_resuming(folder, model=None):
    """A training that is killed resumes to the same record and the same weights.

    Kernels are deterministic, since others may add in another order the second time.
    """
    profile = small_profile("both", model, max_steps=6, save_steps=2, full_determinism=True)
    (folder / "own.yaml").write_text(profile.model_dump_json(exclude_unset=True))  # JSON is YAML

    def start(name):
        command = [sys.executable, "-m", "gdro_lab", "train", folder / "own.yaml", "one"]
        return subprocess.Popen([*command, "--folder", folder / name, "--cache-dir", CACHE])

    assert start("whole").wait() == 0
    killed, ledger = start("killed"), "killed/*/checkpoint-2/gdro_ledger.json"
    while killed.poll() is None and not list(folder.glob(ledger)):
        time.sleep(0.01)
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    assert start("killed").wait() == 0
    whole, resumed = folder / "whole", folder / "killed"
    records = (read_table(folder / "record.jsonl") for folder in (whole, resumed))
    different = [step for step, (a, b) in enumerate(zip(*records, strict=True)) if a != b]
    assert not different, different
    ours, theirs = (load_file(next((f / "model").glob("*.safetensors"))) for f in (whole, resumed))
    assert max(float(np.abs(ours[name] - theirs[name]).max()) for name in ours) <= 1e-6
