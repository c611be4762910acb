"""GDRO in verl: any method of gdro in its synchronous trainer (verl 0.9, `verl.trainer.main_ppo`).

    VERL_USE_EXTERNAL_MODULES=examples.verl_trainer python -m verl.trainer.main_ppo \
        trainer.v1.trainer_mode=gdro algorithm.adv_estimator=gdro \
        +gdro.method=pivotal +gdro.options.k=8 \
        actor_rollout_ref.rollout.n=4 ...

from this repository's root, with gdro installed beside verl. `+gdro.options` are arguments of
`GDROController`; n̄ is `rollout.n`. Each row of the data needs its own number in
`extra_info.index`, as verl's own data sets have. Uneven rollouts need the V1 agent loop, verl's
default, which reads `__rollout_n__`.
"""

import uuid
from pathlib import Path

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY
from verl.trainer.ppo.v1 import PPOTrainerSync, register_trainer
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import collate_fn

from gdro import GDROController
from gdro.files import load_state, save_state
from gdro.plans import Plan
from gdro.uids import as_uids


@register_trainer("gdro")
class GDROTrainerSync(PPOTrainerSync):
    """verl's trainer with a controller that draws prompts, plans rollouts and gives advantages."""

    # verl compares the mode with "sync" in many places, and for all but its name this trainer is
    # that one
    trainer_mode = property(lambda self: "sync", lambda self, mode: None)

    def __init__(self, config: DictConfig) -> None:
        super().__init__(config)
        choices = OmegaConf.to_container(config.get("gdro") or OmegaConf.create())
        name = choices.get("method", "both")
        # verl's choices for (3), unless the user has others
        by_group = config.algorithm.get("norm_adv_by_std_in_grpo", True)
        options = {"scale_rewards": "group" if by_group else "none", "advantage_std": "sample"}
        options |= choices.get("options", {})
        rollouts = config.actor_rollout_ref.rollout.n
        self.controller = GDROController(name, mean_rollouts=rollouts, **options)
        method = self.controller.method
        if method.samples_again or method.needs_losses or method.replays:
            raise ValueError(
                f"gdro.method must take one round a step, no losses and no replay, got {name!r}"
            )
        refill = config.trainer.v1.sampler.get("sync_refill_failed_groups", False)
        filters = (config.algorithm.get("filter_groups") or {}).get("enable", False)
        if refill or filters or config.algorithm.use_kl_in_reward:
            raise ValueError(
                "sync_refill_failed_groups, filter_groups.enable and use_kl_in_reward must be "
                "false: a plan is one batch, and correctness is read from the rewards"
            )
        ADV_ESTIMATOR_REGISTRY["gdro"] = self._advantages
        self.uids: np.ndarray | None = None
        self.plan: Plan | None = None

    # before generation

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        rows = self.train_dataset.dataframe
        index_D = [(row.get("extra_info") or {}).get("index", -1) for row in rows]
        if len(set(index_D)) < len(index_D) or -1 in index_D:
            raise ValueError(
                "extra_info.index must differ for all rows of data.train_files; number them"
            )
        self.uids = as_uids(np.asarray(index_D))

    def _fetch_one_gen_batch(self) -> TensorDict:
        drawn = self.controller.draw(self.uids, self.config.data.train_batch_size)
        if drawn is None:
            return super()._fetch_one_gen_batch()
        rows = collate_fn([self.train_dataset[int(position)] for position in drawn])
        rows["uid"] = np.array([str(uuid.uuid4()) for _ in drawn], dtype=object)
        return tu.get_tensordict(rows)

    def _submit_batch_to_rollout(self, batch: TensorDict) -> int:
        self.plan = self.controller.plan([int(index) for index in batch["index"]])
        # verl's uids are of one step
        self.position = {uid: place for place, uid in enumerate(batch["uid"])}
        batch["__rollout_n__"] = torch.tensor(self.plan.rollouts)
        return super()._submit_batch_to_rollout(batch)

    # after it

    def _advantages(
        self,
        token_level_rewards: torch.Tensor,
        response_mask: torch.Tensor,
        index: np.ndarray,
        **others: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Advantages (R, T) of the rollouts that came back; verl's padding rows get 0."""
        is_ours_R = np.array([uid in self.position for uid in index])
        group_ids_R = [self.position[uid] for uid in index[is_ours_R]]
        rewards_R = token_level_rewards.sum(-1).double().cpu().numpy()[is_ours_R]
        observed = self.controller.observe(self.plan, group_ids_R, rewards_R)
        self.row = observed.row
        advantages_RT = torch.zeros_like(token_level_rewards)
        advantages_R = torch.tensor(observed.advantages).to(advantages_RT)
        advantages_RT[torch.from_numpy(is_ours_R)] = advantages_R[:, None]
        advantages_RT *= response_mask
        return advantages_RT, advantages_RT

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, float]) -> KVBatchMeta:
        batch = super()._compute_advantage(batch, metrics)
        for name, value in self.row.items():
            if isinstance(value, int | float):
                metrics[f"gdro/{name}"] = value
        return batch

    # checkpoints: the state is there before the file by which verl knows a checkpoint to be whole

    def _state(self, folder: str | None = None) -> Path:
        if folder is None:
            runs = Path(self.config.trainer.default_local_dir)
            return runs / f"global_step_{self.global_steps}" / "gdro_state.json"
        return Path(folder, "gdro_state.json")

    def _save_checkpoint(self) -> None:
        self._state().parent.mkdir(parents=True, exist_ok=True)
        save_state(self._state(), self.controller.state_dict())
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.global_steps:
            trainer = self.config.trainer
            folder = trainer.resume_from_path if trainer.resume_mode == "resume_path" else None
            self.controller.load_state_dict(load_state(self._state(folder)))
