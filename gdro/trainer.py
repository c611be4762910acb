"""GDROTrainer: TRL's GRPOTrainer with a GDROController between its data and its advantages.

Nothing of GRPOTrainer is copied. A generation batch is re-planned before TRL generates from it (prompt i is
repeated n_i times, the total unchanged); the controller observes its rewards, and its advantages replace
TRL's. With method "grpo" the controller only watches, and training is TRL's own, bit for bit.

Axes: P prompts of the generation batch, R its rollouts, over all processes, in TRL's order.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from accelerate.utils import broadcast_object_list, gather_object, set_seed
from transformers import TrainerCallback, TrainerState
from trl import GRPOConfig, GRPOTrainer

from gdro.controller import PRESETS, GDROController, make_controller
from gdro.core.beliefs import as_uids
from gdro.core.bins import StaticGroups
from gdro.core.checks import build, check_choice
from gdro.methods import METHODS, Method
from gdro.methods.base import group_advantages
from gdro.training.checkpoints import last_whole, step_of, write_ledger
from gdro.training.files import load_state, save_state
from gdro.training.savings import FetchedOnce, trimmed
from gdro.training.unsloth import OnUnsloth

STATE_FILE = "gdro_state.json"


@dataclass
class GDROConfig(GRPOConfig):
    """GRPOConfig with the choices of GDRO.

    Args:
        gdro_method: name of a registered method: "grpo", "prompt", "rollout", "both", "pivotal", … or your
            own (docs/methods.md). It must be named: no method is better than the others everywhere.
        gdro_preset: "default", or "paper": every choice of the controller as in arXiv 2601.19280. β, the
            loss and its clip are TRL's `beta`, `loss_type` and `epsilon_high`.
        gdro_options: further arguments of `GDROController` and of the method, such as {"bins": {"k": 8},
            "n_max": 8}. Rewards above "success_threshold" (default 0) count as correct: set it
            where a wrong answer can earn something too, such as a bonus for format.
        uid_column: column with one stable uid per prompt, integers or strings.
        group_column: column whose values are the groups in place of difficulty bins.
        advantage_std: "sample" divides squares by n − 1 as TRL does (default); "population" by n as (3) is
            printed (default of preset "paper").
        trim_batches: leave rollouts whose advantage is 0 out of forward and backward (where beta is 0), and
            cut micro-batches to their longest texts: the same gradient, to rounding, for less work. TRL's
            logs of entropy and clipping are then those of the rollouts left. Default: on, except for method
            "grpo", which stays TRL's bit for bit. With Unsloth only rows are left out; images have no part.
        advantage_clip: bound on |A| before weighting, by default none; 5 in preset "paper" (inf: none).
    """

    gdro_method: str = ""
    gdro_preset: str = "default"
    gdro_options: dict | None = None
    uid_column: str = "uid"
    group_column: str | None = None
    advantage_std: str | None = None
    advantage_clip: float | None = None
    trim_batches: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.gdro_method:
            raise ValueError(f"gdro_method must be named, got ''; choose one of {sorted(METHODS)}")
        check_choice("gdro_method", self.gdro_method, tuple(METHODS))
        check_choice("gdro_preset", self.gdro_preset, tuple(PRESETS))
        printed = self.gdro_preset == "paper"
        self.advantage_std = self.advantage_std or ("population" if printed else "sample")
        check_choice("advantage_std", self.advantage_std, ("sample", "population"))
        if self.trim_batches is None:
            self.trim_batches = self.gdro_method != "grpo"
        if self.advantage_clip is None and printed:
            self.advantage_clip = 5.0


class GDROTrainer(OnUnsloth, GRPOTrainer):
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
    run_identity = ""  # where set, checkpoints of another run are refused
    _logs: dict[str, Any]
    _tag_names = ["trl", "grpo", "gdro"]  # noqa: RUF012 (TRL's own attribute)

    def __init__(
        self, model: Any, reward_funcs: Any, args: GDROConfig, train_dataset: Any = None, **kwargs: Any
    ) -> None:
        if not isinstance(args, GDROConfig):
            raise ValueError(f"args must be a GDROConfig, got {type(args).__name__}")
        self._uids_D = _checked_uids(train_dataset, args)
        self.controller = _controller_of(args, train_dataset)
        check_training(args, self.controller)
        as_trl = args.advantage_std == "sample" and args.advantage_clip is None
        self._own_advantages = self.controller.name != "grpo" or not as_trl  # else TRL's, bit for bit
        self.record: list[dict] = []
        self.seconds = dict.fromkeys(("train", "generate", "score", "reward", "controller"), 0.0)
        self._rewards_R: torch.Tensor | None = None
        set_seed(args.seed)  # TRL puts the PEFT adapter on before it seeds
        super().__init__(model, reward_funcs, args=args, train_dataset=train_dataset, **kwargs)
        if self.use_vllm:  # it reads the model's files, which do not have the stops that `load_model` adds
            own = self.vllm_generation.generation_kwargs
            self.vllm_generation.generation_kwargs = {"stop_token_ids": self.eos_token_ids} | own

    def train(self, resume_from_checkpoint: str | Path | bool | None = None, **kwargs: Any) -> Any:
        """Train as TRL does; with True, from the last whole checkpoint, or from the start without one.

        A checkpoint is compared with its ledger before anything of it is loaded. ValueError if a file is
        broken: of the given checkpoint or, with True, of all that were completed.
        """
        self._clock = time.perf_counter()
        chosen: list[Path | None] = [None]
        if resume_from_checkpoint and self.accelerator.is_main_process:
            chosen = [last_whole(self.args.output_dir, resume_from_checkpoint, self.run_identity)]
        [checkpoint] = broadcast_object_list(chosen)
        if checkpoint is not None and step_of(checkpoint) == self.args.max_steps:
            self._load_from_checkpoint(str(checkpoint))  # killed after the last step
            self.state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
            return self._load_own_state(checkpoint)
        try:
            return super().train(resume_from_checkpoint=checkpoint and str(checkpoint), **kwargs)
        finally:
            self._tick()

    def _tick(self):
        now = time.perf_counter()
        self.seconds["train"] += now - self._clock
        self._clock = now

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        if self.model.training:
            self.seconds[stage] += time.perf_counter() - began

    # One generation batch

    def _generate_and_score_completions(self, inputs):
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        before = dict(self.seconds)
        with self._timed("controller"):
            prompts = gather_object(inputs)[:: self.num_generations]
            if (drawn := self.controller.draw(self._uids_D, len(prompts))) is not None:
                prompts = self.train_dataset.__getitems__(drawn.tolist())  # in one read
            plan = self.controller.plan([row[self.args.uid_column] for row in prompts])
            group_ids_R = np.repeat(np.arange(len(prompts)), plan.rollouts)
            first = self.accelerator.process_index * len(inputs)  # TRL lays the processes end to end
            mine = slice(first, first + len(inputs))
            if self.controller.moves_rollouts or drawn is not None:
                inputs = [dict(prompts[p]) for p in group_ids_R[mine]]
        seen_tokens = self.state.num_input_tokens_seen
        with self._timed("score"):
            output = super()._generate_and_score_completions(inputs)
        for stage in ("generate", "reward"):
            self.seconds["score"] -= self.seconds[stage] - before[stage]
        with self._timed("controller"):
            assert self._rewards_R is not None  # set by _calculate_rewards, which TRL has just called
            rewards_R = self._rewards_R.cpu().numpy()
            losses_R = self._surrogate_losses(output, rewards_R, group_ids_R, len(prompts))
            batch = self.controller.observe(plan, group_ids_R, rewards_R, losses=losses_R)
            if self._own_advantages:
                advantages_R = torch.as_tensor(batch.advantages).to(self._rewards_R)
                output["advantages"] = advantages_R[mine]
                self._correct_trl_logs(rewards_R, group_ids_R, advantages_R)
            self._log_row(batch.row)
        spent = {"global_step": self.state.global_step, "rollouts_spent": len(rewards_R)}
        spent["tokens"] = int(self.state.num_input_tokens_seen - seen_tokens)
        self.record.append(batch.row | spent)
        return output

    def _generate_single_turn(self, prompt_ids, images, fields, num_generations, **kwargs):
        # where every `num_generations` rows are one prompt, a vLLM server samples from each n-th row alone;
        # row by row its prefix cache shares the prompt as well (benchmarks/prefix.py)
        if self.model.training and self.controller.moves_rollouts:
            num_generations = 1
        with self._timed("generate"):
            return super()._generate_single_turn(prompt_ids, images, fields, num_generations, **kwargs)

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        with self._timed("reward"):
            rewards_RF = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if self.model.training:
            for rewards_R, name in zip(rewards_RF.T, self.reward_func_names, strict=True):
                if bad := int((~torch.isfinite(rewards_R)).sum()):
                    raise ValueError(
                        f"reward function {name!r} gave None, NaN or infinity for {bad} of {len(rewards_R)} "
                        "completions; return a number for every completion"
                    )
            self._rewards_R = (rewards_RF * self.reward_weights.to(rewards_RF.device)).sum(dim=1)
        return rewards_RF

    @torch.no_grad()
    def _surrogate_losses(self, output, rewards_R, group_ids_R, num_prompts):
        """ℓ_ij of (6) for all rollouts at the sampling policy (ρ = 1), (R,); None where it is −A_ij."""
        if not self.controller.needs_losses or self.beta == 0.0:
            return None
        logps, mask = output.get("old_per_token_logps"), output["completion_mask"]
        if logps is None:
            ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
            whole = torch.cat([output["prompt_mask"], mask], dim=1)
            size = {"batch_size": self.args.per_device_train_batch_size}
            logps, *_ = self._get_per_token_logps_and_entropies(self.model, ids, whole, mask.size(1), **size)
        gap = output["ref_per_token_logps"] - logps
        # Unsloth's rows begin with the end of the longest prompts
        start_R = (gap.size(1) - mask.size(1) - (output["prompt_mask"] == 0).sum(dim=1)).clamp(min=0)
        gap = gap.gather(1, start_R[:, None] + torch.arange(mask.size(1), device=mask.device))
        # KL(π_θ ‖ π_ref) of each local rollout by TRL's estimator, averaged over its tokens
        kl_R = ((gap.exp() - gap - 1) * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        run = self.controller.run
        rule = (run.advantage_std, run.scale_rewards, run.advantage_clip)
        advantages_R = group_advantages(rewards_R, group_ids_R, num_prompts, *rule)
        return self.beta * self.accelerator.gather(kl_R).cpu().numpy() - advantages_R

    def _compute_loss(self, model, inputs):
        if not (self.model.training and self.args.trim_batches) or "num_images" in inputs:
            return super()._compute_loss(model, inputs)
        keep = len(inputs["advantages"])
        others_teach = self._entropy_bonus_enabled or self.aux_loss_enabled or self.top_entropy_quantile < 1
        if self.beta == 0 and not others_teach:
            taught = (inputs["advantages"] != 0).sum().clamp(min=1)
            keep = int(self.accelerator.gather(taught).max())  # equal parts: TRL gathers its metrics by row
        inputs, factor = trimmed(inputs, keep, self.loss_type)
        return factor * super()._compute_loss(model, inputs)

    # What TRL logs

    def _correct_trl_logs(self, rewards_R, group_ids_R, advantages_R):
        """Replace what TRL has just logged on the assumption of groups of equal size."""
        spread_R = group_advantages(rewards_R, group_ids_R, int(group_ids_R.max()) + 1, scale="none")
        flat_P = np.bincount(group_ids_R, spread_R**2) <= 1e-12
        self._metrics["train"]["frac_reward_zero_std"][-1] = float(flat_P[group_ids_R].mean())
        self._logs["advantages"].extend(advantages_R.tolist())  # it holds one generation batch

    def _log_row(self, row):
        """Log every number of the row, lists by bin."""
        for name, value in row.items():
            places = enumerate(value) if isinstance(value, list) else [("", value)]
            for place, number in places:
                if isinstance(number, int | float):
                    self._metrics["train"][f"gdro/{name}/{place}".rstrip("/")].append(number)

    # Data, checkpoints and resuming

    def _get_dataloader(self, dataset, *args, is_training=False, **kwargs):
        dataset = FetchedOnce(dataset) if is_training else dataset
        return super()._get_dataloader(dataset, *args, is_training=is_training, **kwargs)

    def _get_train_sampler(self, dataset=None):
        self._sampler = super()._get_train_sampler(dataset)
        return self._sampler

    def _save_checkpoint(self, model, trial):
        super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()
        within_a_batch = self._step % _micro_steps(self.args)
        if self.args.should_save and not within_a_batch:  # a half-used batch could not be resumed
            self._tick()
            folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
            state = {
                "controller": self.controller.state_dict(),
                "record": self.record,
                "seconds": self.seconds,
            }
            save_state(folder / STATE_FILE, state)
            write_ledger(folder, self.run_identity)

    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self._load_own_state(checkpoint)
            # TRL draws all epochs from one generator, which a resumed process starts again
            state = TrainerState.load_from_json(str(Path(checkpoint) / "trainer_state.json"))
            for _ in range(int((state.epoch or 0) + 1e-6) if self.shuffle_dataset else 0):
                torch.randperm(self._sampler.num_samples, generator=self._sampler.generator)

    def _load_own_state(self, checkpoint):
        state = load_state(Path(checkpoint) / STATE_FILE)
        self.controller.load_state_dict(state["controller"])
        self.record, self.seconds = state["record"], state["seconds"]


class ProgressLines(TrainerCallback):
    """A line every few seconds, legible in a log that several runs share: step, time left."""

    def __init__(self, name: str) -> None:
        self.name = name

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.began = self.spoke = time.perf_counter()
        self.first_step = state.global_step
        if state.is_world_process_zero:
            print(f"{self.name}: {state.max_steps} steps, from step {self.first_step}", flush=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        now, step, last = time.perf_counter(), state.global_step, state.max_steps
        if state.is_world_process_zero and (now - self.spoke >= 15 or step == last):
            self.spoke = now
            left = (now - self.began) / (step - self.first_step) * (last - step)
            print(f"{self.name}: step {step}/{last}, {left:.0f} s left", flush=True)


# What is refused before any compute


def _controller_of(args: GDROConfig, dataset: Any) -> GDROController:
    options = dict(args.gdro_options or {})
    if args.group_column is not None:
        bins = options.get("bins", {})
        labels = [None if label is None else str(label) for label in dataset[args.group_column]]
        given = {"uids": dataset[args.uid_column], "labels": labels}
        options["bins"] = build("gdro_options['bins'] with group_column", StaticGroups, bins, **given)
    advantages = {name: getattr(args, name) for name in ("advantage_std", "advantage_clip", "scale_rewards")}
    if args.advantage_clip == float("inf"):
        advantages["advantage_clip"] = None
    return make_controller(
        args.gdro_method, args.gdro_preset, advantages | options, args.num_generations, args.seed
    )


def _checked_uids(dataset: Any, args: GDROConfig) -> Any:
    """The uids of a data set; ValueError where it or they cannot be used."""
    if not isinstance(dataset, datasets.Dataset):
        raise ValueError(f"train_dataset must be a datasets.Dataset, got {type(dataset).__name__}")
    for option in ("uid_column", "group_column"):
        column, known = getattr(args, option), dataset.column_names
        if column is not None and column not in known:
            remedy = "add one, for instance dataset.add_column('uid', list(range(len(dataset))))"
            raise ValueError(f"train_dataset has no column {column!r} ({option}), only {known}; {remedy}")
    uids = as_uids(values := dataset[args.uid_column])
    if repeated := [uid for uid, count in Counter(values).items() if count > 1]:
        why = f"repeats {repeated[0]!r}; every prompt needs a uid of its own"
        raise ValueError(f"column {args.uid_column!r} {why}")
    prompts = args.generation_batch_size // args.num_generations
    if len(dataset) < prompts:  # TRL would train on none
        raise ValueError(f"train_dataset has {len(dataset)} prompts, fewer than the {prompts} of one batch")
    return uids


def check_training(args: GDROConfig, controller: GDROController) -> None:
    """Refuse (ValueError) what cannot be resumed, grouped or generated."""
    method, name, seed = controller.method, controller.name, (args.generation_kwargs or {}).get("seed")
    period = _micro_steps(args)
    saves = args.save_strategy == "steps" and args.save_steps >= 1
    row_by_row = controller.moves_rollouts or args.vllm_mode == "colocate"
    if args.n_gpu > 1:  # transformers would wrap the model in DataParallel, which multiplies the batch
        why = "start it with `accelerate launch`, or set CUDA_VISIBLE_DEVICES to one"
        raise ValueError(f"this process sees {args.n_gpu} GPUs and would train on all of them as one; {why}")
    if method.rounds or type(method).ready is not Method.ready:
        raise ValueError(f"gdro_method={name!r} samples in rounds, and TRL once a step; run it in gdro.loop")
    if args.multi_objective_aggregation != "sum_then_normalize" and name != "grpo":
        why = f"{args.multi_objective_aggregation!r} normalizes in groups of equal size"
        raise ValueError(f"multi_objective_aggregation {why}; use 'sum_then_normalize' with GDRO")
    if args.use_vllm and row_by_row and seed is not None:
        why = "which would make all rollouts of a prompt the same; leave it out"
        raise ValueError(f"generation_kwargs has the seed {seed}, {why}")
    if saves and (args.save_steps * args.gradient_accumulation_steps) % period:
        raise ValueError(
            f"save_steps={args.save_steps} would save within a generation batch; save_steps × gradient "
            f"accumulation must be a multiple of {period} (steps_per_generation × num_iterations)"
        )


def _micro_steps(args: GDROConfig) -> int:
    """Micro-steps that one generation batch is used for."""
    return args.steps_per_generation * args.num_iterations
