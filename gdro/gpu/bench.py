"""What the checks of `gdro check` share: results, small trainings, and a look at each generation batch."""

import importlib.util
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gdro.methods import Method, register
from gdro.study.profiles import Profile


@dataclass
class CheckResult:
    """What was measured beside what is allowed; why: a reason, or the end of an error."""

    check: str
    status: str  # PASS, FAIL or SKIP
    measured: str = ""
    allowed: str = ""
    why: str = ""


class Skipped(Exception):
    """Why a check cannot run on this machine."""


def verdict(check: str, is_good: bool, measured: str, allowed: str) -> CheckResult:
    """PASS or FAIL."""
    return CheckResult(check, "PASS" if is_good else "FAIL", measured, allowed)


@register("one-two-three")
class OneTwoThree(Method):
    """Rollouts in the proportions 1, 2, 3, 1, 2, 3, …, however well a model does."""

    def allocate(self, prompts: Any, budget: int, rng: Any) -> np.ndarray:
        return np.arange(len(prompts)) % 3 + 1.0


@dataclass
class Bench:
    """Where checks run: a folder for what they leave, and small trainings on the embedded task.

    profile: whose size is measured. source: a model in place of the base that is made here. reloads: whether
    vLLM takes new weights on a CPU too, where it packs those that it starts with; the tests see to that.
    """

    folder: Path
    profile: str | None = None
    source: str | None = None
    cache_dir: str = ".cache/bases"
    reloads: bool = False
    devices: int = field(init=False)

    def __post_init__(self) -> None:
        import torch

        self.devices = torch.cuda.device_count()
        self.tolerance = 0.02 if self.devices else 0.01  # of a mean |Δ log-probability| at 16 bits

    def needs(self, *modules: str, gpu: bool = False) -> None:
        """Skip without these packages, or without a GPU where one is needed."""
        if missing := [name for name in modules if importlib.util.find_spec(name) is None]:
            raise Skipped(f"{', '.join(missing)} not installed here (docs/gpu-box.md, 1)")
        if gpu and not self.devices:
            raise Skipped("needs a GPU")

    def small_profile(self, method: str = "grpo", model: dict | None = None, **train: Any) -> Profile:
        """A profile of one variant, "check"."""
        base = {"size": "mid"} if self.devices else {"size": "tiny", "steps": 400}
        shape = {"prompts_per_step": 64, "num_generations": 8} if self.devices else {"prompts_per_step": 24}
        every: dict[str, Any] = shape | {"max_steps": 3, "learning_rate": 1e-3, "trim_batches": True}
        every |= {"vllm_gpu_memory_utilization": 0.1, "vllm_importance_sampling_mode": "token_truncate"}
        every |= train
        fields = {
            "name": "check",
            "seeds": [0],
            "base": base,
            "model": {"source": self.source} | (model or {}),
        }
        prompts = {"n_train": 2 * every["prompts_per_step"], "n_eval_per_family": 6}
        fields |= {"task": {"kind": "chain"} | prompts}
        fields |= {"train": {"save_steps": every["max_steps"]} | every}
        return Profile.model_validate(fields | {"variants": {"check": {"method": method}}})

    def trainer(self, name: str, *choices: Any, **given: Any) -> Any:
        """A GDROTrainer, put together as a profile's trainings are, whose attribute `watch` is a `Watch`."""
        from gdro.study.experiment import Training

        profile = self.small_profile(*choices, **given)
        trainer = Training(profile, "check", 0, self.folder / name, self.cache_dir).make_trainer()
        trainer.watch = Watch(trainer)
        return trainer


def start_training(profile: Profile, variant: str, folder: Path, cache_dir: str) -> subprocess.Popen:
    """`gdro train` with seed 0, in a process of its own."""
    file = folder.parent / f"{folder.name}.yaml"
    file.write_text(profile.model_dump_json())  # JSON is YAML
    command = [sys.executable, "-m", "gdro", "train", str(file), variant, "--folder", str(folder)]
    return subprocess.Popen([*command, "--cache-dir", cache_dir])


class Watch:
    """Looks at each generation batch of a trainer: rollouts, advantages, and the engine's log-probabilities.

    Attributes:
        gaps, old_gaps: means over tokens of |log-probability by the engine − by the trainer|, with its
            weights of now and with those of the batch before.
        ratios: means of the ratio of these probabilities. tokens: how many there were.
        prompts, planned: rollouts of each prompt, in order of size, as they came and as they were planned.
        errors: largest differences of the advantages to (3) in plain numpy.
        inputs: of the losses.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.before, self.tokens = trainer, dict[str, Any](), 0
        self.gaps, self.old_gaps, self.ratios = list[float](), list[float](), list[float]()
        self.prompts, self.planned, self.errors = list[list[int]](), list[list[int]](), list[float]()
        self.inputs = list[dict[str, Any]]()
        self.score, self.observe = trainer._generate_and_score_completions, trainer.controller.observe
        self.loss = trainer.compute_loss
        trainer._generate_and_score_completions = self._scored
        trainer.controller.observe, trainer.compute_loss = self._observed, self._loss

    def _observed(self, plan: Any, groups: Any, rewards_R: Any, **given: Any) -> Any:
        self.planned.append(sorted(n for n in plan.rollouts.tolist() if n))
        self.rewards_R = np.asarray(rewards_R)
        return self.observe(plan, groups, rewards_R, **given)

    def _loss(self, model: Any, inputs: dict[str, Any], *args: Any, **given: Any) -> Any:
        self.inputs.append(dict(inputs))
        return self.loss(model, inputs, *args, **given)

    def _scored(self, rows: Any) -> dict[str, Any]:
        import torch

        output = self.score(rows)
        pairs = zip(output["prompt_ids"], output["prompt_mask"], strict=True)
        prompts_R = [tuple(ids[mask.bool()].tolist()) for ids, mask in pairs]
        self.prompts.append(sorted(Counter(prompts_R).values()))
        self.errors.append(_advantage_error(prompts_R, self.rewards_R, output["advantages"].tolist()))
        if (sampled := output.get("sampling_per_token_logps")) is None:
            return output
        kept = output["completion_mask"].bool() & ~sampled.isnan()
        weights = {name: w for name, w in self.trainer.model.named_parameters() if w.requires_grad}
        with torch.no_grad():
            difference = (own_logps(self.trainer, output) - sampled)[kept]
            now = {name: weight.detach().clone() for name, weight in weights.items()}
            if self.before:
                for name, weight in weights.items():
                    weight.copy_(self.before[name])
                old = (own_logps(self.trainer, output) - sampled)[kept]
                self.old_gaps.append(float(old.abs().mean()))
                for name, weight in weights.items():
                    weight.copy_(now[name])
        self.gaps.append(float(difference.abs().mean()))
        self.ratios.append(float(difference.exp().mean()))
        self.before, self.tokens = now, self.tokens + int(kept.sum())
        return output


def own_logps(trainer: Any, output: dict[str, Any]) -> Any:
    """Log-probabilities of the completions by the trainer's model, (R, T)."""
    import torch

    ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
    mask = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
    length = output["completion_ids"].size(1)
    logps, *_ = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, length, batch_size=64)
    # Unsloth's rows begin with the end of the longest prompts
    start_R = (logps.size(1) - length - (output["prompt_mask"] == 0).sum(dim=1)).clamp(min=0)
    return logps.gather(1, start_R[:, None] + torch.arange(length, device=logps.device))


def _advantage_error(prompts_R: list, rewards_R: np.ndarray, advantages_R: list[float]) -> float:
    """Largest difference of advantages to (r − mean) / (standard deviation + 1e-4) of a prompt's rollouts."""
    groups_R, wanted_R = np.array([hash(prompt) for prompt in prompts_R]), np.zeros(len(prompts_R))
    for group in set(groups_R.tolist()):
        own = groups_R == group
        spread = rewards_R[own].std(ddof=1) if own.sum() > 1 else 0.0
        wanted_R[own] = (rewards_R[own] - rewards_R[own].mean()) / (spread + 1e-4)
    return float(np.abs(wanted_R - advantages_R).max())
