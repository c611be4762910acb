"""GDROTrainer: TRL's GRPOTrainer with a GDROController between its data and its advantages.

Nothing of GRPOTrainer is copied. A generation batch is re-planned before TRL generates from it (prompt i is
repeated n_i times, the total unchanged); the controller observes its rewards, and its advantages replace
TRL's. With method "grpo" the controller only watches, and training is TRL's own, bit for bit.

Axes: P prompts of the generation batch, R its rollouts, over all processes, in TRL's order.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object, set_seed
from trl import GRPOTrainer
from trl.trainer.utils import RepeatSampler

from gdro.beliefs import as_uids
from gdro.config import GDROConfig, check_cadence, check_dataset, controller_of, micro_steps
from gdro.methods.base import group_advantages
from gdro.records import load_state, save_state

STATE_FILE = "gdro_state.json"  # written last: a checkpoint that has it is whole


class GDROTrainer(GRPOTrainer):
    """GRPOTrainer whose prompts, rollouts and advantages come from a GDROController.

    Takes the arguments of GRPOTrainer, with a GDROConfig; refuses (ValueError), before the model is touched,
    data without unique uids and options that cannot be met, and during training rewards that are not finite.

    Attributes:
        controller: made from the config.
        record: one row a generation batch: what the controller saw and decided, rollouts and tokens.
        seconds: of the training, and in it of generation, scoring (probabilities of the old and the reference
            policy), reward and controller. All three travel in the checkpoint.
    """

    args: GDROConfig
    _logs: dict[str, Any]
    _tag_names = ["trl", "grpo", "gdro"]  # noqa: RUF012 (TRL's own attribute)

    def __init__(
        self, model: Any, reward_funcs: Any, args: GDROConfig, train_dataset: Any = None, **kwargs: Any
    ) -> None:
        check_dataset(train_dataset, args)
        self.controller = controller_of(args, train_dataset)
        check_cadence(args, self.controller)
        self.record: list[dict] = []
        self.seconds = dict.fromkeys(("train", "generate", "score", "reward", "controller"), 0.0)
        self._train_began = time.perf_counter()
        self._rewards_R: torch.Tensor | None = None
        self._uids_D = as_uids(train_dataset[args.uid_column])
        set_seed(args.seed)  # TRL puts the PEFT adapter on before it seeds
        super().__init__(model, reward_funcs, args=args, train_dataset=train_dataset, **kwargs)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        self._train_began = time.perf_counter()
        result = super().train(*args, **kwargs)
        self.seconds = self._seconds_so_far()
        return result

    def _seconds_so_far(self):
        return self.seconds | {"train": self.seconds["train"] + time.perf_counter() - self._train_began}

    # One generation batch

    def _generate_and_score_completions(self, inputs):
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        start = time.perf_counter()
        prompts = gather_object(inputs)[:: self.num_generations]
        if (drawn := self.controller.draw(self._uids_D, len(prompts))) is not None:
            prompts = [self.train_dataset[int(i)] for i in drawn]
        plan = self.controller.plan([row[self.args.uid_column] for row in prompts])
        group_ids_R = np.repeat(np.arange(len(prompts)), plan.rollouts)
        first = self.accelerator.process_index * len(inputs)  # TRL lays the processes end to end
        mine = slice(first, first + len(inputs))
        if self.controller.moves_rollouts or drawn is not None:
            inputs = [dict(prompts[p]) for p in group_ids_R[mine]]

        planned = time.perf_counter()
        seen_tokens = self.state.num_input_tokens_seen
        others = self.seconds["generate"] + self.seconds["reward"]
        output = super()._generate_and_score_completions(inputs)
        generated = time.perf_counter()
        assert self._rewards_R is not None  # set by _calculate_rewards, which TRL has just called
        rewards_R = self._rewards_R.cpu().numpy()

        losses_R = self._surrogate_losses(output, rewards_R, group_ids_R, len(prompts))
        batch = self.controller.observe(plan, group_ids_R, rewards_R, losses=losses_R)
        if self._own_advantages:
            advantages_R = torch.as_tensor(batch.advantages).to(self._rewards_R)
            output["advantages"] = advantages_R[mine]
            self._correct_trl_logs(rewards_R, group_ids_R, advantages_R)
        self._log_row(batch.row)
        others = self.seconds["generate"] + self.seconds["reward"] - others
        self.seconds["score"] += generated - planned - others
        self.seconds["controller"] += time.perf_counter() - generated + planned - start
        spent = {"global_step": self.state.global_step, "rollouts_spent": len(rewards_R)}
        spent["tokens"] = int(self.state.num_input_tokens_seen - seen_tokens)
        self.record.append(batch.row | spent)
        return output

    @property
    def _own_advantages(self):
        """Whether TRL's advantages are replaced; if not, training is TRL's own, bit for bit."""
        as_trl = self.args.advantage_std == "sample" and self.args.advantage_clip is None
        return self.controller.name != "grpo" or not as_trl

    def _generate(self, prompts):
        start = time.perf_counter()
        output = super()._generate(prompts)
        if self.model.training:
            self.seconds["generate"] += time.perf_counter() - start
        return output

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, **kwargs):
        # where every `num_generations` rows are one prompt, a vLLM server samples from each n-th row alone;
        # row by row its prefix cache shares the prompt as well (benchmarks/prefix.py)
        if self.model.training and self.controller.moves_rollouts:
            num_generations = 1
        return super()._generate_single_turn(prompt_ids, images, multimodal_fields, num_generations, **kwargs)

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        start = time.perf_counter()
        rewards_per_func = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if self.model.training:
            self.seconds["reward"] += time.perf_counter() - start
            for rewards_R, name in zip(rewards_per_func.T, self.reward_func_names, strict=True):
                if bad := int((~torch.isfinite(rewards_R)).sum()):
                    raise ValueError(
                        f"reward function {name!r} gave None, NaN or infinity for {bad} of {len(rewards_R)} "
                        "completions; return a number for every completion"
                    )
            weights = self.reward_weights.to(rewards_per_func.device)
            self._rewards_R = (rewards_per_func * weights).sum(dim=1)
        return rewards_per_func

    def _surrogate_losses(self, output, rewards_R, group_ids_R, num_prompts):
        """ℓ_ij of (6) for all rollouts at the sampling policy (ρ = 1), (R,); None where it is −A_ij."""
        if not self.controller.needs_losses or self.beta == 0.0:
            return None
        run = self.controller.run
        options = (run.advantage_std, run.scale_rewards, run.advantage_clip)
        kl_R = self.accelerator.gather(self._mean_kl(output)).cpu().numpy()
        return self.beta * kl_R - group_advantages(rewards_R, group_ids_R, num_prompts, *options)

    @torch.no_grad()
    def _mean_kl(self, output):
        """KL(π_θ ‖ π_ref) of each local rollout, averaged over its tokens, by TRL's estimator."""
        logps = output.get("old_per_token_logps")
        if logps is None:
            ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
            mask = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
            size = {"batch_size": self.args.per_device_train_batch_size}
            tokens = output["completion_ids"].size(1)
            logps, *_ = self._get_per_token_logps_and_entropies(self.model, ids, mask, tokens, **size)
        gap = output["ref_per_token_logps"] - logps
        mask = output["completion_mask"]
        return ((gap.exp() - gap - 1) * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)

    # What TRL logs

    def _correct_trl_logs(self, rewards_R, group_ids_R, advantages_R):
        """Replace what TRL has just logged on the assumption of groups of equal size."""
        spread_R = group_advantages(rewards_R, group_ids_R, int(group_ids_R.max()) + 1, scale="none")
        mixed_P = np.bincount(group_ids_R, spread_R**2) > 1e-12
        self._metrics["train"]["frac_reward_zero_std"][-1] = float(1.0 - mixed_P[group_ids_R].mean())
        logged = self._logs["advantages"]
        for _ in range(min(len(logged), len(advantages_R))):
            logged.pop()
        logged.extend(advantages_R.tolist())

    def _log_row(self, row):
        """Log every number of the row, lists by bin."""
        for name, value in row.items():
            places = enumerate(value) if isinstance(value, list) else [("", value)]
            for place, number in places:
                if isinstance(number, int | float):
                    self._metrics["train"][f"gdro/{name}/{place}".rstrip("/")].append(number)

    # Checkpoints and resuming

    def _get_train_sampler(self, dataset=None):
        sampler = super()._get_train_sampler(dataset)
        names = ("data_source", "mini_repeat_count", "batch_size", "repeat_count", "shuffle", "seed")
        same = {name: getattr(sampler, name) for name in names}
        return ResumableSampler(**same, epoch=lambda: int((self.state.epoch or 0) + 1e-6))

    def _save_checkpoint(self, model, trial):
        super()._save_checkpoint(model, trial)
        micro_step = self.state.global_step * self.args.gradient_accumulation_steps
        within_a_batch = micro_step % micro_steps(self.args)
        if self.args.should_save and not within_a_batch:  # a half-used batch could not be resumed
            folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
            state = {"controller": self.controller.state_dict(), "record": self.record}
            save_state(folder / STATE_FILE, state | {"seconds": self._seconds_so_far()})

    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self._load_own_state(checkpoint)

    def load_whole(self, checkpoint: str | Path) -> None:
        """Model, controller and record as they were when `checkpoint` was saved, without training on."""
        self._load_from_checkpoint(str(checkpoint))
        self._load_own_state(checkpoint)

    def _load_own_state(self, checkpoint):
        state = load_state(Path(checkpoint) / STATE_FILE)
        self.controller.load_state_dict(state["controller"])
        self.record, self.seconds = state["record"], state["seconds"]


class ResumableSampler(RepeatSampler):
    """TRL's RepeatSampler, whose epoch e has the same order in a process that starts at epoch e.

    TRL draws the epochs one after the other from one generator, which a resumed process starts again, and
    `set_epoch` does not get through the layers that accelerate puts around a sampler. So this one asks:
    `epoch` returns the number of the epoch that begins.
    """

    def __init__(self, *args: Any, epoch: Callable[[], int], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.epoch = epoch

    def __iter__(self):
        if self.shuffle and self.seed is not None:
            self.generator.manual_seed(self.seed)
            for _ in range(self.epoch()):
                torch.randperm(self.num_samples, generator=self.generator)
        return super().__iter__()


def whole_checkpoints(output_dir: str | Path) -> list[Path]:
    """Checkpoints in `output_dir` that can be resumed from, oldest first."""
    folders = Path(output_dir).glob("checkpoint-*")
    whole = [folder for folder in folders if (folder / STATE_FILE).is_file()]
    return sorted(whole, key=lambda folder: int(folder.name.split("-")[1]))
