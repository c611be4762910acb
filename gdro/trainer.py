"""GDROTrainer: TRL's GRPOTrainer with a GDROController between its data and its advantages.

Nothing of GRPOTrainer is copied. A generation batch is re-planned before TRL generates from it (prompt
i is repeated n_i times, the total unchanged), its rewards are seen by the controller, and the
advantages are computed anew within the true rollout groups and weighted. With method "grpo" the
controller only watches, and training is TRL's own, bit for bit.

Axes: P prompts of the generation batch, R its rollouts, over all processes, in TRL's order.
"""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object, set_seed
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import RepeatSampler

from gdro.bins import as_uids
from gdro.controller import METHODS, PRESETS, make_controller
from gdro.groups import StaticGroups
from gdro.records import load_state, read_table, replace_text, save_state, write_table
from gdro.rollout_gdro import check_choice

STATE_FILE = "gdro_state.safetensors"  # written last: a checkpoint that has it is whole
RECORD_FILE = "gdro_record.jsonl"
SECONDS_FILE = "gdro_seconds.json"


@dataclass
class GDROConfig(GRPOConfig):
    """GRPOConfig with the choices of GDRO.

    gdro_method: "grpo", "prompt", "rollout" or "both". gdro_preset: "default" or "paper".
    gdro_options: further arguments of `GDROController`, such as {"signal": "spread", "prompt":
    {"eta": 2.0}, "rollout": {"n_max": 8}}; the mean number of rollouts is `num_generations`.
    uid_column: column of the data set with one stable uid a prompt, integers or strings. group_column:
    column whose values, such as levels or subjects, are the groups in place of difficulty bins.
    advantage_std: "sample" divides by the group's standard deviation as TRL does (n − 1), the default;
    "population" as (3) prints it (n), the default of preset "paper". advantage_clip: bound on the size of
    an advantage before it is weighted; none by default, 5 in preset "paper", float("inf") for none there.
    Rewards above `gdro_options["success_threshold"]` (default 0) count as right; set it where a reward
    has parts, such as a bonus for format, that a wrong answer earns too.
    """

    gdro_method: str = field(default="both", metadata={"help": "grpo, prompt, rollout or both."})
    gdro_preset: str = field(default="default", metadata={"help": "default or paper."})
    gdro_options: dict | None = field(default=None, metadata={"help": "Further arguments of GDROController."})
    uid_column: str = field(default="uid", metadata={"help": "Column with one uid a prompt."})
    group_column: str | None = field(default=None, metadata={"help": "Column with static groups."})
    advantage_std: str | None = field(default=None, metadata={"help": "sample or population."})
    advantage_clip: float | None = field(default=None, metadata={"help": "Bound on advantages."})

    def __post_init__(self):
        super().__post_init__()
        check_choice("gdro_method", self.gdro_method, METHODS)
        check_choice("gdro_preset", self.gdro_preset, tuple(PRESETS))
        printed = self.gdro_preset == "paper"
        self.advantage_std = self.advantage_std or ("population" if printed else "sample")
        if self.advantage_clip is None and printed:
            self.advantage_clip = 5.0
        check_choice("advantage_std", self.advantage_std, ("sample", "population"))
        if self.advantage_clip is not None and not self.advantage_clip > 0:
            raise ValueError(f"advantage_clip must be positive or None, got {self.advantage_clip}")


class GDROTrainer(GRPOTrainer):
    """GRPOTrainer whose prompts and rollouts a GDROController weighs and moves.

    Takes the arguments of GRPOTrainer, with a GDROConfig. `controller` is made from it, and `record`
    grows by one row for each generation batch: what the controller saw and decided, and the batch's
    rollouts and tokens. Both travel in the checkpoint. `seconds` adds up what training took, and of
    it generating, scoring (the old and the reference policy's probabilities), the reward and the controller;
    it travels too.
    Raises ValueError, before the model is touched, for a missing or repeated uid, a data set smaller
    than one batch, and options that cannot be met; while training, for a reward that is not finite.
    """

    args: GDROConfig
    _logs: dict[str, Any]
    _tag_names = ["trl", "grpo", "gdro"]  # noqa: RUF012 (TRL's own attribute)

    def __init__(self, model, reward_funcs, args: GDROConfig, train_dataset=None, **kwargs):
        _check_dataset(train_dataset, args)
        self.controller = _controller_of(args, train_dataset)
        _check_cadence(args, self.controller)
        self.record: list[dict] = []
        self.seconds = dict.fromkeys(("train", "generate", "score", "reward", "controller"), 0.0)
        self._train_began = time.perf_counter()
        self._rewards_R: torch.Tensor | None = None
        self._uids_D = as_uids(train_dataset[args.uid_column])
        set_seed(args.seed)  # TRL puts the PEFT adapter on before it seeds
        super().__init__(model, reward_funcs, args=args, train_dataset=train_dataset, **kwargs)

    def train(self, *args, **kwargs):
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
        if self.controller.resamples:
            prompts = self._drawn(len(prompts))
        uids = [row[self.args.uid_column] for row in prompts]
        rollouts_P = self.controller.plan(uids)
        group_ids_R = np.repeat(np.arange(len(prompts)), rollouts_P)
        mine = self._my_slice(len(inputs))
        if self.controller.moves_rollouts or self.controller.resamples:
            inputs = [dict(prompts[p]) for p in group_ids_R[mine]]

        planned = time.perf_counter()
        seen_tokens = self.state.num_input_tokens_seen
        others = self.seconds["generate"] + self.seconds["reward"]
        output = super()._generate_and_score_completions(inputs)
        generated = time.perf_counter()
        rewards_R = self._rewards_R
        assert rewards_R is not None  # set by _calculate_rewards, which TRL has just called
        groups_R = torch.as_tensor(group_ids_R, device=rewards_R.device)
        advantages_R = self._advantages(rewards_R, groups_R, len(prompts))
        losses_R = self._surrogate_losses(output, advantages_R[mine])

        row = self.controller.observe(uids, group_ids_R, rewards_R.cpu().numpy(), losses=losses_R)
        if self._own_advantages:
            weights_P = self.controller.weights(uids, rollouts_P)
            weights_R = torch.as_tensor(weights_P, dtype=advantages_R.dtype)[group_ids_R]
            advantages_R = advantages_R * weights_R.to(advantages_R.device)
            output["advantages"] = advantages_R[mine]
            self._correct_trl_logs(rewards_R, groups_R, advantages_R)
        self._log_row(row)
        others = self.seconds["generate"] + self.seconds["reward"] - others
        self.seconds["score"] += generated - planned - others
        self.seconds["controller"] += time.perf_counter() - generated + planned - start
        self.record.append(
            row
            | {
                "global_step": self.state.global_step,
                "rollouts_spent": len(rewards_R),
                "tokens": int(self.state.num_input_tokens_seen - seen_tokens),
            }
        )
        return output

    @property
    def _own_advantages(self):
        """Whether TRL's advantages are replaced; if not, training is TRL's own, bit for bit."""
        as_trl = self.args.advantage_std == "sample" and self.args.advantage_clip is None
        return self.controller.method != "grpo" or not as_trl

    def _drawn(self, size):
        """Prompts drawn from the data set with the adversary's bin probabilities."""
        return [self.train_dataset[int(i)] for i in self.controller.draw(self._uids_D, size)]

    def _my_slice(self, size):
        """This process's share of the batch; TRL lays the processes end to end."""
        start = self.accelerator.process_index * size
        return slice(start, start + size)

    def _generate(self, prompts):
        start = time.perf_counter()
        output = super()._generate(prompts)
        if self.model.training:
            self.seconds["generate"] += time.perf_counter() - start
        return output

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, **kwargs):
        # told that every `num_generations` rows are one prompt, a vLLM server would sample from each n-th
        # row alone; row by row its prefix cache shares the prompt as well (benchmarks/prefix.py)
        if self.model.training and self.controller.moves_rollouts:
            num_generations = 1
        return super()._generate_single_turn(prompt_ids, images, multimodal_fields, num_generations, **kwargs)

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        start = time.perf_counter()
        rewards_per_func = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if self.model.training:
            self.seconds["reward"] += time.perf_counter() - start
            for rewards_R, name in zip(rewards_per_func.T, self.reward_func_names, strict=True):
                bad = torch.nonzero(~torch.isfinite(rewards_R)).flatten()
                if len(bad):
                    raise ValueError(
                        f"reward function {name!r} gave None, NaN or infinity for {len(bad)} of "
                        f"{len(rewards_R)} completions (first: rollout {int(bad[0])}); difficulty "
                        "cannot be read from it: return a number for every completion"
                    )
            weights = self.reward_weights.to(rewards_per_func.device)
            self._rewards_R = (rewards_per_func * weights).sum(dim=1)
        return rewards_per_func

    # Advantages within the true rollout groups

    def _advantages(self, rewards_R, groups_R, num_prompts):
        """(3) within each rollout group, whatever its size; TRL's `scale_rewards` is obeyed."""
        means_P, deviations_P = self._group_statistics(rewards_R, groups_R, num_prompts)
        advantages_R = rewards_R - means_P[groups_R]
        if self.scale_rewards == "group":
            advantages_R = advantages_R / (deviations_P[groups_R] + 1e-4)
        elif self.scale_rewards == "batch":
            advantages_R = advantages_R / (rewards_R.std() + 1e-4)
        if self.args.advantage_clip is not None:
            advantages_R = advantages_R.clamp(-self.args.advantage_clip, self.args.advantage_clip)
        return advantages_R

    def _group_statistics(self, rewards_R, groups_R, num_prompts):
        """Mean and standard deviation of each group's rewards, (P,) each; deviation 0 for one of one."""
        sizes_P = torch.bincount(groups_R, minlength=num_prompts).to(rewards_R.dtype)
        zeros_P = torch.zeros(num_prompts, dtype=rewards_R.dtype, device=rewards_R.device)
        means_P = zeros_P.index_add(0, groups_R, rewards_R) / sizes_P
        squares_P = zeros_P.index_add(0, groups_R, (rewards_R - means_P[groups_R]) ** 2)
        freedom_P = sizes_P if self.args.advantage_std == "population" else sizes_P - 1
        return means_P, (squares_P / freedom_P.clamp(min=1)).sqrt()

    def _surrogate_losses(self, output, advantages):
        """ℓ_ij of (6) for all rollouts, at the policy that sampled them (ρ = 1), (R,); None unneeded."""
        if not self.controller.needs_losses:
            return None
        losses = -advantages
        if self.beta != 0.0:
            losses = losses + self.beta * self._mean_kl(output)
        return self.accelerator.gather(losses).cpu().numpy()

    @torch.no_grad()
    def _mean_kl(self, output):
        """KL(π_θ ‖ π_ref) of each local rollout, averaged over its tokens, by TRL's estimator."""
        logps = output.get("old_per_token_logps")
        if logps is None:
            ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
            mask = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
            logps, _, _ = self._get_per_token_logps_and_entropies(
                self.model,
                ids,
                mask,
                output["completion_ids"].size(1),
                batch_size=self.args.per_device_train_batch_size,
            )
        gap = output["ref_per_token_logps"] - logps
        mask = output["completion_mask"]
        return ((gap.exp() - gap - 1) * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)

    # What TRL logs

    def _correct_trl_logs(self, rewards_R, groups_R, advantages_R):
        """Replace what TRL has just logged on the assumption of groups of equal size."""
        _, deviations_P = self._group_statistics(rewards_R, groups_R, int(groups_R.max()) + 1)
        flat = torch.isclose(deviations_P, torch.zeros_like(deviations_P))[groups_R]
        self._metrics["train"]["frac_reward_zero_std"][-1] = flat.float().mean().item()
        logged = self._logs["advantages"]
        kept = max(len(logged) - len(advantages_R), 0)
        values = list(logged)[:kept] + advantages_R.tolist()
        logged.clear()
        logged.extend(values)

    def _log_row(self, row):
        metrics, played = self._metrics["train"], ["share", "success", "rollouts"]
        if self.controller.method in ("prompt", "both"):
            played += ["weight", "probability"]
        for name in played:
            for b, value in enumerate(row[name]):
                if value is not None:
                    metrics[f"gdro/{name}/{b}"].append(value)
        metrics["gdro/unseen"].append(row["unseen"])
        if row["demand"] is not None:
            for name in ("price", "demand", "infeasible_steps"):
                metrics[f"gdro/{name}"].append(row[name])

    # Checkpoints and resuming

    def _get_train_sampler(self, dataset=None):
        sampler = super()._get_train_sampler(dataset)
        return ResumableSampler(
            sampler.data_source,
            mini_repeat_count=sampler.mini_repeat_count,
            batch_size=sampler.batch_size,
            repeat_count=sampler.repeat_count,
            shuffle=sampler.shuffle,
            seed=sampler.seed,
            epoch=lambda: int((self.state.epoch or 0) + 1e-6),
        )

    def _save_checkpoint(self, model, trial):
        super()._save_checkpoint(model, trial)
        micro_step = self.state.global_step * self.args.gradient_accumulation_steps
        amid_a_batch = micro_step % _micro_steps(self.args)
        if self.args.should_save and not amid_a_batch:  # a batch half used could not be taken up again
            folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
            write_table(folder / RECORD_FILE, self.record)
            replace_text(folder / SECONDS_FILE, json.dumps(self._seconds_so_far()))
            save_state(folder / STATE_FILE, self.controller.state_dict())

    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self._load_own_state(checkpoint)

    def load_whole(self, checkpoint):
        """Model, controller and record as they were when `checkpoint` was saved, without training on."""
        self._load_from_checkpoint(str(checkpoint))
        self._load_own_state(checkpoint)

    def _load_own_state(self, checkpoint):
        self.controller.load_state_dict(load_state(Path(checkpoint) / STATE_FILE))
        self.record = read_table(Path(checkpoint) / RECORD_FILE)
        self.seconds = json.loads((Path(checkpoint) / SECONDS_FILE).read_text(encoding="utf-8"))


class ResumableSampler(RepeatSampler):
    """TRL's RepeatSampler, whose epoch e has the same order in a process that starts at epoch e.

    TRL draws the epochs one after the other from one generator, which a resumed process starts anew; and
    of `set_epoch` nothing is heard through the layers that accelerate lays around a sampler. So this one
    asks: `epoch` returns the number of the epoch that begins.
    """

    def __init__(self, *args, epoch, **kwargs):
        super().__init__(*args, **kwargs)
        self.epoch = epoch

    def __iter__(self):
        if self.shuffle and self.seed is not None:
            self.generator.manual_seed(self.seed)
            for _ in range(self.epoch()):
                torch.randperm(self.num_samples, generator=self.generator)
        return super().__iter__()


def whole_checkpoints(output_dir):
    """Checkpoints in `output_dir` that can be resumed from, oldest first."""
    folders = Path(output_dir).glob("checkpoint-*")
    whole = [folder for folder in folders if (folder / STATE_FILE).is_file()]
    return sorted(whole, key=lambda folder: int(folder.name.split("-")[1]))


def _controller_of(args, dataset):
    options = dict(args.gdro_options or {})
    if args.group_column is not None:
        bins = dict(options.get("bins", {}))
        labels = [str(label) for label in dataset[args.group_column]]
        options["bins"] = StaticGroups(dataset[args.uid_column], labels, **bins)
    return make_controller(args.gdro_method, args.gdro_preset, options, args.num_generations, args.seed)


def _check_dataset(dataset, args):
    if not isinstance(args, GDROConfig):
        raise ValueError(f"args must be a GDROConfig, got {type(args).__name__}")
    if args.n_gpu > 1:
        raise ValueError(
            f"this process sees {args.n_gpu} GPUs and would train on all of them as one, which multiplies "
            "the batch; start it with `accelerate launch`, or set CUDA_VISIBLE_DEVICES to one GPU"
        )
    if dataset is None or not hasattr(dataset, "column_names") or not hasattr(dataset, "__len__"):
        raise ValueError(
            f"train_dataset must be a datasets.Dataset, got {type(dataset).__name__}; "
            "a stream cannot be indexed by uid: load it whole"
        )
    if args.uid_column not in dataset.column_names:
        raise ValueError(
            f"train_dataset has no column {args.uid_column!r} (uid_column), only "
            f"{dataset.column_names}; add one stable uid a prompt, for instance "
            "dataset.add_column('uid', list(range(len(dataset))))"
        )
    if args.group_column is not None and args.group_column not in dataset.column_names:
        raise ValueError(
            f"train_dataset has no column {args.group_column!r} (group_column), only {dataset.column_names}"
        )
    if args.remove_unused_columns:
        raise ValueError("remove_unused_columns must be False, or the uid would be removed")
    keys = as_uids(dataset[args.uid_column]).keys
    values, counts = np.unique(keys, return_counts=True)
    if len(values) < len(keys):
        row = int(np.flatnonzero(np.isin(keys, values[counts > 1]))[0])
        raise ValueError(
            f"column {args.uid_column!r} repeats {len(keys) - len(values)} uids (first at row {row}: "
            f"{dataset[args.uid_column][row]!r}); every prompt needs a uid of its own"
        )
    prompts = args.generation_batch_size // args.num_generations
    if len(dataset) < prompts:
        raise ValueError(
            f"train_dataset has {len(dataset)} prompts, fewer than the {prompts} of one generation "
            "batch, so TRL would train on none; use a smaller batch or more prompts"
        )


def _check_cadence(args, controller):
    """Refuse what cannot be resumed or grouped, before any compute."""
    if args.multi_objective_aggregation != "sum_then_normalize" and controller.method != "grpo":
        raise ValueError(
            f"multi_objective_aggregation={args.multi_objective_aggregation!r} normalizes in groups of "
            "equal size; use 'sum_then_normalize' with GDRO"
        )
    row_by_row = controller.moves_rollouts or args.vllm_mode == "colocate"
    if args.use_vllm and row_by_row and "seed" in (args.generation_kwargs or {}):
        raise ValueError(
            f"generation_kwargs has the seed {args.generation_kwargs['seed']}, which vLLM would give to each "
            "rollout, so that all rollouts of a prompt were the same; leave it out"
        )
    micro_steps = _micro_steps(args)
    saves = args.save_strategy == "steps" and args.save_steps >= 1
    if saves and (args.save_steps * args.gradient_accumulation_steps) % micro_steps:
        raise ValueError(
            f"save_steps={args.save_steps} would save amid a generation batch, which a resumed run could "
            f"not finish; make save_steps × {args.gradient_accumulation_steps} (gradient accumulation) "
            f"a multiple of {micro_steps} (steps_per_generation × num_iterations)"
        )


def _micro_steps(args):
    """Micro-steps that one generation batch is used for."""
    return args.steps_per_generation * args.num_iterations
