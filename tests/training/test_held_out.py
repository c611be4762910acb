"""An evaluation while training asks vLLM once, and each batch gets the completions of its own prompts."""

from datasets import Dataset
from test_trainer import pytestmark  # noqa: F401 (one thread, TRL's own warnings)
from tiny_run import arguments, make_task, make_trainer
from trl import GRPOTrainer

from gdro.trainer import GDROConfig, GDROTrainer


def test_vllm_is_asked_once_and_transformers_batch_by_batch(base, tmp_path, monkeypatch):
    calls, rewarded = [], []

    def echo(self, prompt_ids, images, fields, num_generations, **kwargs):
        calls.append(len(prompt_ids))
        return [[*ids, len(calls)] for ids in prompt_ids], [[-1.0] * (len(ids) + 1) for ids in prompt_ids]

    def is_echo(prompts, completions, **columns):
        rewarded.append(len(prompts))
        pairs = zip(prompts, completions, strict=True)
        return [float(completion.startswith(prompt)) for prompt, completion in pairs]

    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", echo)
    args = arguments(GDROConfig, tmp_path, per_device_eval_batch_size=4, num_generations_eval=2)
    trainer = make_trainer(GDROTrainer, args, base, reward=is_echo)
    rows = Dataset.from_list(list(make_task().eval[:7]))
    assert trainer.evaluate(rows)["eval_reward"] == 1
    assert calls == rewarded == [4, 4, 4, 2]
    trainer.use_vllm = True
    for _ in range(2):  # each evaluation samples anew
        assert trainer.evaluate(rows)["eval_reward"] == 1
    assert calls[4:] == [14, 14]
    assert rewarded[4:] == [4, 4, 4, 2] * 2
