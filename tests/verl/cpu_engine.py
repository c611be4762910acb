"""An engine for verl on a CPU: a model of transformers behind a Ray actor."""

import asyncio
import os

import ray
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput


class Server:
    """Samples for all requests that wait, in one call."""

    def __init__(self, folder):
        torch.set_num_threads(1)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.version = 0
        self.requests = []
        self.work = None

    async def generate(self, request_id, prompt_ids, sampling_params, **others):
        answer = asyncio.get_running_loop().create_future()
        self.requests.append((list(prompt_ids), sampling_params, answer))
        if self.work is None or self.work.done():
            self.work = asyncio.create_task(self.serve())
        return await answer

    async def serve(self):
        await asyncio.sleep(0.2)
        while self.requests:
            requests, self.requests = self.requests, []
            for output, (_, _, answer) in zip(self.sample(requests), requests, strict=True):
                answer.set_result(output)

    @torch.no_grad()
    def sample(self, requests):
        eos = self.tokenizer.eos_token_id
        prompts = [{"input_ids": ids} for ids, _, _ in requests]
        inputs = self.tokenizer.pad(prompts, padding_side="left", return_tensors="pt")
        came = self.model.generate(
            **inputs,
            do_sample=True,
            top_k=0,
            max_new_tokens=requests[0][1].get("max_tokens", 16),
            eos_token_id=eos,
            pad_token_id=self.tokenizer.pad_token_id,
            output_scores=True,
            return_dict_in_generate=True,
        )
        ids = came.sequences[:, inputs["input_ids"].shape[1] :]
        logp = torch.stack(came.scores, 1).log_softmax(-1).gather(-1, ids[..., None])[..., 0]
        outputs = []
        for row, values in zip(ids.tolist(), logp.tolist(), strict=True):
            length = row.index(eos) + 1 if eos in row else len(row)
            outputs.append(
                TokenOutput(
                    token_ids=row[:length],
                    log_probs=values[:length],
                    stop_reason="completed",
                    extra_fields={"global_steps": self.version},
                )
            )
        return outputs

    async def load(self, weights, version):
        self.model.load_state_dict(weights)
        self.version = version or self.version

    async def ready(self):
        return True

    async def sleep(self):
        pass

    wake_up = clear_kv_cache = sleep


class Replica(RolloutReplica):
    async def launch_servers(self):
        actor = ray.remote(Server).options(
            name=f"cpu_engine_{self.replica_rank}", num_cpus=0, max_concurrency=1000
        )
        server = actor.remote(self.model_config.path)
        await server.ready.remote()
        self.servers = [server]
        self._server_handle = server
        self._server_address = f"cpu_engine_{self.replica_rank}"


class Adapter(BaseRollout):
    """Of a rank of the trainer: its engine gets the weights of each step."""

    def __init__(self, config, model_config, device_mesh, replica_rank=-1):
        super().__init__(config, model_config, device_mesh)
        self.sleep_level = 1

    async def resume(self, tags):
        pass

    async def release(self):
        pass

    async def update_weights(self, weights, global_steps=None, **others):
        tensors = {name: tensor.detach().clone() for name, tensor in weights}
        server = ray.get_actor(f"cpu_engine_{os.environ['RANK']}")
        await server.load.remote(tensors, global_steps)
