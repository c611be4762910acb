"""GDROTrainer against TRL itself: equal where it should be, true groups, resumed runs."""

import signal
from contextlib import nullcontext

import numpy as np
import own_method  # noqa: F401 (registers "failures")
import processes
import pytest
import tiny_run
import torch
from conftest import PATIENCE, TRAINS
from safetensors.torch import load_file
from tiny_run import make, same_weights, trained
from trl import GRPOConfig, GRPOTrainer

from gdro.files import load_state
from gdro.trainer import GDROConfig, GDROTrainer
from gdro.trl.checkpoints import find_checkpoint
from gdro.trl.config import check_training, make_controller
from gdro_lab.experiments.records import read_table

pytestmark = TRAINS
FLAT = "frac_reward_zero_std"


def own_logs(trainer):
    """What TRL logged, without clock times and without what we add."""
    hidden = ("gdro/", "step_time", "train_", "profiling/")
    return [
        {name: value for name, value in row.items() if not name.startswith(hidden)}
        for row in trainer.state.log_history
    ]


@pytest.mark.parametrize("changes", [{}, {"beta": 0.02, "num_iterations": 2}])
def test_grpo_is_stock_trl_bit_for_bit(base, tmp_path, changes):
    # eight steps: past the end of the first epoch, so the order of the prompts is TRL's too
    args = tiny_run.arguments(GRPOConfig, tmp_path / "a", max_steps=8, **changes)
    stock = tiny_run.make_trainer(GRPOTrainer, args, base)
    stock.train()
    changes = changes | {"gdro_method": "grpo", "trim_batches": False}
    ours = trained(base, tmp_path / "b", max_steps=8, **changes)
    assert own_logs(stock) == own_logs(ours)
    assert same_weights(stock, ours)
    assert not same_weights(stock, tiny_run.make_trainer(GRPOTrainer, args, base))  # it did train


def test_advantages_and_logs_are_those_of_the_true_groups(base, tmp_path, monkeypatch):
    seen = []
    original = GDROTrainer._generate_and_score_completions

    def spy(self, inputs):
        output = original(self, inputs)
        rewards = torch.tensor(self._logs["rewards"]["half_right"])
        flat = self._metrics["train"][FLAT][-1]
        logged = [list(self._logs[name])[-len(rewards) :] for name in ("prompt", "advantages")]
        seen.append((rewards, output["advantages"].clone(), *logged, flat))
        return output

    monkeypatch.setattr(GDROTrainer, "_generate_and_score_completions", spy)
    trainer = trained(base, tmp_path, max_steps=14, gdro_method="rollout")
    assert [row["rollouts_spent"] for row in trainer.record] == [32] * 14
    planned = [n for row in trainer.record for n in row["rollouts"] if n is not None]
    assert min(planned) < 4 < max(planned)
    for rewards, advantages, prompts, logged, flat in seen:
        # group by the prompt texts themselves, which are unique
        groups: dict[str, list[int]] = {}
        for place, text in enumerate(prompts):
            groups.setdefault(text, []).append(place)
        flat_rows = 0
        for places in groups.values():
            group = rewards[places].double()
            expected = (group - group.mean()) / (group.std() + 1e-4)
            expected *= 4 / len(places)  # every prompt counts once
            torch.testing.assert_close(advantages[places].double(), expected, atol=1e-5, rtol=1e-5)
            flat_rows += len(places) * bool((group == group[0]).all())
        assert flat == pytest.approx(flat_rows / len(rewards))
        assert logged == pytest.approx(advantages.tolist())
    last = [row for row in trainer.state.log_history if "reward" in row][-1]
    assert {"gdro/price", "gdro/unseen"} <= set(last)


def test_clip_and_population_deviation_reach_grpo_too(base, tmp_path):
    choices = {"advantage_clip": 0.5, "advantage_std": "population"}
    plain = trained(base, tmp_path / "a", gdro_method="grpo")
    clipped = trained(base, tmp_path / "b", gdro_method="grpo", **choices)
    options = tiny_run.arguments(GDROConfig, tmp_path, gdro_method="grpo", gdro_options=choices)
    assert max(map(abs, clipped._logs["advantages"])) == pytest.approx(0.5)
    assert max(map(abs, plain._logs["advantages"])) > 0.6
    assert not same_weights(plain, clipped)
    assert vars(make_controller(options).run) == vars(clipped.controller.run)


@pytest.mark.parametrize("method", ["both", "reinforce_ada", "pivotal"])
def test_a_killed_and_resumed_run_ends_as_one_never_stopped(base, tmp_path, method):
    def exit_code(output, *killed_in):
        process = processes.start(tiny_run.main, base, tmp_path / output, method, *killed_in)
        process.join(PATIENCE)
        return process.exitcode

    assert exit_code("whole") == 0
    assert exit_code("cut", 9) == -signal.SIGKILL
    assert find_checkpoint(tmp_path / "cut") == tmp_path / "cut" / "checkpoint-8"
    assert not (tmp_path / "cut" / "record.jsonl").exists()
    assert exit_code("cut") == 0
    one, other = (load_file(tmp_path / name / "weights.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    folders = tmp_path / "whole", tmp_path / "cut"
    one, other = (read_table(folder / "record.jsonl") for folder in folders)
    assert one == other
    np.testing.assert_equal(*[load_state(f / "controller.json") for f in folders])


@pytest.mark.parametrize(
    ("change", "changes", "named"),
    [
        (lambda rows: rows[7].update(uid=rows[3]["uid"]), {}, "'uid'.* more than once"),
        (lambda rows: rows.__delitem__(slice(5, None)), {}, "5 prompts"),
        (lambda rows: rows[1].update(family=None), {"group_column": "family"}, "group_column.* 1"),
        (lambda rows: [r.update(x=np.nan) for r in rows], {"group_column": "x"}, "column.* 0"),
        (lambda rows: None, {"group_column": "level"}, "'level'"),
        (lambda rows: None, {"pass_rate_column": "level"}, "pass_rate_column.*'level'"),
        (lambda rows: rows[0].update(rate=2.0), {"pass_rate_column": "rate"}, "pass_rates.* 2"),
    ],
)
def test_data_that_cannot_be_trained_on(base, tmp_path, change, changes, named):
    rows = [dict(row) for row in tiny_run.make_task().train]
    change(rows)
    with pytest.raises(ValueError, match=named):
        make(base, tmp_path, rows, **changes)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"gdro_options": {"mean_rollouts": 6}}, "mean_rollouts"),
        ({"gdro_options": {"pass_rate_rollouts": 6}}, "pass_rate_rollouts"),
        ({"gdro_options": {"pass_rates": {"none such": 0.5}}}, "none such"),
        ({"group_column": "family", "gdro_options": {"bins": {"edges": [0.5]}}}, "edges"),
        ({"group_column": "family", "gdro_options": {"bins": {"groups": 3}}}, "groups"),
        ({"per_device_train_batch_size": 30}, "num_generations"),
    ],
)
def test_settings_that_cannot_be_met(base, tmp_path, changes, named):
    with pytest.raises(ValueError, match=named):
        make(base, tmp_path, **changes)


@pytest.mark.parametrize(
    ("method", "vllm_mode", "refused"),
    [("dapo", "server", True), ("grpo", "server", False), ("grpo", "colocate", True)],
)
def test_a_sampling_seed_is_refused_where_rows_are_sampled_one_by_one(method, vllm_mode, refused):
    """Each row then is a request of its own, and one seed gives all of them one completion."""
    args = GDROConfig(
        gdro_method=method,
        use_vllm=True,
        vllm_mode=vllm_mode,
        generation_kwargs={"seed": 1},
        bf16=False,
        use_cpu=True,
    )
    expected = pytest.raises(ValueError, match="seed 1") if refused else nullcontext()
    with expected:
        check_training(args, make_controller(args))


def test_the_first_step_follows_a_column_of_pass_rates(base, tmp_path):
    """Rows may lack it; a resumed run need not have it."""
    rows = [dict(row) for row in tiny_run.make_task().train]
    for place, row in enumerate(rows):
        row["rate"] = [0.5, 0.0, None][place % 3]
    args = {"gdro_method": "coba", "pass_rate_column": "rate", "pass_rate_rollouts": 16}
    trainer = make(base, tmp_path, rows, **args)
    uids = np.array([row["uid"] for row in rows])
    rollouts = trainer.controller.plan(uids[:9]).rollouts
    assert rollouts[[0, 3, 6]].min() > rollouts[[1, 4, 7]].max()
    assert trainer.controller.bins.assign(uids[:3]).tolist() == [5, 0, -1]
