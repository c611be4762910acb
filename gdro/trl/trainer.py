"""GDROTrainer: TRL's GRPOTrainer with a GDROController between its data and its advantages.

A generation batch is re-planned before TRL generates from it (prompt i is repeated n_i times, the
total unchanged); the controller observes its rewards, and its advantages replace TRL's. With method
"grpo" the controller only watches, and training is TRL's own, bit for bit (with TRL 1.14 but for
the first weights of an adapter, which it makes before it seeds).

Axes: P prompts of the generation batch, R its rollouts, over all processes, in TRL's order; F
reward functions; D prompts of the data set.
"""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list, gather_object, set_seed
from torch.distributed.fsdp import FSDPModule
from transformers import TrainerState
from transformers.trainer_utils import TrainOutput
from trl import GRPOTrainer

from gdro import files
from gdro.checks import need
from gdro.groups import StaticGroups
from gdro.methods.bank import Bank
from gdro.trl import batches, checkpoints, config, unsloth
from gdro.trl.batches import Step, TrainBatch
from gdro.trl.checkpoints import STATE_FILE
from gdro.trl.config import GDROConfig
from gdro.trl.data import with_uids

logger = logging.getLogger(__name__)
MOST_BATCHES = 100  # in one step, for a method that is never ready
SILENT_BATCHES = 10  # all correct or all wrong, until a warning

TITLE = "Group Distributionally Robust Optimization-Driven Reinforcement Learning for LLM Reasoning"
PAPER = {"title": TITLE, "id": "2601.19280"}  # of the model card


class GDROTrainer(GRPOTrainer):
    """GRPOTrainer whose prompts, rollouts and advantages come from a GDROController.

    Takes the arguments of GRPOTrainer, with a GDROConfig. Reward functions get the column of uids
    with the others: one that compares the rollouts of a prompt must group them by it, since groups
    are not equally large. Rewards that are None or NaN leave their row out, as in TRL.

    Attributes:
        controller: made from the config.
        record: one row a generation batch: what the controller saw and decided, rollouts and
            tokens, and the share of rollouts with an advantage. A callback that reads it takes
            the trainer as its argument, as `gdro.trl.callback.GDROCallback` does.
        bin_names: of the lists in it, the range of pass@k or the group of each bin.
        seconds: of the training, and in it of generation and controller.
    """

    args: GDROConfig
    run_identity = ""  # where set, checkpoints of another run are refused
    _logs: dict[str, Any]
    _tag_names = ["trl", "grpo", "gdro"]  # noqa: RUF012 (TRL's own attribute)

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: Any = None,
        train_dataset: Any = None,
        *more: Any,
        **named: Any,
    ) -> None:
        kind = type(args).__name__
        need(isinstance(args, GDROConfig), f"args must be a GDROConfig, got {kind}")
        self._uids_D, self._data, self._has_uids = None, None, False
        if train_dataset is not None:
            self._has_uids = args.uid_column in (train_dataset.column_names or ())
            train_dataset, self._uids_D, self._data = with_uids(train_dataset, args.uid_column)
        self.controller = config.make_controller(args, train_dataset)
        config.check_training(args, self.controller)
        config.check_data(args, self.controller.method, train_dataset, named)
        # else TRL's, bit for bit
        as_trl = args.advantage_std == "sample" and args.advantage_clip is None
        self._own_advantages = self.controller.name != "grpo" or not as_trl
        self._in_rounds = config.samples_in_rounds(self.controller.method)
        self._text_alone = self._in_rounds or self.controller.method.replays
        self.bank = Bank(self.controller.method.kept_texts)
        self.bin_names = bin_names(self.controller.bins)
        self.record: list[dict] = []
        self.seconds = dict.fromkeys(("train", "generate", "controller"), 0.0)
        self._rewards_RF = torch.empty(0, 0)  # of the last generation batch, of all processes
        self._chosen: TrainBatch | None = None  # what TRL is given where it would generate
        self._silent = 0  # batches in a row that were all correct or all wrong
        self.on_unsloth = any(kind.__name__ == "UnslothGRPOTrainer" for kind in type(self).__mro__)
        unsloth.check_unsloth_settings(self.on_unsloth, model, args, self.controller.method.replays)
        set_seed(args.seed)  # TRL 1.14 puts the PEFT adapter on before it seeds
        super().__init__(model, reward_funcs, args, train_dataset, *more, **named)
        known, wanted = self.reward_func_names, args.success_reward
        need(wanted in (None, *known), f"success_reward must be in {known}, got {wanted!r}")
        if self._own_advantages:
            self._name, self._paper = f"GDRO ({self.controller.name})", PAPER
        if self.on_unsloth:
            unsloth.check_unsloth_parts(self, model)
            if args.unsloth_grpo_mini_batch is None:
                # or Unsloth would cut batches by the memory that is free, differently in each run
                args.unsloth_grpo_mini_batch = args.steps_per_generation
        if self.use_vllm:  # it reads the model's files, which lack the stops that `load_model` adds
            own = self.vllm_generation.generation_kwargs
            self.vllm_generation.generation_kwargs = {"stop_token_ids": self.eos_token_ids} | own

    def train(
        self, resume_from_checkpoint: str | Path | bool | None = None, *args: Any, **named: Any
    ) -> TrainOutput:
        """Train as TRL does; True resumes from the last whole checkpoint, if there is one.

        A checkpoint is compared with its ledger before anything of it is loaded: ValueError if the
        given one is broken or, with True, all that were completed are. One of GRPOTrainer is taken
        as a start: weights, optimizer and step, with a fresh controller.
        """
        self._clock = time.perf_counter()
        checkpoint: Path | None = None
        if resume_from_checkpoint and self.accelerator.is_main_process:
            where = self.args.output_dir, resume_from_checkpoint
            checkpoint = checkpoints.find_checkpoint(*where, self.run_identity)
        [checkpoint] = broadcast_object_list([checkpoint])  # the main process chooses for all
        if checkpoint is not None and checkpoints.step_of(checkpoint) == self.args.max_steps:
            # killed after the last step: there is nothing left to train
            self._load_from_checkpoint(str(checkpoint))
            self.state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
            self._load_own_state(checkpoint)
            losses = [row["loss"] for row in self.state.log_history if "loss" in row]
            loss = float(np.mean(losses)) if losses else math.nan
            return TrainOutput(self.state.global_step, loss, {"train_loss": loss})
        try:
            return super().train(checkpoint and str(checkpoint), *args, **named)
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

        A method that samples in rounds needs the rewards before TRL scores: `_sample_step` samples,
        and TRL's function only scores what was chosen, which `_generate` and `_calculate_rewards`
        return.
        """
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        first = self.accelerator.process_index * len(inputs)  # TRL lays the processes end to end
        mine = slice(first, first + len(inputs))
        if self._in_rounds:
            step = self._sample_step(inputs)
            self._chosen = step.train_batch(self.args.generation_batch_size, mine)
            output = super()._generate_and_score_completions(self._chosen.rows)
            self._put_advantages(output, mine, self._chosen.advantages_R, self._chosen.is_flat_R)
            self._chosen = None
            self._metrics["train"]["gdro/rollouts_spent"].append(step.spent)
            if not self.controller.method.replays:
                return output
            texts = [rollout[:2] for rollout in step.rollouts]
            return self._replay(output, step.rows, texts, step.rewards_RF)
        seen_tokens = self.state.num_input_tokens_seen
        with self._timed("controller"):
            prompts, plan = self._next_batch(inputs)
            group_ids_R = np.repeat(np.arange(len(prompts)), plan.rollouts)
            if self.controller.method.moves_rollouts or self.controller.method.draws:
                inputs = [dict(prompts[p]) for p in group_ids_R[mine]]
        if self.environment_factories and not self._has_uids:  # their `reset` takes all columns
            inputs = [{k: v for k, v in row.items() if k != self.args.uid_column} for row in inputs]
        output = super()._generate_and_score_completions(inputs)
        with self._timed("controller"):
            rewards_RF = self._rewards_RF.cpu()  # kept by `_calculate_rewards`
            scored_R, given = self._scored(group_ids_R, rewards_RF)
            losses_R = self._surrogate_losses(output, scored_R, given, len(prompts))
            advantages_R, is_flat_R, _ = self._observe(
                plan, given, scored_R, losses_R, len(rewards_RF), seen_tokens
            )
            if self._own_advantages:
                self._put_advantages(output, mine, advantages_R, is_flat_R)
        if not self.controller.method.replays:
            return output
        rows, texts = [prompts[p] for p in group_ids_R], batches.texts_of(output)
        return self._replay(output, rows, gather_object(texts), rewards_RF)

    def _replay(self, output, rows, texts, rewards_RF):
        """Keep the successes of a step, and add rows of kept ones; every process holds the bank."""
        _, given = self._scored(np.arange(len(rows)), rewards_RF)
        for r in given["group_ids"][given["correct"]]:
            self.bank.add(self._uid_of(rows[r]), texts[r])
        if (answer := self.controller.replay(self.bank.uids)) is None:
            return output
        _, texts, weights_R = self.bank.rows(*answer)
        total = sum(len(text[1]) for text in texts)
        # equally many rows for each process and micro-step: rows without tokens fill them
        share = self.accelerator.num_processes * self.args.steps_per_generation
        fill = -len(texts) % share
        texts = [*texts, *[(texts[0][0], [])] * fill]
        mine = slice(self.accelerator.process_index, None, self.accelerator.num_processes)
        weights = np.append(weights_R, np.zeros(fill))[mine]
        old, pad_id = len(output["advantages"]), self.processing_class.pad_token_id
        output = batches.add_texts(output, texts[mine], weights, pad_id, total)
        logps = [output[name] for name in batches.LOGPS if output.get(name) is not None]
        if logps:  # kept texts are taken as the policy's own: ratio 1, no KL
            own = self._logps(output, slice(old, None))
            for logps_RT in logps:
                logps_RT[old:] = own
        self._metrics["train"]["gdro/replayed"].append(len(texts) - fill)
        self._metrics["train"]["gdro/replayed_tokens"].append(total)
        return output

    @torch.no_grad()
    def _logps(self, output, rows=slice(None)):
        """Log-probabilities of the completions of some rows at the policy as it is."""
        ids, mask = (
            torch.cat([output[f"prompt_{kind}"][rows], output[f"completion_{kind}"][rows]], dim=1)
            for kind in ("ids", "mask")
        )
        given = (self.model, ids, mask, output["completion_ids"].size(1))
        size = self.args.per_device_train_batch_size
        logps, *_ = self._get_per_token_logps_and_entropies(*given, batch_size=size)
        return logps

    def _sample_step(self, inputs):
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
                scored_R, given = self._scored(group_ids_R, step.rewards_RF[first:])
                with self._timed("controller"):
                    more_P = self.controller.extend(plan, **given) if scored_R.any() else None
            with self._timed("controller"):
                advantages_R, is_flat_R, ready = self._observe(
                    plan, given, scored_R, None, step.spent - spent, seen_tokens
                )
                step.add_batch(advantages_R, is_flat_R, group_ids_R)
            if ready:
                return step
        raise ValueError(
            f"gdro_method={self.controller.name!r} was not ready for an optimizer step after "
            f"{MOST_BATCHES} batches, the last {self._silent} all correct or all wrong"
        )

    def _next_batch(self, inputs):
        """The prompts of the next batch, (P,) rows of the data set, and their plan."""
        size = self.args.generation_batch_size // self.num_generations
        drawn = self.controller.draw(self._uids_D, size) if self._uids_D is not None else None
        if drawn is None and config.waits_for_prompts(self.controller.method):
            # TRL's order has one batch a step
            batch = (self.controller.planned, size, len(self.train_dataset))
            drawn = batches.prompts_of_batch(*batch, self.args.seed, self.shuffle_dataset)
        if drawn is None:  # TRL's, of all processes, each once
            prompts = gather_object(inputs)[:: self.num_generations]
        else:
            prompts = self.train_dataset.__getitems__(drawn.tolist())  # in one read
        uids = [self._uid_of(row, place) for place, row in enumerate(prompts)]
        return prompts, self.controller.plan(uids)

    def _uid_of(self, row, place=None):
        # without a data set, prompts are made by an environment and known by their places
        uid = row.get(self.args.uid_column, place)
        return uid.item() if hasattr(uid, "item") else uid  # of a torch or numpy format

    def _sample(self, rows, step):
        """Add a rollout of each row to the step (`own_share` says which of them come twice)."""
        mine = [dict(row) for row in batches.own_share(rows, self.accelerator)]
        # a stream may not know its columns, and `config.check_data` cannot see them
        beyond = [n for n in ("image", "images") if any(row.get(n) is not None for row in mine)]
        name = self.controller.name
        need(not beyond, f"gdro_method={name!r} works with text alone, got {beyond}")
        prompts = [row["prompt"] for row in mine]
        output = self._generate(prompts)
        _, completion_ids, _, completions, *_ = output
        rewards_RF = self._calculate_rewards(mine, prompts, completions, completion_ids)
        rollouts = batches.split_rollouts(output, self._pending_extra_logs)
        self._pending_extra_logs.clear()  # `TrainBatch.extras` brings back those that train
        step.add_rollouts(rows, gather_object(rollouts), rewards_RF)
        step.spent += len(mine) * self.accelerator.num_processes

    def _scored(self, group_ids_R, rewards_RF):
        """Which rollouts have a reward, (R,), and what the controller is told of these."""
        rewards_R = (rewards_RF * self.reward_weights.cpu()).nansum(dim=1)
        rewards_R[rewards_RF.isnan().all(dim=1)] = torch.nan
        successes_R = rewards_R
        if self.args.success_reward is not None:
            successes_R = rewards_RF[:, self.reward_func_names.index(self.args.success_reward)]
        scored_R = (rewards_R.isfinite() & successes_R.isfinite()).numpy()
        given = {
            "group_ids": group_ids_R[scored_R],
            "rewards": rewards_R.numpy()[scored_R],
            "correct": successes_R.numpy()[scored_R] > self.controller.success_threshold,
        }
        return scored_R, given

    def _observe(self, plan, given, scored_R, losses_R, spent, seen_tokens):
        """Advantages of all rollouts, whether their groups are flat, both (R,), and readiness."""
        advantages_R, is_flat_R = np.zeros(len(scored_R)), np.ones(len(scored_R), bool)
        if not scored_R.any():  # there is nothing to observe
            return advantages_R, is_flat_R, True
        losses_R = None if losses_R is None else losses_R[scored_R]
        batch = self.controller.observe(plan, **given, losses=losses_R)
        advantages_R[scored_R] = batch.advantages
        is_flat_R[scored_R] = ~batches.has_spread(given["rewards"], given["group_ids"])
        self._note(batch.row, spent, seen_tokens, float(np.mean(advantages_R != 0)))
        self._warn_of_silence(given["rewards"], given["correct"])
        return advantages_R, is_flat_R, batch.ready

    def _generate(self, prompts):
        if self._chosen is not None:
            return self._chosen.generated()
        return super()._generate(prompts)

    def _generate_single_turn(self, prompt_ids, images, fields, num_generations, **kwargs):
        # images that TRL found in the messages of a prompt
        unfit = images is not None and self._text_alone and self.model.training
        need(not unfit, f"gdro_method={self.controller.name!r} works with text alone")
        # a vLLM server would sample from each n-th row alone, as if n rows in turn were one prompt
        if self.model.training and (self.controller.method.moves_rollouts or self._in_rounds):
            num_generations = 1
        if self.use_vllm and self.is_fsdp_enabled:
            reshard(self.model)
        with self._timed("generate"):
            given = (prompt_ids, images, fields, num_generations)
            return super()._generate_single_turn(*given, **kwargs)

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        if self._chosen is not None:
            self._pending_extra_logs.update(self._chosen.extras())
            return self._chosen.rewards_RF.to(self.accelerator.device)
        given = (inputs, prompts, completions, completion_ids_list)
        rewards_RF = super()._calculate_rewards(*given)
        if self.model.training:
            self._rewards_RF = rewards_RF
        return rewards_RF

    @torch.no_grad()
    def _surrogate_losses(self, output, scored_R, given, num_prompts):
        """ℓ_ij of (6) for all rollouts at the sampling policy (ρ = 1), (R,); None where −A_ij."""
        if not self.controller.method.needs_losses or self.beta == 0.0:
            return None
        logps, mask = output.get("old_per_token_logps"), output["completion_mask"]
        if logps is None:  # TRL leaves them out where a batch serves one optimizer step
            logps = self._logps(output)
        gap = output["ref_per_token_logps"] - logps
        # Unsloth's rows begin with the end of the longest prompts
        excess_R = gap.size(1) - mask.size(1) - (output["prompt_mask"] == 0).sum(dim=1)
        columns_T = torch.arange(mask.size(1), device=mask.device)
        gap = gap.gather(1, excess_R.clamp(min=0)[:, None] + columns_T)
        # KL(π_θ ‖ π_ref) of each local rollout by TRL's estimator, averaged over its tokens
        kl_R = ((gap.exp() - gap - 1) * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        losses_R = self.beta * self.accelerator.gather(kl_R).cpu().numpy()
        rewards_R, groups_R = given["rewards"], given["group_ids"]
        losses_R[scored_R] -= self.controller.run.advantages(rewards_R, groups_R, num_prompts)
        return losses_R

    def _get_per_token_logps_and_entropies(self, model, ids, mask, length, *more, **named):
        score = partial(super()._get_per_token_logps_and_entropies, model)
        given = {name for name, value in named.items() if value is not None and value is not False}
        # TRL's own way where gradients are needed, on Unsloth's trainer, and with images
        as_it_came = torch.is_grad_enabled() or self.on_unsloth or more or given - {"batch_size"}
        if as_it_came or not self.args.trim_batches:
            return score(ids, mask, length, *more, **named)
        return batches.score_by_length(score, ids, mask, length, named.get("batch_size"))

    def _only_advantages_train(self) -> bool:
        """Whether rows of advantage 0 have no gradient: no KL, entropy or router term."""
        others = self._entropy_bonus_enabled or self.aux_loss_enabled
        return self.beta == 0 and not others and self.top_entropy_quantile == 1

    def compute_loss(self, model, inputs, *args, **named):
        if not self.on_unsloth:  # TRL's, which calls `_compute_loss`
            return super().compute_loss(model, inputs, *args, **named)
        if self.model.training and self.args.trim_batches and self._only_advantages_train():
            inputs = batches.rows_with_signal(inputs, self.args.loss_type)
        parts, self.args.unsloth_grpo_mini_batch = self.args.unsloth_grpo_mini_batch, 1
        try:  # not cut further
            return super().compute_loss(model, inputs, *args, **named)
        finally:
            self.args.unsloth_grpo_mini_batch = parts

    def _compute_loss(self, model, inputs):
        if not (self.model.training and self.args.trim_batches) or "num_images" in inputs:
            return super()._compute_loss(model, inputs)
        keep = len(inputs["advantages"])
        if self._only_advantages_train():
            # as many on every process, since TRL gathers its metrics by row
            with_signal = (inputs["advantages"] != 0).sum().clamp(min=1)
            keep = int(self.accelerator.gather(with_signal).max())
        inputs, factor = batches.trim_batch(inputs, keep, self.loss_type)
        return factor * super()._compute_loss(model, inputs)

    # What is logged

    def _put_advantages(self, output, mine, advantages_R, is_flat_R):
        """Replace TRL's advantages, and what it has just logged as if groups were equally large."""
        advantages_R = torch.as_tensor(advantages_R).to(output["advantages"])
        output["advantages"] = advantages_R[mine]
        self._metrics["train"]["frac_reward_zero_std"][-1] = float(np.mean(is_flat_R))
        # of single rollouts; `Step.group_has_signal_R` is true for all of a group
        self._metrics["train"]["gdro/has_signal"].append(float((advantages_R != 0).float().mean()))
        self._logs["advantages"].extend(advantages_R.tolist())  # it holds one generation batch

    def _note(self, row, rollouts, seen_tokens, signal):
        """Add a row of the controller to the record and the log, with what its batch has cost."""
        tokens = int(self.state.num_input_tokens_seen - seen_tokens)
        spent = {"global_step": self.state.global_step, "rollouts_spent": rollouts}
        self.record.append(row | spent | {"tokens": tokens, "signal": signal})
        numbers: dict[str, Any] = {}  # every number but the step; lists by the bin's range
        for name, value in row.items():
            if isinstance(value, list):
                by_bin = len(value) == len(self.bin_names)
                places = self.bin_names if by_bin else range(len(value))
                numbers |= {f"{name}/{p}": v for p, v in zip(places, value, strict=True)}
            elif name != "step":
                numbers[name] = value
        for name, number in numbers.items():
            if isinstance(number, int | float):
                self._metrics["train"][f"gdro/{name}"].append(number)

    def _warn_of_silence(self, rewards_R, correct_R):
        """Warn where rollouts were all correct or all wrong for many batches in a row."""
        mixed = correct_R.any() and not correct_R.all()
        self._silent = 0 if mixed else self._silent + 1
        if self._silent == SILENT_BATCHES:
            logger.warning(
                f"For {SILENT_BATCHES} batches no reward, or every one, was above success_threshold"
                f"={self.controller.success_threshold}; the last went from {rewards_R.min():g} to "
                f"{rewards_R.max():g}. Set it in gdro_options, or set success_reward"
            )

    # Data, checkpoints and resuming

    def _set_signature_columns_if_needed(self):
        super()._set_signature_columns_if_needed()  # those that remove_unused_columns keeps
        if self.args.uid_column not in self._signature_columns:
            self._signature_columns.append(self.args.uid_column)

    def _get_train_sampler(self, dataset=None):
        self._sampler = super()._get_train_sampler(dataset)  # advanced on resuming
        return self._sampler

    def _save_checkpoint(self, model, trial):
        name = f"checkpoint-{self.state.global_step}"
        folder = Path(self._get_output_dir(trial=trial)) / name
        if self.args.should_save:
            self._tick()
            own: dict[str, Any] = {"controller": self.controller.state_dict(), "data": self._data}
            own |= {"bank": self.bank.state_dict(), "record": self.record, "seconds": self.seconds}
            files.save_state(folder / STATE_FILE, own)
        super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()
        in_batch = self._step % (self.args.steps_per_generation * self.args.num_iterations)
        if self.args.should_save and in_batch:
            logger.warning(f"{name} lies within a generation batch, and cannot be resumed from")
        elif self.args.should_save:
            files.write_ledger(folder, self.run_identity)

    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self._load_own_state(Path(checkpoint))
            # TRL draws all epochs from one generator
            state = TrainerState.load_from_json(str(Path(checkpoint) / "trainer_state.json"))
            shuffled = self.shuffle_dataset and self._uids_D is not None
            for _ in range(int((state.epoch or 0) + 1e-6) if shuffled else 0):
                torch.randperm(self._sampler.num_samples, generator=self._sampler.generator)

    def _load_own_state(self, checkpoint):
        if checkpoints.is_foreign(checkpoint):
            logger.warning(f"{checkpoint} is GRPOTrainer's: the controller starts anew")
            return
        state = files.load_state(checkpoint / STATE_FILE)
        need(
            state["data"] == self._data,
            f"train_dataset gives uids to other prompts than when {checkpoint.name} was saved",
        )
        self.controller.load_state_dict(state["controller"])
        self.bank.load_state_dict(state["bank"])
        self.record, self.seconds = state["record"], state["seconds"]


def reshard(model: Any) -> None:
    """Shard again what a forward without a backward has gathered, which TRL cannot send to vLLM."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def bin_names(bins: Any) -> list[str]:
    """A name for each bin: its range of pass@k, or its group."""
    if isinstance(bins, StaticGroups):
        return [str(group) for group in bins.groups]
    return [f"{low:g}-{high:g}" for low, high in pairwise([0.0, *bins.edges, 1.0])]
