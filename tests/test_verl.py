"""examples/verl_trainer.py on verl's own data set, TransferQueue, replay buffer and checkpoints.

Stand-ins, since there is no GPU: the workers that hold weights, and generation, whose rewards are random.
verl's versions do not go with the locks, so CI does not have it; docs/peers.md says how to run this.
"""

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

with warnings.catch_warnings():  # verl's own, on a machine without GPUs
    warnings.simplefilter("ignore")
    pytest.importorskip("verl", reason="verl's versions do not go with requirements/cpu.txt")
    import ray
    import transfer_queue as tq
    from hydra import compose, initialize_config_module
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
    from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict
    from verl_trainer import GDROTrainerSync

pytestmark = pytest.mark.filterwarnings("ignore")
PROMPTS, ROWS, N = 6, 24, 4


class Generation:
    """Stand-in for the agent loops: as many rollouts as a prompt is planned, rewarded at random."""

    def __init__(self, seed=0):
        self.rng, self.seen = np.random.default_rng(seed), {}

    def generate_sequences(self, batch):
        counts = batch["__rollout_n__"].tolist()
        keys, fields, tags = [], [], []
        for uid, index, count in zip(batch["uid"], batch["index"], counts, strict=True):
            self.seen[uid] = count
            for session in range(count):
                length = int(self.rng.integers(2, 6))
                rewards, tokens = torch.zeros(length), torch.ones(length, dtype=torch.int64)
                rewards[-1] = float(self.rng.random() < int(index) / ROWS)
                field = dict.fromkeys(("responses", "response_mask"), tokens)
                field |= dict.fromkeys(("rollout_log_probs", "old_log_probs"), torch.zeros(length))
                prompt = torch.ones(3, dtype=torch.int64)
                field |= {"prompts": prompt, "input_ids": torch.cat([prompt, tokens])}
                keys.append(f"{uid}_{session}_0")
                fields.append(field | {"uid": uid, "rm_scores": rewards})
                tags.append({"status": "success", "seq_len": 3 + length})
        for tag in tags:
            tag |= {"global_steps": 1, "min_global_steps": 1, "max_global_steps": 1}
        tq.kv_batch_put(keys=keys, fields=list_of_dict_to_tensordict(fields), tags=tags, partition_id="train")
        for uid in batch["uid"]:
            tq.kv_put(key=uid, partition_id="train", tag={"is_prompt": True, "status": "finished"})


class Weights:
    """Stand-in for the workers that hold the actor."""

    def save_checkpoint(self, path, *_, **__):
        Path(path).mkdir(parents=True)

    def load_checkpoint(self, **_):
        pass


@pytest.fixture(scope="module")
def queue():
    ray.init(num_cpus=16, include_dashboard=False)
    tq.init()
    yield
    tq.close()
    ray.shutdown()


@pytest.fixture
def make(queue, tmp_path):
    prompts = [[{"role": "user", "content": f"{i} + 1"}] for i in range(ROWS)]
    rows = [
        {"prompt": prompt, "data_source": "sums", "extra_info": {"index": i}}
        for i, prompt in enumerate(prompts)
    ]
    pd.DataFrame(rows).to_parquet(tmp_path / "train.parquet")

    def trainer(*overrides):
        with initialize_config_module("verl.trainer.config", version_base=None):
            config = compose(
                "ppo_trainer",
                [
                    f"data.train_files={tmp_path}/train.parquet", f"data.val_files={tmp_path}/train.parquet",
                    f"data.train_batch_size={PROMPTS}", "data.dataloader_num_workers=0",
                    "data.filter_overlong_prompts=false", f"trainer.default_local_dir={tmp_path}/checkpoints",
                    "trainer.v1.trainer_mode=gdro", "algorithm.adv_estimator=gdro", "critic.enable=false",
                    f"actor_rollout_ref.rollout.n={N}", *overrides,
                ],
            )  # fmt: skip
        made = GDROTrainerSync(config)
        made.tokenizer, made.processor, made.agent_loop_manager = None, None, Generation()
        made.actor_rollout_wg, made.global_steps = Weights(), 1
        made._init_dataloader()
        return made

    return trainer


def step(trainer, multiple=1):
    trainer.prepare_step()
    batch, _ = trainer.replay_buffer.sample(global_steps=1, partition_id="train", batch_size=PROMPTS)
    batch = upsample_batch_to_divisible_size(batch, multiple, 0)
    metrics = {}
    trainer._compute_advantage(batch, metrics)
    data = tq.kv_batch_get(
        keys=batch.keys, partition_id="train", select_fields=["uid", "advantages", "rm_scores"]
    )
    tq.kv_clear(keys=batch.keys, partition_id="train")
    return batch, data, metrics


@pytest.mark.parametrize("method", ["rollout", "pivotal"])
def test_a_step_spends_the_plan_and_gets_the_controllers_advantages(make, method):
    trainer = make(f"+gdro.method={method}")
    for _ in range(6):
        _, data, metrics = step(trainer, multiple=PROMPTS * N + 1)  # with verl's padding rows
        spent = pd.Series([uid for uid in data["uid"] if not uid.startswith("pad")]).value_counts()
        assert spent.sum() == PROMPTS * N
        assert {uid: trainer.agent_loop_manager.seen[uid] for uid in spent.index} == spent.to_dict()
        rewards = np.array([row.sum().item() for row in data["rm_scores"]])
        firsts = np.array([row[0].item() for row in data["advantages"]])
        for uid in spent.index:
            rows = [place for place, other in enumerate(data["uid"]) if other == uid]
            if len(set(rewards[rows])) == 2:
                assert firsts[rows][rewards[rows] == 1].min() > 0 > firsts[rows][rewards[rows] == 0].max()
        assert not firsts[[uid.startswith("pad") for uid in data["uid"]]].any()
        assert metrics["gdro/mean_reward"] == pytest.approx(rewards.sum() / (PROMPTS * N))
    assert trainer.controller.step == 6


def test_grpo_is_verls_own_grpo(make):
    trainer = make("+gdro.method=grpo")
    _, data, _ = step(trainer)
    ours = torch.tensor([row[0].item() for row in data["advantages"]])
    rewards = torch.tensor([[row.sum().item()] for row in data["rm_scores"]])
    uids = np.array(list(data["uid"]), object)
    theirs, _ = compute_grpo_outcome_advantage(rewards, torch.ones_like(rewards), uids, epsilon=1e-4)
    torch.testing.assert_close(ours, theirs[:, 0], rtol=1e-5, atol=1e-6)


def test_a_checkpoint_holds_the_controller(make):
    first = make("+gdro.method=both")
    step(first)
    first._save_checkpoint()
    second = make("+gdro.method=both")
    second._load_checkpoint()
    assert second.global_steps == 1
    assert second.controller.step == first.controller.step == 1
    plans = [trainer.controller.plan(range(PROMPTS)).rollouts for trainer in (first, second)]
    np.testing.assert_array_equal(*plans)


@pytest.mark.parametrize(
    "override", ["+gdro.method=reinforce_ada", "+gdro.method=dapo", "algorithm.use_kl_in_reward=true"]
)
def test_what_verl_cannot_do_is_refused(make, override):
    with pytest.raises(ValueError, match="must"):
        make(override)
