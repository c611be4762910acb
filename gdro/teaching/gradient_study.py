"""GRPO's gradient taken apart on a tiny model: how much it varies, and what its loss says.

For notebooks 02 and 03. Each sampled completion has a gradient of its own, (1/L) Σ_t ∇ log π(token); the
gradient of a rollout group is their mean weighted by advantages. All squared lengths and inner products that
are needed stand in the completions' Gram matrix, so that thousands of rollout groups can be drawn from one
pool without another backward pass. Axes: M completions of the pool, C groups drawn, n rollouts of a group.
"""

from typing import NamedTuple

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from gdro.tasks import chain
from gdro.tiny import tiny_base

# four skills of sixteen facts each, so that a base is made in seconds
SPEC = chain.ChainSpec(
    families=(
        chain.Family("star", "*", n_digits=4, share=0.25, teacher_accuracy=0.97),
        chain.Family("plus", "+", n_digits=4, share=0.25, teacher_accuracy=0.85),
        chain.Family("hash", "#", n_digits=4, share=0.25, teacher_accuracy=0.60),
        chain.Family("amp", "&", n_digits=4, share=0.25, teacher_accuracy=0.35),
    ),
    n_train=64,
    n_eval_per_family=16,
)


class Tiny(NamedTuple):
    """The task, its tiny base model and tokenizer."""

    task: chain.ChainTask
    model: torch.nn.Module
    tokenizer: object


class Pool(NamedTuple):
    """Completions of one prompt: rewards (M,), Gram matrix of their gradients (M, M), family."""

    rewards: np.ndarray
    gram: np.ndarray
    family: str

    @property
    def pass_rate(self):
        return float(self.rewards.mean())


def load_tiny(steps, batch_size, cache_dir=".cache/bases", seed=0):
    """The small task and a base model trained on it for so many steps (or found in the cache)."""
    task = chain.make_task(SPEC, np.random.default_rng(seed))
    folder = tiny_base(
        task, seed=seed, steps=steps, batch_size=batch_size, cache_dir=cache_dir, progress=False
    )
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    return Tiny(task, model, AutoTokenizer.from_pretrained(folder))


def prompts_of_every_family(task, per_family):
    """Rows of the training split, the same number of each family, or ValueError if there are too few."""
    if per_family < 1:
        raise ValueError(f"per_family must be at least 1, got {per_family}; take 2 or 3 prompts of each")
    rows = []
    for family in task.spec.families:
        own = [row for row in task.train if row["family"] == family.name]
        if len(own) < per_family:
            raise ValueError(
                f"per_family is {per_family}, but family {family.name!r} has {len(own)}; ask for fewer"
            )
        rows += own[:per_family]
    return rows


def sample_groups(tiny, rows, size, seed):
    """`size` completions of each prompt: token ids (P·size, L), rewards (P, size)."""
    config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=tiny.task.spec.max_completion_tokens,
        pad_token_id=tiny.tokenizer.pad_token_id,
        eos_token_id=tiny.tokenizer.eos_token_id,
    )
    inputs = tiny.tokenizer(
        [row["prompt"] for row in rows for _ in range(size)], return_tensors="pt", return_token_type_ids=False
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(seed)
        ids = tiny.model.generate(**inputs, generation_config=config)
    texts = tiny.tokenizer.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    answers = [row["answer"] for row in rows for _ in range(size)]
    rewards = np.array(chain.reward(texts, answers)).reshape(len(rows), size)
    return ids, inputs["input_ids"].shape[1], rewards


def mean_log_probabilities(model, ids, prompt_length, pad_token_id):
    """Log-probability of every completion token, (R, T), and which tokens count, (R, T)."""
    logits = model(input_ids=ids).logits[:, prompt_length - 1 : -1]
    logps = logits.log_softmax(-1).gather(2, ids[:, prompt_length:, None]).squeeze(2)
    return logps, ids[:, prompt_length:] != pad_token_id


def sample_pool(tiny, row, size, seed):
    """`size` completions of one prompt with the Gram matrix of their gradients, a `Pool`.

    Equal completions have equal gradients, so each distinct one is differentiated once.
    """
    ids, prompt_length, rewards = sample_groups(tiny, [row], size, seed)
    distinct, inverse = torch.unique(ids, dim=0, return_inverse=True)
    parameters = [p for p in tiny.model.parameters() if p.requires_grad]
    gradients = []
    for one in distinct:
        logps, counted = mean_log_probabilities(
            tiny.model, one[None], prompt_length, tiny.tokenizer.pad_token_id
        )
        loss = (logps * counted).sum() / counted.sum()
        parts = torch.autograd.grad(loss, parameters)
        gradients.append(torch.cat([part.flatten() for part in parts]))
    stacked = torch.stack(gradients)
    gram = (stacked @ stacked.T).double().numpy()
    return Pool(rewards[0], gram[np.ix_(inverse.numpy(), inverse.numpy())], row["family"])


def group_coefficients(rewards_M, n, num_groups, rng, advantage="group"):
    """What each completion of the pool contributes to the gradients of drawn groups, (C, M).

    Groups of n are drawn from the pool with replacement. advantage: "group" is (3) with TRL's deviation
    (n − 1) and 1e-4; "baseline" only subtracts the pool's mean reward (plain policy gradient).
    """
    if not isinstance(n, int | np.integer) or n < 2:
        raise ValueError(f"n must be an integer of at least 2, got {n!r}; a group of one has no advantage")
    members_CN = rng.integers(len(rewards_M), size=(num_groups, n))
    rewards_CN = rewards_M[members_CN]
    if advantage == "group":
        deviation_C1 = rewards_CN.std(axis=1, ddof=1, keepdims=True)
        advantages_CN = (rewards_CN - rewards_CN.mean(axis=1, keepdims=True)) / (deviation_C1 + 1e-4)
    else:
        advantages_CN = rewards_CN - rewards_M.mean()
    coefficients_CM = np.zeros((num_groups, len(rewards_M)))
    np.add.at(coefficients_CM, (np.arange(num_groups)[:, None], members_CN), advantages_CN / n)
    return coefficients_CM


def gradient_moments(pool, n, num_groups, rng, advantage="group"):
    """(variance, squared length of the mean) of the gradient of a rollout group of n."""
    coefficients_CM = group_coefficients(pool.rewards, n, num_groups, rng, advantage)
    squares_C = np.einsum("cm,cm->c", coefficients_CM @ pool.gram, coefficients_CM)
    mean_M = coefficients_CM.mean(axis=0)
    of_mean = float(mean_M @ pool.gram @ mean_M)
    # the mean of C groups has a C-th of the variance in it
    variance = (float(squares_C.mean()) - of_mean) * num_groups / (num_groups - 1)
    return variance, max(of_mean - variance / num_groups, 0.0)


def moved_model(model, relative, seed):
    """A copy whose weights are jittered by `relative` of their own spread: a policy off its reference."""
    import copy

    moved = copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(seed)
        for parameter in moved.parameters():
            if parameter.ndim > 1:
                parameter += relative * parameter.std() * torch.randn_like(parameter)
    return moved


@torch.no_grad()
def signals_of_groups(tiny, reference, rows, size, kl_weight, seed):
    """Of each prompt, (P,): failure rate, mean of −A, KL(π‖ref), printed loss (6)–(7), reward variance."""
    ids, prompt_length, rewards_PR = sample_groups(tiny, rows, size, seed)
    pad = tiny.tokenizer.pad_token_id
    logps, counted = mean_log_probabilities(tiny.model, ids, prompt_length, pad)
    reference_logps, _ = mean_log_probabilities(reference, ids, prompt_length, pad)
    gap = reference_logps - logps
    kl_R = ((gap.exp() - gap - 1) * counted).sum(1) / counted.sum(1)
    kl_P = kl_R.double().numpy().reshape(rewards_PR.shape).mean(axis=1)
    deviation_P1 = rewards_PR.std(axis=1, ddof=1, keepdims=True)
    advantages_PR = (rewards_PR - rewards_PR.mean(axis=1, keepdims=True)) / (deviation_P1 + 1e-4)
    minus_advantage_P = -advantages_PR.mean(axis=1)
    return {
        "failure_rate": 1 - rewards_PR.mean(axis=1),
        "minus_advantage": minus_advantage_P,
        "kl": kl_P,
        "printed_loss": minus_advantage_P + kl_weight * kl_P,
        "spread": rewards_PR.var(axis=1, ddof=1),
    }
