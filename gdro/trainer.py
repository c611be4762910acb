"""GDROTrainer: TRL's GRPOTrainer with a GDROController between its data and its advantages.

Nothing of GRPOTrainer is copied. A generation batch is re-planned before TRL generates from it (prompt i is
repeated n_i times, the total unchanged); the controller observes its rewards, and its advantages replace
TRL's. With method "grpo" the controller only watches, and training is TRL's own, bit for bit.

Axes: P prompts of the generation batch, R its rollouts, over all processes, in TRL's order; F reward
functions; D prompts of the data set.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list, gather_object, set_seed
from transformers import TrainerState
from trl import GRPOConfig, GRPOTrainer

from gdro.controller import PRESETS
from gdro.core.checks import check_choice
from gdro.methods import METHODS
from gdro.training.checkpoints import last_whole, step_of, write_ledger
from gdro.training.files import load_state, save_state, written
from gdro.training.held_out import OneEvaluationCall
from gdro.training.refusals import (
    check_rounds,
    check_training,
    checked_uids,
    controller_of,
    micro_steps,
    samples_in_rounds,
    waits,
)
from gdro.training.rounds import Chosen, Step, has_spread, own_share, prompts_of_batch
from gdro.training.savings import FetchedOnce, by_length, trimmed
from gdro.training.trl_names import check_attributes, check_calls, rollouts_of
from gdro.training.unsloth import OnUnsloth

check_calls(GRPOTrainer)
MOST_BATCHES = 100  # in one step, for a method that is never ready
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
            "grpo", which stays TRL's bit for bit. With Unsloth only rows are left out; batches with images
            are left whole.
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


class GDROTrainer(OnUnsloth, OneEvaluationCall, GRPOTrainer):
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
            raise ValueError(f"args must be a GDROConfig, got {type(args).__name__}; make one")
        self._uids_D = checked_uids(train_dataset, args)
        self.controller = controller_of(args, train_dataset)
        check_training(args, self.controller)
        check_rounds(self.controller, train_dataset, kwargs)
        as_trl = args.advantage_std == "sample" and args.advantage_clip is None
        self._own_advantages = self.controller.name != "grpo" or not as_trl  # else TRL's, bit for bit
        self._in_rounds = samples_in_rounds(self.controller.method)
        self.record: list[dict] = []
        self.seconds = dict.fromkeys(("train", "generate", "score", "reward", "controller"), 0.0)
        self._rewards_R = torch.empty(0)  # of the last generation batch
        self._chosen: Chosen | None = None  # what TRL is given where it would generate
        set_seed(args.seed)  # TRL 1.14 puts the PEFT adapter on before it seeds
        super().__init__(model, reward_funcs, args=args, train_dataset=train_dataset, **kwargs)
        check_attributes(self)
        if self.use_vllm:  # it reads the model's files, which do not have the stops that `load_model` adds
            own = self.vllm_generation.generation_kwargs
            self.vllm_generation.generation_kwargs = {"stop_token_ids": self.eos_token_ids} | own

    def train(self, resume_from_checkpoint: str | Path | bool | None = None, **kwargs: Any) -> Any:
        """Train as TRL does; True resumes from the last whole checkpoint, or starts anew where there is none.

        A checkpoint is compared with its ledger before anything of it is loaded. ValueError if the given one
        is broken or, with True, all that were completed are.
        """
        self._clock = time.perf_counter()
        chosen: list[Path | None] = [None]
        if resume_from_checkpoint and self.accelerator.is_main_process:
            chosen = [last_whole(self.args.output_dir, resume_from_checkpoint, self.run_identity)]
        [checkpoint] = broadcast_object_list(chosen)  # the main process chooses for all
        if checkpoint is not None and step_of(checkpoint) == self.args.max_steps:
            # killed after the last step: there is nothing left to train
            self._load_from_checkpoint(str(checkpoint))
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
        if self.model.training:  # and not while TRL evaluates
            self.seconds[stage] += time.perf_counter() - began

    # One generation batch

    def _generate_and_score_completions(self, inputs):
        """What TRL's loss takes, from this process's rows of a generation batch.

        TRL repeats each prompt in `num_generations` rows. The controller plans anew how many rollouts each
        prompt gets, and TRL's own function then generates, rewards and scores these rows. Afterwards the
        controller observes all rewards, and its advantages take the place of TRL's.

        A method that samples in rounds needs the rewards earlier. Then everything is sampled and rewarded in
        `_sampled_step`, as many rollouts as TRL's batch holds are chosen, and TRL's function scores no more
        than these: `_generate` and `_calculate_rewards`, which it calls, return what was chosen.
        """
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        first = self.accelerator.process_index * len(inputs)  # TRL lays the processes end to end
        mine = slice(first, first + len(inputs))
        if self._in_rounds:
            step = self._sampled_step(inputs)
            self._chosen = step.chosen(self.args.generation_batch_size, mine)
            output = self._scored(self._chosen.rows)
            self._put_advantages(output, mine, self._chosen.advantages_R, self._chosen.is_flat_R)
            self._chosen = None
            self._metrics["train"]["gdro/rollouts_spent"].append(step.spent)
            return output
        seen_tokens = self.state.num_input_tokens_seen
        with self._timed("controller"):
            prompts, plan = self._next_batch(inputs)
            group_ids_R = np.repeat(np.arange(len(prompts)), plan.rollouts)
            if self.controller.method.moves_rollouts or self.controller.method.draws:
                inputs = [dict(prompts[p]) for p in group_ids_R[mine]]
        output = self._scored(inputs)
        with self._timed("controller"):
            rewards_R = self._rewards_R.cpu().numpy()  # `_calculate_rewards` has kept them, of all processes
            losses_R = self._surrogate_losses(output, rewards_R, group_ids_R, len(prompts))
            batch = self.controller.observe(plan, group_ids_R, rewards_R, losses=losses_R)
            if self._own_advantages:
                is_flat_R = ~has_spread(rewards_R, group_ids_R)
                self._put_advantages(output, mine, batch.advantages, is_flat_R)
            self._note(batch.row, len(rewards_R), seen_tokens)
        return output

    def _sampled_step(self, inputs):
        """Sample, reward and observe batches until the method lets the optimizer step."""
        step = Step()
        for _ in range(MOST_BATCHES):
            first, spent, seen_tokens = len(step.rows), step.spent, self.state.num_input_tokens_seen
            with self._timed("controller"):
                prompts, plan = self._next_batch(inputs)
            more_P, group_ids_R = plan.rollouts, np.zeros(0, np.int64)
            while more_P is not None:  # a round: the plan's own first, then what `extend` asks for
                new_R = np.repeat(np.arange(len(prompts)), more_P)
                self._sample([prompts[p] for p in new_R], step)
                group_ids_R = np.append(group_ids_R, new_R)
                rewards_R = (step.rewards_RF[first:] @ self.reward_weights.cpu()).numpy()
                with self._timed("controller"):
                    more_P = self.controller.extend(plan, group_ids_R, rewards_R)
            with self._timed("controller"):
                batch = self.controller.observe(plan, group_ids_R, rewards_R)
                step.add_batch(batch.advantages, rewards_R, group_ids_R)
                self._note(batch.row, step.spent - spent, seen_tokens)
            if batch.ready:
                return step
        why = f"was not ready for an optimizer step after {MOST_BATCHES} batches"
        raise ValueError(f"gdro_method={self.controller.name!r} {why}; give its `ready` a bound")

    def _next_batch(self, inputs):
        """The prompts of the next batch, (P,) rows of the data set, and their plan."""
        size = self.args.generation_batch_size // self.num_generations
        drawn = self.controller.draw(self._uids_D, size)
        if drawn is None and waits(self.controller.method):  # TRL's order has one batch a step
            number, total = self.controller.planned, len(self._uids_D)
            drawn = prompts_of_batch(number, size, total, self.args.seed, self.shuffle_dataset)
        if drawn is None:
            prompts = gather_object(inputs)[:: self.num_generations]  # TRL's, of all processes, each once
        else:
            prompts = self.train_dataset.__getitems__(drawn.tolist())  # in one read
        return prompts, self.controller.plan([row[self.args.uid_column] for row in prompts])

    def _sample(self, rows, step):
        """Add a rollout of each row to the step.

        Every process must sample equally many: where they do not divide, some rows are sampled twice, and the
        second rollout is dropped.
        """
        mine = [dict(row) for row in own_share(rows, self.accelerator)]
        prompts = [row["prompt"] for row in mine]
        output = super()._generate(prompts)
        _, completion_ids, _, completions, *_ = output
        rewards_RF = self._calculate_rewards(mine, prompts, completions, completion_ids)
        self._pending_extra_logs.clear()  # for a table of all that was sampled, which TRL does not have
        step.add_rollouts(rows, gather_object(rollouts_of(output)), rewards_RF)
        step.spent += len(mine) * self.accelerator.num_processes

    def _scored(self, inputs):
        before = dict(self.seconds)
        with self._timed("score"):
            output = super()._generate_and_score_completions(inputs)
        for stage in ("generate", "reward"):  # which TRL's function has called, and which are timed apart
            self.seconds["score"] -= self.seconds[stage] - before[stage]
        return output

    def _generate(self, prompts):
        return super()._generate(prompts) if self._chosen is None else self._chosen.generated()

    def _generate_single_turn(self, prompt_ids, images, fields, num_generations, **kwargs):
        # where every `num_generations` rows are one prompt, a vLLM server samples from each n-th row alone;
        # row by row its prefix cache shares the prompt as well (benchmarks/prefix.py)
        if self.model.training and (self.controller.method.moves_rollouts or self._in_rounds):
            num_generations = 1
        with self._timed("generate"):
            return super()._generate_single_turn(prompt_ids, images, fields, num_generations, **kwargs)

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        if self._chosen is not None:
            return self._chosen.rewards_RF.to(self.accelerator.device)
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
        if not self.controller.method.needs_losses or self.beta == 0.0:
            return None
        logps, mask = output.get("old_per_token_logps"), output["completion_mask"]
        if logps is None:  # TRL leaves them out where a batch serves one optimizer step
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
        advantages_R = self.controller.run.advantages(rewards_R, group_ids_R, num_prompts)
        return self.beta * self.accelerator.gather(kl_R).cpu().numpy() - advantages_R

    def _get_per_token_logps_and_entropies(self, model, ids, mask, length, *more, **named):
        score = partial(super()._get_per_token_logps_and_entropies, model)
        given = {name for name, value in named.items() if value is not None and value is not False}
        # TRL's own way where gradients are needed, on Unsloth's trainer, and with arguments for images
        as_it_came = torch.is_grad_enabled() or self.on_unsloth or more or given - {"batch_size"}
        if as_it_came or not self.args.trim_batches:
            return score(ids, mask, length, *more, **named)
        return by_length(score, ids, mask, length, named.get("batch_size"))

    def _compute_loss(self, model, inputs):
        if not (self.model.training and self.args.trim_batches) or "num_images" in inputs:
            return super()._compute_loss(model, inputs)
        keep = len(inputs["advantages"])
        if self.only_advantages_train():
            # as many on every process, since TRL gathers its metrics by row
            with_signal = (inputs["advantages"] != 0).sum().clamp(min=1)
            keep = int(self.accelerator.gather(with_signal).max())
        inputs, factor = trimmed(inputs, keep, self.loss_type)
        return factor * super()._compute_loss(model, inputs)

    # What TRL logs

    def _put_advantages(self, output, mine, advantages_R, is_flat_R):
        """Replace TRL's advantages, and what it has just logged as if all groups were equally large."""
        advantages_R = torch.as_tensor(advantages_R).to(output["advantages"])
        output["advantages"] = advantages_R[mine]
        self._metrics["train"]["frac_reward_zero_std"][-1] = float(np.mean(is_flat_R))
        # of single rollouts; `Step.group_has_signal_R` is true for all of a group
        self._metrics["train"]["gdro/has_signal"].append(float((advantages_R != 0).float().mean()))
        self._logs["advantages"].extend(advantages_R.tolist())  # it holds one generation batch

    def _note(self, row, rollouts, seen_tokens):
        """Add a row of the controller to the record and the log, with what its batch has cost."""
        tokens = int(self.state.num_input_tokens_seen - seen_tokens)
        spent = {"global_step": self.state.global_step, "rollouts_spent": rollouts, "tokens": tokens}
        self.record.append(row | spent)
        for name, value in row.items():  # every number is logged, lists by bin
            places = enumerate(value) if isinstance(value, list) else [("", value)]
            for place, number in places:
                if isinstance(number, int | float):
                    self._metrics["train"][f"gdro/{name}/{place}".rstrip("/")].append(number)

    # Data, checkpoints and resuming

    def _get_dataloader(self, dataset, *args, is_training=False, **kwargs):
        dataset = FetchedOnce(dataset) if is_training else dataset
        return super()._get_dataloader(dataset, *args, is_training=is_training, **kwargs)

    def _get_train_sampler(self, dataset=None):
        self._sampler = super()._get_train_sampler(dataset)  # whose generator is advanced on resuming
        return self._sampler

    @written("the checkpoint")
    def _save_checkpoint(self, model, trial):
        super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()
        within_a_batch = self._step % micro_steps(self.args)
        if self.args.should_save and not within_a_batch:  # a half-used batch could not be resumed
            self._tick()
            folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
            own = {"controller": self.controller.state_dict(), "record": self.record, "seconds": self.seconds}
            save_state(folder / STATE_FILE, own)
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
