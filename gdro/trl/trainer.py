"""GDROTrainer: TRL's GRPOTrainer with a GDROController between its data and its advantages.

A generation batch is re-planned before TRL generates from it (prompt i is repeated n_i times, the
total unchanged); the controller observes its rewards, and its advantages replace TRL's. With method
"grpo" the controller only watches, and training is TRL's own, bit for bit (with TRL 1.14 but for
the first weights of an adapter, which it makes before it seeds).

Each job is a GRPOTrainer of its own that changes one thing, in the file of its name, since TRL is
changed by overriding its functions and each override should be read beside the others of its job:

    controlled    prompts and plan before generation, the controller's advantages after it
    rounds        methods that sample more than once for an optimizer step
    replay        kept texts that are trained on again
    trimming      rows without an advantage and padding are left out of the loss
    checkpoints   whole or not resumed from, with the controller's state
    generation    unequal groups are sampled row by row
    logs          the record, the log and the times

A generation batch, from its prompts to its advantages:

    _next_prompts               (controlled) the prompts that are drawn, or TRL's
    _generate_with_rewards      TRL's own function samples; the rewards of all processes, (R, F),
                                which it does not pass on, are kept
    _judge                      (controlled) of each rollout one reward, and whether it is correct
    _observe                    (controlled) tells the controller, which answers with advantages
    _put_advantages             (controlled) puts them in place of TRL's

All private names of TRL that they depend on are listed in tests/training/private_names.py.

Axes: P prompts of the generation batch, R its rollouts, over all processes, in TRL's order; F
reward functions; T tokens.
"""

from collections.abc import Callable
from inspect import isfunction, signature
from typing import Any, TypeAlias

import numpy as np
import torch
from accelerate.utils import gather_object, set_seed
from datasets import Dataset, IterableDataset
from torch import Tensor
from transformers import PreTrainedModel

from gdro.methods.bank import Bank
from gdro.rounds import Samples
from gdro.trl import config, cpu_engine, unsloth
from gdro.trl.checkpoints import WholeCheckpoints
from gdro.trl.config import GDROConfig
from gdro.trl.data import UidData, with_uids
from gdro.trl.generation import RowByRow
from gdro.trl.replay import Replay, Text, texts_of
from gdro.trl.rewards import without_column
from gdro.trl.rounds import Rounds
from gdro.trl.trimming import TrimmedLoss, is_rotary
from gdro.trl.values import Cost, LossInputs, Row, learned_mask, replaced

RewardFunction: TypeAlias = str | PreTrainedModel | Callable[..., list[float | None]]


# from left to right, the order in which super() goes on: `Replay` cuts a micro-batch into parts,
# which `TrimmedLoss` then trims
class GDROTrainer(Rounds, Replay, TrimmedLoss, WholeCheckpoints, RowByRow):
    """GRPOTrainer whose prompts, rollouts and advantages come from a GDROController.

    Reward functions that take the column of uids get it with the others: one that compares the
    rollouts of a prompt must group them by it, since groups are not equally large. Rewards that are
    None or NaN leave their row out, as in TRL.

    Args:
        model: as for GRPOTrainer, as are all that follow but for `args`.
        reward_funcs: one or several.
        args: a `GDROConfig`.
        train_dataset: with a column of uids, or without (see `GDROConfig.uid_column`).
        *more: further arguments of GRPOTrainer, in its order.
        **named: further ones, by name.

    Attributes:
        controller: made from the config.
        bank: successes that the method replays.
        record: one row a generation batch: what the controller saw and decided, rollouts and
            tokens, and the share of rollouts with an advantage. A callback that reads it takes
            the trainer as its argument, as `gdro.trl.callback.GDROCallback` does.
        bin_names: what the lists in it are about: the range of pass@k, or the group, of each bin.
        seconds: time of the training, and of generation and controller within it.
        run_identity: where set, checkpoints of another run are refused.

    Raises:
        ValueError: for settings, data or rewards that the method or the engine cannot use.
    """

    _tag_names = ["trl", "grpo", "gdro"]  # noqa: RUF012 (TRL's own attribute)

    def __init__(
        self,
        model: str | PreTrainedModel,
        reward_funcs: RewardFunction | list[RewardFunction] | None = None,
        args: GDROConfig | None = None,
        train_dataset: Dataset | IterableDataset | None = None,
        *more: Any,
        **named: Any,
    ) -> None:
        if not isinstance(args, GDROConfig):
            raise ValueError(f"args must be a GDROConfig, got {type(args).__name__}")
        self._has_uids = False  # of the user's own
        self.data = UidData(None)
        if train_dataset is not None:
            self.data = with_uids(train_dataset, args.uid_column)
            self._has_uids = args.uid_column in (train_dataset.column_names or ())
            train_dataset = self.data.dataset
        # all is refused here, before TRL loads or starts anything
        self.controller = config.make_controller(args, train_dataset)
        method = self.controller.method
        config.check_training(args, self.controller)
        # arguments given by position are checked under their names
        by_place = signature(super().__init__).bind_partial(None, None, None, None, *more)
        arguments = {**by_place.arguments, **named}
        config.check_data(args, method, train_dataset, arguments)
        functions = reward_funcs if isinstance(reward_funcs, list) else [reward_funcs]
        # TRL names rewards that are models, and those of environments, only when it has them
        names = [function.__name__ for function in functions if isfunction(function)]
        if len(names) == len(functions) and "environment_factory" not in arguments:
            config.check_success_reward(args, names)
        self.on_unsloth = any(kind.__name__ == "UnslothGRPOTrainer" for kind in type(self).__mro__)
        unsloth.check_unsloth_settings(self.on_unsloth, model, args, method.replays)
        # otherwise TRL's advantages stay, so that "grpo" trains as TRL does, bit for bit
        self._replaces_advantages = config.replaces_advantages(self.controller, args)
        self.bank = Bank(method.kept_texts)
        self._start_logs()
        set_seed(args.seed)  # TRL 1.14 puts the PEFT adapter on before it seeds
        with cpu_engine.reloadable(args):
            super().__init__(model, reward_funcs, args, train_dataset, *more, **named)
        if train_dataset is not None:  # an engine's trainer may hold another object
            self.data = self.data._replace(dataset=self.train_dataset)
        # again, as TRL alone names reward models and the rewards of environments
        config.check_success_reward(args, self.reward_func_names)
        self.reward_funcs: list[Any] = [
            without_column(f, args.uid_column) for f in self.reward_funcs
        ]
        self.is_rotary = is_rotary(self.model)
        self._warn_of_rewards()
        if self._replaces_advantages:
            self._name = f"GDRO ({self.controller.name})"
            self._paper: dict[str, str] = {}  # TRL's is that of GRPO
        if self.on_unsloth:
            unsloth.check_unsloth_parts(self, model)
            if args.unsloth_grpo_mini_batch is None:
                # or Unsloth would cut batches by the memory that is free, differently in each run
                args.unsloth_grpo_mini_batch = args.steps_per_generation
        if self.use_vllm:
            self._send_stop_tokens()

    def _generate_and_score_completions(self, inputs: list[Row]) -> LossInputs:
        """What TRL's loss takes, from this process's rows of a generation batch."""
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        first = self.accelerator.process_index * len(inputs)  # TRL lays the processes end to end
        local_rows = slice(first, first + len(inputs))
        recorded = len(self.record)
        if self.controller.method.samples_again:
            output = self._play_rounds(inputs, local_rows)
        else:
            output = self._play_batch(inputs, local_rows)
        if len(self.record) > recorded:  # a batch without any reward has no row
            self._note_trained_tokens(output)
        return output

    def _play_rounds(self, inputs: list[Row], local_rows: slice) -> LossInputs:
        """Sample and observe until the method is ready; TRL prepares what is chosen of it."""
        step = self._sample_step(inputs)
        output = self._finish_step(step, local_rows)
        if not self.controller.method.replays:
            return output
        # all that was sampled may be kept, not only what trains
        texts = [Text(rollout.prompt_ids, rollout.completion_ids) for rollout in step.rollouts]
        self._keep_successes(step.uids, texts, step.correct_R)
        return self._add_replayed(output)

    def _play_batch(self, inputs: list[Row], local_rows: slice) -> LossInputs:
        """Plan a batch, let TRL sample and reward it, and observe it."""
        method = self.controller.method
        seen_tokens = self.state.num_input_tokens_seen
        with self._timed("controller"):
            prompts = self._next_prompts(inputs)
            plan = self.controller.plan(prompts.uids)
            group_ids_R = np.repeat(np.arange(len(plan)), plan.rollouts)
            # the rows that TRL has repeated are those of other prompts, or of other groups
            if method.moves_rollouts or method.draws:
                inputs = prompts.read(group_ids_R[local_rows])
        if self.environment_factories and not self._has_uids:  # their `reset` takes all columns
            inputs = [{k: v for k, v in row.items() if k != self.args.uid_column} for row in inputs]
        output, rewards_RF = self._generate_with_rewards(inputs)
        tokens = int(self.state.num_input_tokens_seen - seen_tokens)
        with self._timed("controller"):
            samples = self._judge(group_ids_R, rewards_RF)
            losses_R = self._surrogate_losses(output, samples, len(plan))
            signal = self._observe(plan, samples, Cost(len(rewards_RF), tokens), losses_R)
            if self._replaces_advantages:
                self._put_advantages(output, local_rows, signal)
        if not method.replays:
            return output
        uids = [prompts.uids[p] for p in group_ids_R.tolist()]
        self._keep_successes(uids, gather_object(texts_of(output)), samples.correct_R)
        return self._add_replayed(output)

    def _generate_with_rewards(self, inputs: list[Row]) -> tuple[LossInputs, Tensor]:
        """What TRL's loss takes, and the rewards of all processes, (R, F).

        TRL logs the rewards, but by name, and two functions may have one. So they are taken from
        its `_calculate_rewards`, or a subclass's, which may shape them.
        """
        calculate = self._calculate_rewards
        rewards: list[Tensor] = []

        def keep(*given: object, **named: object) -> Tensor:
            rewards.append(calculate(*given, **named))
            return rewards[-1]

        with replaced(self, _calculate_rewards=keep):
            output = super()._generate_and_score_completions(inputs)
        return output, rewards[-1].cpu()

    @torch.no_grad()
    def _surrogate_losses(
        self, output: LossInputs, samples: Samples, num_prompts: int
    ) -> np.ndarray | None:
        """ℓ_ij of (6) for all rollouts at the sampling policy (ρ = 1), (R,); None where −A_ij."""
        if not self.controller.method.needs_losses or self.beta == 0.0:
            return None
        logps_RT = output.get("old_per_token_logps")
        if logps_RT is None:  # TRL leaves them out where a batch serves one optimizer step
            logps_RT = self._logps(output)
        mask_RT = learned_mask(output)
        gap_RT = output["ref_per_token_logps"] - logps_RT
        # Unsloth packs rows to the left, with the most prompt padding as further columns: a
        # completion starts later by the padding that its row lacks. TRL's all start at 0, where
        # `excess_R` is negative
        padding_R = (output["prompt_mask"] == 0).sum(dim=1)
        excess_R = gap_RT.size(1) - mask_RT.size(1) - padding_R
        columns_T = torch.arange(mask_RT.size(1), device=mask_RT.device)
        gap_RT = gap_RT.gather(1, excess_R.clamp(min=0)[:, None] + columns_T)
        # KL(π_θ ‖ π_ref) of each local rollout by TRL's estimator, averaged over its tokens
        kl_RT = (gap_RT.exp() - gap_RT - 1) * mask_RT
        kl_R = kl_RT.sum(dim=1) / mask_RT.sum(dim=1).clamp(min=1)
        losses_R = self.beta * self.accelerator.gather(kl_R).cpu().numpy()
        scored = samples.scored()
        losses_R[samples.is_scored_R] -= self.controller.run.advantages(
            scored.rewards_R, scored.group_ids_R, num_prompts
        )
        return losses_R
