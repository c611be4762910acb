"""Evaluation: n samples for each held-out prompt, counted as right or wrong.

A table of evaluation has one row a prompt: uid, family, successes, trials, tokens. Every score in
a report (mean@k, pass@k, worst family, worst bin) is computed from these counts alone.
"""

import torch
from tqdm.auto import tqdm
from transformers import GenerationConfig


def evaluate(
    model,
    tokenizer,
    rows,
    reward,
    *,
    samples: int,
    max_new_tokens: int,
    temperature: float,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    batch_size: int = 256,
    progress: bool = True,
) -> list[dict]:
    """Sample completions and count the right ones.

    rows: prompts with the columns prompt, uid, answer and perhaps family. reward: as TRL takes it,
    (completions, answer=…) → numbers; greater than 0 is right. samples: completions a prompt.
    seed: of the sampling. batch_size: completions generated at once. top_k 0 and top_p 1 are off.
    Returns one row a prompt. Raises ValueError for samples < 1 or no rows.
    """
    if samples < 1 or not rows:
        raise ValueError(f"nothing to evaluate: samples={samples}, {len(rows)} prompts; both must be ≥ 1")
    config = GenerationConfig(
        do_sample=True,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        max_new_tokens=max_new_tokens,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    jobs = [row for row in rows for _ in range(samples)]
    completions, tokens = [], []
    torch.manual_seed(seed)
    model.eval()
    for start in tqdm(range(0, len(jobs), batch_size), desc="evaluate", disable=not progress):
        texts, lengths = _sample(model, tokenizer, jobs[start : start + batch_size], config)
        completions += texts
        tokens += lengths
    scores = reward(completions=completions, answer=[row["answer"] for row in jobs])
    return [
        {
            "uid": row["uid"],
            "family": row.get("family", ""),
            "successes": sum(score > 0 for score in scores[p * samples : (p + 1) * samples]),
            "trials": samples,
            "tokens": sum(tokens[p * samples : (p + 1) * samples]),
        }
        for p, row in enumerate(rows)
    ]


@torch.no_grad()
def _sample(model, tokenizer, jobs, config):
    """Completions of a batch as text, and their lengths in tokens up to the end-of-text token."""
    inputs = tokenizer(
        [row["prompt"] for row in jobs], return_tensors="pt", padding=True, return_token_type_ids=False
    ).to(model.device)
    output = model.generate(**inputs, generation_config=config)
    new_tokens = output[:, inputs["input_ids"].shape[1] :]
    lengths = (new_tokens != tokenizer.pad_token_id).sum(dim=1).tolist()
    return tokenizer.batch_decode(new_tokens, skip_special_tokens=True), lengths
