"""Small real trainings on the trainer that Unsloth makes; a process of its own.

python tests/unsloth_run.py BASE_DIR OUTPUT_DIR     # writes OUTPUT_DIR/report.json and weights

It needs unsloth and no GPU. Real are Unsloth's patches of TRL (the trainer class that it writes and
installs, its VLLMGeneration), its way to advantages, loss and step, and PEFT. Unsloth's own model
classes need a GPU: the model is transformers', with the two switches that the trainer asks of a
model. `StandInEngine` is no vLLM: it samples by transformers, from the shared base and the adapter
it is handed.
"""

import os
import sys

os.environ["UNSLOTH_ALLOW_CPU"] = "1"
os.environ["TORCHDYNAMO_DISABLE"] = "1"  # compiling its loss takes minutes on a CPU
os.environ["UNSLOTH_MIXED_PRECISION"] = (
    "bfloat16"  # in its words: compute in the weights' own precision
)

from gdro_lab.models import import_unsloth

import_unsloth()
# without a GPU, unsloth leaves TRL alone unless asked

from unsloth.models.rl import _patch_trl_rl_trainers, patch_trl_vllm_generation

_patch_trl_rl_trainers("grpo_trainer")
patch_trl_vllm_generation()

import copy
import inspect
import json
from pathlib import Path
from types import SimpleNamespace

import peft
import tiny_run
import torch
import trl
from safetensors.torch import save_file
from trl.generation import vllm_generation

import gdro.trainer
import gdro.trl.trimming
from gdro.trainer import GDROConfig, GDROTrainer
from gdro.trl.trimming import rows_with_signal

LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "luspo", "sapo", "vespo")
BINS = {"bins": {"k": 1}}  # bins on pass@1 tell this poor model's prompts apart


def make(trainer_class, base, output, **changes):
    shared = {"max_steps": 9, "learning_rate": 2e-4, "lr_scheduler_type": "constant"}
    args = tiny_run.arguments(GDROConfig, output, **shared | {"gdro_options": BINS} | changes)
    trainer = tiny_run.make_trainer(trainer_class, args, base)
    add_switches(trainer.model)
    return trainer


def add_switches(model):
    model.for_training = lambda use_gradient_checkpointing=False: model.train()
    model.for_inference = lambda: model.eval()


def weights_of(model, part=""):
    """Copies of the weights whose names have a part."""
    return {n: w.detach().clone().contiguous() for n, w in model.named_parameters() if part in n}


def three_trainings(base, folder):
    """Unsloth's own trainer ("stock"), and GDROTrainer with two methods."""
    reports = {}
    for name in ("stock", "grpo", "both"):
        kind, method = (trl.GRPOTrainer, "grpo") if name == "stock" else (GDROTrainer, name)
        # Unsloth's mini-batch is as ours; "grpo" is compared bit for bit
        pinned = {"unsloth_grpo_mini_batch": 1} if name == "stock" else {}
        pinned |= {"trim_batches": False} if name == "grpo" else {}
        trainer = make(kind, base, folder / name, gdro_method=method, **pinned)
        trainer.train()
        save_file(weights_of(trainer.model), folder / f"{name}.safetensors")
        reports[name] = {
            "classes": [base.__name__ for base in type(trainer).__mro__],
            "record": getattr(trainer, "record", []),
            "losses": [row["loss"] for row in trainer.state.log_history if "loss" in row],
        }
    return reports


class Watched(GDROTrainer):
    """Keeps the inputs of each loss."""

    seen: tuple = ()

    def compute_loss(self, model, inputs, *args, **kwargs):
        self.seen = (*self.seen, copy.deepcopy(inputs))
        return super().compute_loss(model, inputs, *args, **kwargs)


def gradients_of_every_loss(base, folder):
    """loss → how far the gradient on rows with a signal is from that on all rows."""

    def gradient(inputs, trim, factor=1.0):
        trainer.args.trim_batches = trim
        trainer.args.loss_type = trainer.loss_type = loss
        trainer.model.train()  # as it no longer is after a training
        trainer.model.zero_grad()
        (factor * trainer.compute_loss(trainer.model, dict(inputs))).backward()
        grads = [weight.grad for weight in trainer.model.parameters() if weight.grad is not None]
        return torch.cat([grad.flatten() for grad in grads])

    def counted(inputs, loss_type):
        kept = rows_with_signal(inputs, loss_type)
        rows.append(len(kept["advantages"]))
        return kept

    options = {"max_steps": 2, "per_device_train_batch_size": 16, "num_iterations": 2}
    options |= {"gradient_accumulation_steps": 2, "gdro_method": "both"}
    trainer = make(Watched, base, folder / "losses", **options)
    trainer.train()
    inputs = trainer.seen[0]  # the weights have moved since: no ratio is one
    inputs["advantages"][::3] = 0
    nothing = inputs | {"advantages": torch.zeros(16)}
    gdro.trl.trimming.rows_with_signal = counted
    found = {}
    for loss in LOSSES:
        rows = []
        whole, trimmed = gradient(inputs, trim=False), gradient(inputs, trim=True)
        found[loss] = {
            "difference": float((trimmed - whole).norm() / whole.norm()),
            "of_a_halved_loss": float((gradient(inputs, True, factor=0.5) - trimmed).norm()),
            "without_a_signal": float(gradient(nothing, trim=True).norm()),
            "rows": list(rows),  # of the three losses on rows with a signal
        }
    gdro.trl.trimming.rows_with_signal = rows_with_signal
    return found


def resumed(base, folder):
    """Weights and record of a training beside those of one that was stopped and resumed."""
    options = {"gdro_method": "both", "max_steps": 6, "save_strategy": "steps", "save_steps": 3}
    whole = make(GDROTrainer, base, folder / "whole", **options)
    whole.train()
    (folder / "stopped").mkdir()  # with the first checkpoint alone, as a killed training leaves it
    (folder / "whole" / "checkpoint-3").rename(folder / "stopped" / "checkpoint-3")
    second = make(GDROTrainer, base, folder / "stopped", **options)
    second.train(resume_from_checkpoint=True)
    pairs = zip(weights_of(whole.model).values(), weights_of(second.model).values(), strict=True)
    same = json.dumps(whole.record, default=str) == json.dumps(second.record, default=str)
    return {"difference": max(float((a - b).abs().max()) for a, b in pairs), "same_record": same}


class StandInEngine:
    """A stand-in for Unsloth's vLLM engine, which samples by transformers."""

    shared_weights = True
    config = SimpleNamespace(model_config=SimpleNamespace(enable_sleep_mode=False))
    llm_engine = SimpleNamespace(vllm_config=config)

    def __init__(self, model, tokenizer):
        self.model, self.end, self.calls = model, tokenizer.eos_token_id, []
        self.pad = tokenizer.pad_token_id

    def generate(self, prompts, sampling_params, use_tqdm, lora_request=None):
        ids_R = [row["prompt_token_ids"] for row in prompts]
        adapter = {} if lora_request is None else lora_request.tensors
        self.calls.append({"prompts": ids_R, "adapter": adapter, "n": sampling_params["n"]})
        names = dict(self.model.named_parameters())
        zeros = {n: torch.zeros_like(weight) for n, weight in names.items() if "lora_B" in n}
        ids_RT = torch.tensor(ids_R)  # the tiny task's prompts are equally long
        logps_RT = torch.zeros(len(ids_R), 0)
        with torch.no_grad():
            for _ in range(sampling_params["max_tokens"]):
                call = adapter or zeros, (), {"input_ids": ids_RT}
                logits = torch.func.functional_call(self.model, *call).logits[:, -1]
                probabilities = logits.softmax(-1)
                probabilities[:, self.pad] = 0  # which Unsloth would take for the end of a row
                chosen = torch.multinomial(probabilities, 1)
                logps_RT = torch.cat([logps_RT, logits.log_softmax(-1).gather(1, chosen)], 1)
                ids_RT = torch.cat([ids_RT, chosen], 1)
        outputs = []
        for ids, row, logps in zip(ids_R, ids_RT.tolist(), logps_RT.tolist(), strict=True):
            tokens = row[len(ids) :]
            tokens = tokens[: tokens.index(self.end) + 1] if self.end in tokens else tokens
            pairs = zip(tokens, logps, strict=False)
            chosen = [{token: SimpleNamespace(logprob=p, rank=1)} for token, p in pairs]
            sample = SimpleNamespace(token_ids=tokens, logprobs=chosen)
            outputs.append(SimpleNamespace(prompt_token_ids=ids, outputs=[sample]))
        return outputs

    def collective_rpc(self, *_, **__):
        raise AssertionError("shared weights are not reloaded")

    def reset_prefix_cache(self):
        pass


def with_engine(base, folder, method="both", **changes):
    """A LoRA training whose completions the stand-in samples."""
    torch.manual_seed(0)
    args = {"gdro_method": method, "use_vllm": True, "max_steps": 9, "learning_rate": 1e-2}
    args["vllm_importance_sampling_mode"] = "token_truncate"
    args["gdro_options"] = BINS | {"rollout": {"eta": 20.0}}
    args = tiny_run.arguments(GDROConfig, folder, **args | changes)
    source = tiny_run.AutoModelForCausalLM.from_pretrained(base)
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules="all-linear")
    model = peft.get_peft_model(source, config)
    tokenizer = tiny_run.AutoTokenizer.from_pretrained(base)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(0, 0.05)
    add_switches(model)
    model.vllm_engine = StandInEngine(model, tokenizer)

    def load_lora(name, load_tensors=False):
        assert load_tensors
        return SimpleNamespace(tensors=weights_of(model, "lora_"))

    model.load_lora = load_lora
    rows = tiny_run.Dataset.from_list(list(tiny_run.make_task().train))
    return lambda: GDROTrainer(
        model, tiny_run.half_right, args=args, train_dataset=rows, processing_class=tokenizer
    )


def through_the_engine(base, folder):
    trainer = with_engine(base, folder / "engine")()
    engine, generation, handed = trainer.model.vllm_engine, trainer.vllm_generation, []
    generate = vllm_generation.VLLMGeneration.generate.__wrapped__

    def watched(self, *args, **kwargs):
        now = weights_of(trainer.model, "lora_")
        came = generate(self, *args, **kwargs)
        given = engine.calls[-1]["adapter"]
        handed.append(bool(given) and all(torch.equal(given[name], now[name]) for name in now))
        return came

    wrapper = vllm_generation.VLLMGeneration.generate
    cells = dict(zip(wrapper.__code__.co_freevars, wrapper.__closure__, strict=True))
    original = cells["original_generate"]  # inside Unsloth's wrapper, which stays as it is
    original.cell_contents = watched
    start = weights_of(trainer.model)
    trainer.train()
    original.cell_contents = generate
    now = weights_of(trainer.model)
    moved = {name: float((now[name] - start[name]).abs().max()) for name in now}
    steps = [row for row in trainer.state.log_history if "reward" in row]

    # the first batch's completions with the adapter off: what a lost adapter would look like
    gap = "sampling/sampling_logp_difference/mean"
    lost = with_engine(base, folder / "lost", max_steps=1)()
    lost.vllm_generation._unsloth_load_lora = None
    lost.train()

    return {
        "is_the_engine": generation.llm is engine,
        "adapter_of_the_step": handed,
        "adapter_moved": max(move for name, move in moved.items() if "lora_" in name),
        "base_moved": max(move for name, move in moved.items() if "lora_" not in name),
        "gaps": [row[gap] for row in steps],
        "gap_without_adapter": [row[gap] for row in lost.state.log_history if gap in row],
        "ratios": [row["sampling/importance_sampling_ratio/mean"] for row in steps],
        "n": sorted({call["n"] for call in engine.calls}),
        "prompts": [call["prompts"] for call in engine.calls],
        "spent": [row["rollouts_spent"] for row in trainer.record],
    }


def refusals(base, folder):
    """With which words that is refused which would be wrong in silence, by what they name."""

    def refused(change=lambda model: None, **changes):
        start = with_engine(base, folder / "refused", **changes)
        change(inspect.getclosurevars(start).nonlocals["model"])
        try:
            start()
        except (ValueError, RuntimeError) as error:
            return str(error)
        return ""

    return {
        "load_lora": refused(lambda model: delattr(model, "load_lora")),
        "shared": refused(lambda model: setattr(model.vllm_engine, "shared_weights", False)),
        "fast_inference": refused(lambda model: delattr(model, "vllm_engine")),
        "vllm_sampling_params": refused(vllm_sampling_params=SimpleNamespace(min_p=0.1)),
        "vllm_enable_sleep_mode": refused(vllm_enable_sleep_mode=True),
    }


def main(base, folder):
    torch.set_num_threads(1)
    for module in (vllm_generation.__dict__, trl.GRPOTrainer.__mro__[1].__init__.__globals__):
        module["is_vllm_available"] = lambda *_, **__: True  # the stand-in is
    vllm_generation.SamplingParams = dict
    report = {
        "trainings": three_trainings(base, folder),
        "gradients": gradients_of_every_loss(base, folder),
        "resumed": resumed(base, folder),
        "engine": through_the_engine(base, folder),
        "refusals": refusals(base, folder),
    }

    (folder / "report.json").write_text(json.dumps(report, default=float))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
