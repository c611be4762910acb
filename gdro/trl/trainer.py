"""GDROTrainer: TRL's GRPOTrainer with a GDROController between its data and its advantages.

A generation batch is planned before TRL generates from it (prompt i is repeated n_i times, the
total unchanged); the controller observes its rewards, and its advantages replace TRL's. With method
"grpo" the controller only watches, and gradients are TRL's own: to rounding, from fewer tokens, or
with trim_batches=False bit for bit (with TRL 1.14 but for the first weights of an adapter, which it
makes before it seeds).

TRL is changed by overriding its functions: here, in the order of a step. Each calls functions of
the file of its job:

    data, prompts      uids of the data set; the prompts of a batch
    generation         stop tokens of vLLM, weights of FSDP
    rewards            of each rollout one reward, and whether it is correct
    advantages         the controller is told, and answers with advantages
    rounds, step       methods that sample more than once for an optimizer step
    order, trimming    rows without an advantage and padding are left out of the loss
    prefixes           each prompt is computed once
    logs, inspection   the record, the log and the times; the page about the training
    checkpoints        whole or not resumed from, with the controller's state

All private names of TRL that they depend on are listed in tests/training/private_names.py.

Axes: P prompts of the generation batch, R its rollouts, over all processes, in TRL's order; F
reward functions; T tokens.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from accelerate.utils import set_seed
from datasets import Dataset, IterableDataset
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler
from transformers import PreTrainedModel
from transformers.trainer_utils import TrainOutput
from trl import GRPOTrainer

from gdro.checks import Refusal
from gdro.controller import Plan
from gdro.inspect import Groups
from gdro.record import numbers_of
from gdro.rounds import Samples
from gdro.trl import (
    advantages,
    checkpoints,
    config,
    generation,
    inspection,
    logs,
    order,
    prefixes,
    prompts,
    rewards,
    rounds,
    trimming,
    unsloth,
)
from gdro.trl.config import GDROConfig
from gdro.trl.data import UidData, read_uids
from gdro.trl.values import LossInputs, Row, Signal, replaced
from gdro.uids import hash_of

RewardFunction: TypeAlias = str | PreTrainedModel | Callable[..., list[float | None]]


class GDROTrainer(GRPOTrainer):
    """GRPOTrainer whose prompts, rollouts and advantages come from a GDROController.

    Reward functions get the column of uids with the others: one that compares the rollouts of a
    prompt must group them by it, since groups are not equally large. Rewards that are
    None or NaN leave their row out, as in TRL.

    Arguments are GRPOTrainer's, in its order; `args` is a `GDROConfig`, and `train_dataset` has a
    column of uids or not (see `GDROConfig.uid_column`).

    Attributes:
        controller: made from the config.
        record: one row a generation batch: what the controller saw and decided, rollouts and
            tokens, and the share of rollouts with an advantage.
        groups: what came back for each prompt, by batch.
        bin_names: of the lists in the record: the range of pass@k, or the group, of each bin.
        seconds: time of the training, and of generation and controller within it.
        run_identity: where set, checkpoints of another run are refused.
        leaves_page: whether `train` leaves the page of `gdro inspect` in the output folder.

    Raises:
        ValueError: for settings, data or rewards that the method or the engine cannot use.
    """

    _tag_names = ["trl", "grpo", "gdro"]  # noqa: RUF012 (TRL's own attribute)
    run_identity = ""
    leaves_page = True
    _open_checkpoint: Path | None = None  # saved, and without its ledger yet
    _sampler: Sampler | None = None  # of the training
    _buffered_inputs: list[LossInputs] | None  # TRL's: micro-batches of a generation

    def __init__(
        self,
        model: str | PreTrainedModel,
        reward_funcs: RewardFunction | list[RewardFunction] | None = None,
        args: GDROConfig | None = None,
        train_dataset: Dataset | IterableDataset | None = None,
        *more: Any,
        **named: Any,
    ) -> None:
        """Make the controller; refuse what it cannot train with before TRL loads anything."""
        if not isinstance(args, GDROConfig):
            raise ValueError(f"args must be a GDROConfig, got {type(args).__name__}")
        self.data = UidData(None)
        if train_dataset is not None:
            self.data = read_uids(train_dataset, args.uid_column)
            train_dataset = self.data.dataset
        self.controller = config.make_controller(args, train_dataset, self.data.uids_D)
        self._choices = config.choices_of(args)
        config.check_training(args, self.controller)
        config.check_data(args, self.controller.method, train_dataset, named)
        self.on_unsloth = any(kind.__name__ == "UnslothGRPOTrainer" for kind in type(self).__mro__)
        unsloth.check_unsloth_settings(self.on_unsloth, model, args)
        self.record: list[dict[str, Any]] = []
        self.groups: list[Groups] = []
        self.bin_names = self.controller.bins.names
        self._clock = logs.Clock()
        self.seconds = self._clock.seconds
        self._silence = logs.Silence(self.controller.success_threshold)
        set_seed(args.seed)  # TRL 1.14 puts the PEFT adapter on before it seeds
        super().__init__(model, reward_funcs, args, train_dataset, *more, **named)
        if train_dataset is not None:  # an engine's trainer may hold another object
            self.data = self.data._replace(dataset=self.train_dataset)
        config.check_success_reward(args, self.reward_func_names)
        padding_counts = trimming.why_padding_counts(self.model)
        self.can_trim = not padding_counts
        self.savings = trimming.Savings()
        if args.trim_batches and padding_counts:
            trimming.say_once(self, f"off: {padding_counts}")
        logs.warn_of_rewards(args, self.reward_func_names)
        if self._replaces_advantages:
            self._name = f"GDRO ({self.controller.name})"
            self._paper: dict[str, str] = {}  # TRL's is that of GRPO
        if self.on_unsloth:
            if self.trims:
                trimming.say_once(self, "Unsloth's loss leaves out rows alone")
            unsloth.check_unsloth_parts(self, model)
            unsloth.fix_mini_batch(args)
        if self.use_vllm:
            generation.send_stop_tokens(self.vllm_generation, self.eos_token_ids)

    @property
    def _replaces_advantages(self) -> bool:
        """Where not, TRL's stay, so that "grpo" trains as TRL does, bit for bit."""
        return not self.controller.is_trainers_own(self.scale_rewards)

    @property
    def trims(self) -> bool:
        """Whether what cannot change the gradient is not computed."""
        return self.can_trim and self.args.trim_batches

    def get_train_dataloader(self) -> DataLoader:
        """TRL's, whose rows have their uid, and whose sampler is kept for resuming."""
        with prompts.uids_kept(self):
            return super().get_train_dataloader()

    def _prepare_inputs(self, generation_batch: list[Row] | LossInputs) -> LossInputs:
        """TRL's, in an order that saves work."""
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        batches = self._buffered_inputs
        if batches is None or batches is before or not self.trims or self.on_unsloth:
            return inputs
        self._buffered_inputs = order.order_batches(self, batches)
        return self._buffered_inputs[self._step % self.args.steps_per_generation]

    def _generate_and_score_completions(self, inputs: list[Row]) -> LossInputs:
        """TRL's, on rows that were planned, with the controller's advantages."""
        if not self.model.training:
            output = super()._generate_and_score_completions(inputs)
            logs.log_evaluated(self._logs["extra"], len(inputs) * self.accelerator.num_processes)
            return output
        config.follow(self)
        first = self.accelerator.process_index * len(inputs)  # TRL lays the processes end to end
        local_rows = slice(first, first + len(inputs))
        recorded = len(self.record)
        if self.controller.method.samples_again:
            output = self._play_rounds(inputs, local_rows)
        else:
            output = self._play_batch(inputs, local_rows)
        if len(self.record) > recorded:  # a batch without any reward has no row
            tokens = self.accelerator.gather(logs.trained_tokens(output))
            self.record[-1]["trained_tokens"] = int(tokens.sum())
        return output

    def _play_batch(self, inputs: list[Row], local_rows: slice) -> LossInputs:
        """Plan a batch, let TRL sample and reward it, and observe it."""
        method = self.controller.method
        seen_tokens = self.state.num_input_tokens_seen
        with self._clock.timed("controller"):
            batch, plan = prompts.plan_batch(self, inputs)
            group_ids_R = np.repeat(np.arange(len(plan)), plan.rollouts)
            # the rows that TRL has repeated are those of other prompts, or of other groups
            if method.moves_rollouts or method.draws:
                inputs = batch.read(group_ids_R[local_rows])
        if self.environment_factories and not self.data.has_own_uids:  # `reset` takes all columns
            inputs = [{k: v for k, v in row.items() if k != self.args.uid_column} for row in inputs]
        with rewards.kept_rewards(self) as kept:
            output = super()._generate_and_score_completions(inputs)
        tokens = int(self.state.num_input_tokens_seen - seen_tokens)
        with self._clock.timed("controller"):
            samples = self._judge(group_ids_R, kept[-1])
            losses_R = advantages.surrogate_losses(self, output, samples, len(plan))
            signal = self._observe(plan, samples, len(group_ids_R), tokens, losses_R)
            if self._replaces_advantages:
                advantages.put_advantages(self, output, local_rows, signal)
            elif self.trims:
                advantages.drop_rounding(self, output, local_rows, signal.is_flat_R)
        uids_R = [batch.uids[p] for p in group_ids_R.tolist()]
        logs.log_groups(self._logs["extra"], uids_R, plan.numbered(group_ids_R))
        return output

    def _play_rounds(self, inputs: list[Row], local_rows: slice) -> LossInputs:
        """Sample and observe until the method is ready; TRL prepares what is chosen of it."""
        step = rounds.sample_step(self, inputs)
        size = len(inputs) * self.accelerator.num_processes
        batch = step.train_batch(size, local_rows)
        with rounds.given_rollouts(self, batch):
            # super(): this class's own would sample again
            output = super()._generate_and_score_completions(batch.rows())
        advantages.put_advantages(self, output, local_rows, batch.signal)
        self._metrics["train"]["gdro/rollouts_spent"].append(step.spent)
        logs.log_step(self._logs, step, self.reward_func_names, batch.is_discarded_R)
        return output

    def _generate_single_turn(
        self,
        prompt_ids: list[list[int]],
        images: list[list | None] | None,
        multimodal_fields: dict[str, Any],
        num_generations: int,
        **kwargs: object,
    ) -> tuple[list[list[int]], list[list[float]] | None]:
        """TRL's, timed, with one completion of each row where groups may be unequal."""
        if self.model.training:
            method = self.controller.method
            needs_text = method.samples_again or (method.needs_losses and self.beta)
            if images is not None and needs_text:  # of messages; columns are checked before
                raise ValueError(f"gdro_method={self.controller.name!r} works only with text")
            if config.samples_row_by_row(method):
                num_generations = 1
        if self.use_vllm and self.is_fsdp_enabled:
            generation.reshard(self.model)
        with self._clock.timed("generate") if self.model.training else nullcontext():
            return super()._generate_single_turn(
                prompt_ids, images, multimodal_fields, num_generations, **kwargs
            )

    def _calculate_rewards(self, inputs: list[Row], *rollouts: Any) -> Tensor:
        """TRL's; rewards that take the uid have it in an evaluation too."""
        if not self.model.training:
            inputs = [{self.args.uid_column: hash_of(row)} | row for row in inputs]
        return super()._calculate_rewards(inputs, *rollouts)

    def _judge(self, group_ids_R: np.ndarray, rewards_RF: Tensor) -> Samples:
        """Give each rollout one reward, and say whether it is correct."""
        named = self.args.success_reward
        success = None if named is None else self.reward_func_names.index(named)
        threshold = self.controller.success_threshold
        return rewards.judge(rewards_RF, group_ids_R, self.reward_weights, success, threshold)

    def _observe(
        self, plan: Plan, samples: Samples, rollouts: int, tokens: int, losses_R: np.ndarray | None
    ) -> Signal:
        """Tell the controller what came back for a plan at some cost, and write it down."""
        signal, row = advantages.observe(self.controller, plan, samples, losses_R)
        if row is None:
            return signal
        step = self.state.global_step
        self.record.append(logs.with_costs(row, step, rollouts, tokens, signal))
        self.groups.append(inspection.groups_of(plan, samples, step + 1))
        shown = {n: v for n, v in row.items() if self.args.log_bins or not isinstance(v, list)}
        for name, number in numbers_of(shown, self.bin_names).items():
            self._metrics["train"][f"gdro/{name}"].append(number)
        self._silence.see(samples.scored())
        return signal

    def compute_loss(
        self, model: nn.Module, inputs: LossInputs, *args: object, **kwargs: object
    ) -> Tensor:
        """TRL's; Unsloth's is trimmed here, since it does not call `_compute_loss`."""
        if not self.on_unsloth:
            return super().compute_loss(model, inputs, *args, **kwargs)
        if self.model.training and self.trims and trimming.only_advantages_train(self):
            inputs = trimming.rows_with_signal(inputs, self.args.loss_type)
        # Unsloth would cut what is left into as many parts as the whole batch
        with replaced(self.args, unsloth_grpo_mini_batch=1):
            return super().compute_loss(model, inputs, *args, **kwargs)

    def _compute_loss(self, model: nn.Module, inputs: LossInputs) -> Tensor:
        """TRL's, on what has a gradient."""
        loss = partial(super()._compute_loss, model)
        if not self.model.training:
            return loss(inputs)
        if self.trims:
            loss = partial(trimming.trimmed_loss, self, loss, model)
        return loss(inputs)

    def _get_per_token_logps_and_entropies(
        self,
        model: nn.Module,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        *args: object,
        **kwargs: Any,
    ) -> trimming.TokenLogps:
        """TRL's, each prompt once; without a gradient, rows of similar length together."""
        score = super()._get_per_token_logps_and_entropies
        texts = (input_ids, attention_mask, logits_to_keep)
        asked = {name for name, value in kwargs.items() if value is not None and value is not False}
        has_grad = torch.is_grad_enabled()
        # TRL's own way with images, and with gradients on Unsloth's trainer
        as_trl = self.on_unsloth or args or asked - {"batch_size", "compute_entropy"}
        if as_trl or not self.trims or (not has_grad and "compute_entropy" in asked):
            trimming.count_tokens(self, attention_mask)
            return score(model, *texts, *args, **kwargs)
        score_once = partial(prefixes.score_prompts_once, self, score, model)
        if has_grad:
            return score_once(*texts, compute_entropy="compute_entropy" in asked)
        return trimming.logps_by_length(score_once, *texts, kwargs.get("batch_size"))

    def train(
        self,
        resume_from_checkpoint: str | Path | bool | None = None,
        *args: object,
        **kwargs: object,
    ) -> TrainOutput:
        """Train as TRL does, and write the page of `gdro inspect` into the output folder.

        A checkpoint is compared with its ledger before anything of it is loaded. One of GRPOTrainer
        is taken as a start: weights, optimizer and step, with a fresh controller.

        Args:
            resume_from_checkpoint: a folder; or True for the last whole checkpoint of the output
                folder, if there is one.
            args, kwargs: as for GRPOTrainer.

        Raises:
            ValueError: if the given checkpoint is broken or, with True, all that were completed
                are; and if `train_dataset` was replaced after the trainer was made.
        """
        if self.data.dataset is not None and self.train_dataset is not self.data.dataset:
            raise Refusal("train_dataset was replaced after the trainer was made: make another")
        self._clock.start()
        checkpoint = checkpoints.choose_checkpoint(
            self.args.output_dir, resume_from_checkpoint, self.run_identity, self.accelerator
        )
        self._step = 0  # a training of this object may have been stopped within a batch
        self._buffered_inputs = None
        self._metrics["train"].clear()
        if checkpoint is None:
            self.groups.clear()  # the page of a second training is about that alone
        if checkpoint is not None and checkpoints.is_finished(checkpoint, self.args.max_steps):
            output = checkpoints.load_finished(self, checkpoint)
        else:
            try:
                output = super().train(checkpoint and str(checkpoint), *args, **kwargs)
            finally:
                self._clock.tick()
            checkpoints.close_checkpoint(self)  # one that was saved on a signal
        if self.leaves_page and self.accelerator.is_main_process:
            threshold = self.controller.success_threshold
            inspection.write_page(self.groups, threshold, self.args.output_dir)
        return output

    def _save_checkpoint(self, model: nn.Module, trial: object) -> None:
        """TRL's, after our own state; the ledger is written by `close_checkpoint`."""
        name = f"checkpoint-{self.state.global_step}"
        folder = Path(self._get_output_dir(trial=trial)) / name
        if self.args.should_save:
            self._clock.tick()
            checkpoints.save_own_state(self, folder)
        super()._save_checkpoint(model, trial)
        self._open_checkpoint = folder
        if self.args.should_save:
            checkpoints.warn_within_batch(name, self._step, self.args)

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        """transformers', and a ledger of the checkpoint, after callbacks have added files to it."""
        super()._maybe_log_save_evaluate(*args, **kwargs)
        checkpoints.close_checkpoint(self)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """TRL's, and our state: here TRL has its own state, and has not drawn a prompt yet."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            checkpoints.load_own_state(self, Path(checkpoint))
            checkpoints.advance(self._sampler, Path(checkpoint))
