"""Do positions that begin at each row's first token help bfloat16? Texts of SmolLM2, left-padded.

    python benchmarks/positions.py --gradients 5

TRL pads prompts on the left and passes no positions, so a row begins at the number of its padding.
Rotary positions are relative: in exact arithmetic nothing depends on that. Here each batch is
computed in float32, and in bfloat16 (autocast, as trainings have it) both ways: the mean difference
of a token's log-probability from float32's, and on some batches the distance of the gradient of all
weights from float32's. The texts are those of data/studies/smol-gym/base.jsonl: sixty prompts with
eight answers each, four prompts a batch. Advantages are GRPO's.
"""

import argparse
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from step import model_of
from torch import Tensor
from transformers import AutoTokenizer

from gdro_lab.tasks.numerals import read_last_number

TEXTS = Path(__file__).parents[1] / "data/studies/smol-gym/base.jsonl"
PROMPTS = 4  # of a batch
WAYS = {"float32": (False, False), "from the padding": (True, False), "from 0": (True, True)}
"""Whether a way computes in bfloat16, and whether positions begin at the first token."""


class Batch(NamedTuple):
    """Rows as TRL pads them."""

    ids_RT: Tensor
    mask_RT: Tensor
    start: int
    """Where the completions begin."""
    advantages_R: Tensor


def batch_of(groups: list[dict[str, Any]], tokenizer: Any) -> Batch:
    """The answers to some questions, prompts padded on the left and completions on the right."""
    prompts = []
    completions = []
    advantages = []
    for group in groups:
        messages = [{"role": "user", "content": group["problem"]}]
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False
        )
        answer = group["answer"]
        correct_R = np.array([read_last_number(text) == answer for text in group["texts"]])
        scale = correct_R.std() + 1e-4
        for text, correct in zip(group["texts"], correct_R, strict=True):
            prompts.append(torch.tensor(prompt))
            ids = [*tokenizer(text).input_ids, tokenizer.eos_token_id]
            completions.append(torch.tensor(ids))
            advantages.append((correct - correct_R.mean()) / scale)
    pad = torch.nn.utils.rnn.pad_sequence
    prompt_RT = pad(prompts, batch_first=True, padding_value=-1, padding_side="left")
    completion_RT = pad(completions, batch_first=True, padding_value=-1)
    ids_RT = torch.cat([prompt_RT, completion_RT], dim=1)
    mask_RT = (ids_RT >= 0).long()
    advantages_R = torch.tensor(advantages, dtype=torch.float32)
    return Batch(ids_RT.clamp(min=0), mask_RT, prompt_RT.shape[1], advantages_R)


def logps_of(model: Any, batch: Batch, in_bfloat16: bool, from_zero: bool) -> Tensor:
    """Log-probability of each completion's tokens, (R, T), 0 at the padding."""
    positions_RT = None
    if from_zero:
        positions_RT = (batch.mask_RT.cumsum(dim=1) - 1).clamp(min=0)
    arithmetic = torch.autocast("cpu", torch.bfloat16) if in_bfloat16 else nullcontext()
    with arithmetic:
        logits_RTV = model(
            input_ids=batch.ids_RT,
            attention_mask=batch.mask_RT,
            position_ids=positions_RT,
            logits_to_keep=batch.ids_RT.shape[1] - batch.start + 1,
            use_cache=False,
        ).logits[:, :-1]
    logps_RTV = logits_RTV.float().log_softmax(dim=-1)
    target_RT = batch.ids_RT[:, batch.start :]
    logps_RT = logps_RTV.gather(-1, target_RT[..., None])[..., 0]
    return logps_RT * batch.mask_RT[:, batch.start :]


def gradient_of(model: Any, batch: Batch, logps_RT: Tensor) -> Tensor:
    """GRPO's gradient of all weights at ratio 1, as one vector."""
    tokens = batch.mask_RT[:, batch.start :].sum()
    loss = -(batch.advantages_R @ logps_RT.sum(dim=1)) / tokens
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([gradient.flatten() for gradient in gradients])


def measure(model: Any, batch: Batch, with_gradient: bool) -> dict[str, Any]:
    """The distances from float32 of a batch."""
    padding_R = (batch.mask_RT[:, : batch.start] == 0).sum(dim=1)
    row: dict[str, Any] = {"mean padding": padding_R.float().mean().item()}
    truth: dict[str, Tensor] = {}
    for way, arithmetic in WAYS.items():
        with torch.set_grad_enabled(with_gradient):
            logps_RT = logps_of(model, batch, *arithmetic)
        found = {"log-probability": logps_RT.detach()}
        if with_gradient:
            found["gradient"] = gradient_of(model, batch, logps_RT)
        if way == "float32":
            truth = found
            continue
        distance_RT = (found["log-probability"] - truth["log-probability"]).abs()
        tokens_R = batch.mask_RT[:, batch.start :].sum(dim=1)
        distance_R = distance_RT.sum(dim=1) / tokens_R
        row[f"log-probability, {way}"] = (distance_RT.sum() / tokens_R.sum()).item()
        row[f"worst row, {way}"] = distance_R.max().item()
        if with_gradient:
            off = (found["gradient"] - truth["gradient"]).norm() / truth["gradient"].norm()
            row[f"gradient, {way}"] = off.item()
    return row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gradients", type=int, default=5, help="batches with a gradient")
    options = parser.parse_args()
    model = model_of("smollm2")
    model.eval()
    tokenizer = AutoTokenizer.from_pretrained(model.config._name_or_path)
    groups = [json.loads(line) for line in TEXTS.read_text().splitlines()]
    places = np.random.default_rng(0).permutation(len(groups)).reshape(-1, PROMPTS)
    left = options.gradients
    rows = []
    for chosen in places:
        batch = batch_of([groups[place] for place in chosen], tokenizer)
        has_signal = bool(batch.advantages_R.any())
        rows.append(measure(model, batch, with_gradient=has_signal and left > 0))
        left -= has_signal
        print(json.dumps(rows[-1]), flush=True)
    table = pd.DataFrame(rows)
    table.loc["mean"] = table.mean()
    print(table.to_markdown(floatfmt=".4f"))


if __name__ == "__main__":
    main()
