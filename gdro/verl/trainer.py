"""verl's synchronous trainer with a controller: draws, plans of rollouts, advantages.

Its overrides stand in the order of a step. verl knows it as `trainer.v1.trainer_mode=gdro`, and
reads the rollouts of each prompt from `__rollout_n__` (its AgentLoopWorkerTQ).

Axes: P prompts of a step, K their rollouts, R rows of verl, T tokens.
"""

import logging
import uuid
from pathlib import Path

import numpy as np
import torch
from omegaconf import DictConfig
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, register_adv_est
from verl.trainer.ppo.v1 import PPOTrainerSync, register_trainer
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import collate_fn

from gdro.files import load_state, save_state
from gdro.plans import Plan
from gdro.record import numbers_of
from gdro.uids import check_prompts, prompt_hash
from gdro.verl.config import controller_of, scale_of
from gdro.verl.rows import pass_rates_of, places_of, uids_of

logger = logging.getLogger(__name__)
UID = "gdro_uid"  # the column of the training data that says which prompt a row is
STATE_FILE = "gdro_state.json"


@register_trainer("gdro")
class GDROTrainerSync(PPOTrainerSync):
    """PPOTrainerSync, steered by a `GDROController`.

    Attributes:
        controller: asked for each step's prompts and rollouts, and told their rewards.
        plan: of the step.
    """

    plan: Plan
    uids_D: np.ndarray
    hashes_D: np.ndarray

    def __init__(self, config: DictConfig) -> None:
        self.controller = controller_of(config)
        # verl compares this name with those of its own trainers: to it, this one is "sync"
        config.trainer.v1.trainer_mode = "sync"
        super().__init__(config)
        self.is_verls = self.controller.is_trainers_own(scale_of(config))
        register_adv_est("gdro")(self._advantages)

    # Before generation

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        data = self.train_dataset.dataframe
        rows = data.to_list()
        self.uids_D = uids_of(rows)
        self.hashes_D = np.array([prompt_hash(row[self.train_dataset.prompt_key]) for row in rows])
        own = self.config.gdro
        if own.get("pass_rate_column"):
            rates = pass_rates_of(rows, self.uids_D, own.pass_rate_column)
            self.controller.bins.start_from(rates, own.get("pass_rate_rollouts", 8))
        # workers of the loader have not started yet
        self.train_dataset.dataframe = data.add_column(UID, self.uids_D.tolist())

    def _next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        size = num_prompts or self.config.data.train_batch_size
        drawn = self.controller.draw(self.uids_D, size)
        if drawn is None:
            return super()._next_train_batch(num_prompts)
        rows = collate_fn([self.train_dataset[int(position)] for position in drawn])
        rows["uid"] = np.array([str(uuid.uuid4()) for _ in drawn], dtype=object)
        batch = tu.get_tensordict(rows)
        tu.assign_non_tensor_data(batch, "global_steps", self.global_steps)
        return batch

    def _submit_batch_to_rollout(self, batch: TensorDict) -> int:
        self.plan = self.controller.plan(list(batch[UID]))
        # verl's "uid" tells prompts apart within one step
        self._place_of = {key: place for place, key in enumerate(batch["uid"])}
        batch["__rollout_n__"] = torch.tensor(self.plan.rollouts)
        return super()._submit_batch_to_rollout(batch)

    # After it

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, float]) -> KVBatchMeta:
        self._keys = batch.keys
        batch = super()._compute_advantage(batch, metrics)  # calls `_advantages`
        for name, number in numbers_of(self._row, self.controller.bins.names).items():
            metrics[f"gdro/{name}"] = number
        return batch

    def _advantages(
        self,
        token_level_rewards: torch.Tensor,
        response_mask: torch.Tensor,
        index: np.ndarray,
        **others: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Advantages of the rows that came back, (R, T), and the same as returns; 0 for padding."""
        row_K, place_K, rollout_R = places_of(self._keys, self._place_of)
        rewards_K = token_level_rewards.sum(-1)[row_K]
        observed = self.controller.observe(self.plan, place_K, rewards_K.double().cpu().numpy())
        self._row = observed.row
        advantages_K = torch.tensor(observed.advantages)
        if self.is_verls:
            advantages_K, _ = compute_grpo_outcome_advantage(
                rewards_K[:, None],
                torch.ones_like(rewards_K)[:, None],
                index[row_K],
                norm_adv_by_std_in_grpo=self.config.algorithm.norm_adv_by_std_in_grpo,
            )
            advantages_K = advantages_K[:, 0]
        padded = torch.cat([advantages_K.to(token_level_rewards), token_level_rewards.new_zeros(1)])
        advantages_RT = padded[rollout_R][:, None] * response_mask
        return advantages_RT, advantages_RT

    # Checkpoints

    def _save_checkpoint(self) -> None:
        """Save our state first: verl's last file says that a checkpoint is whole."""
        folder = Path(self.config.trainer.default_local_dir, f"global_step_{self.global_steps}")
        data = {"uids": self.uids_D.tolist(), "hashes": self.hashes_D.tolist()}
        state = {"controller": self.controller.state_dict(), "data": data}
        save_state(folder / STATE_FILE, state)
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        """A checkpoint of verl's own trainer is a start with a fresh controller."""
        super()._load_checkpoint()
        if not self.global_steps:
            return
        trainer = self.config.trainer
        folder = Path(trainer.default_local_dir, f"global_step_{self.global_steps}")
        if trainer.resume_mode == "resume_path":
            folder = Path(trainer.resume_from_path)
        if (folder / STATE_FILE).is_file():
            state = load_state(folder / STATE_FILE)
            check_prompts(self.uids_D, self.hashes_D, state["data"])
            self.controller.load_state_dict(state["controller"])
        else:
            logger.warning(f"{folder} has no {STATE_FILE}: the controller starts without a history")
