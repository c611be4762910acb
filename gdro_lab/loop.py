"""GRPO with any method in one loop: plan, sample, reward, observe, loss, step.

It does what `gdro.trainer` does inside TRL, for small Qwen3 models, on a CPU or a GPU, at
temperature 1. Two savings change neither the gradient nor the distribution of samples: rollouts
with the same prefix share one row of the KV cache (`gdro_lab.sampling`), and equal rollouts enter
the loss once, those of advantage 0 not at all (`policy_gradient`).

Axes: D prompts of the data set, P prompts of a batch, R rollouts, M kept texts, N distinct texts, T
tokens, V vocabulary.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gdro.checks import check
from gdro.controller import GDROController
from gdro.metrics import count_distinct, is_correct
from gdro.plans import Observed
from gdro.rounds import sample_in_rounds
from gdro.uids import as_uids
from gdro_lab.buffer import ReplayBuffer, is_whole
from gdro_lab.models import Tokenizer
from gdro_lab.qwen3 import Model, forward
from gdro_lab.sampling import sample

Rows = Sequence[Mapping[str, Any]]  # columns: prompt, uid and those that the reward asks for
Reward = Callable[..., Sequence[float]]  # as TRL takes it: (prompts=…, completions=…, **columns)


class Texts(NamedTuple):
    """Rollouts or kept texts, as the loss takes them."""

    prompt_RT: Tensor
    text_RT: Tensor
    advantages_R: Tensor


def train(
    model: Model,
    tokenizer: Tokenizer,
    rows: Rows,
    reward: Reward,
    controller: GDROController,
    *,
    steps: int,
    prompts: int,
    learning_rate: float,
    max_new_tokens: int,
    seed: int,
    schedule: str = "constant",
    on_step: Callable[[int, dict], None] | None = None,
) -> list[dict]:
    """Train `model` in float32, in place, by TRL's defaults: AdamW, gradients clipped to norm 1.

    Args:
        model, tokenizer: a Qwen3, in whose tokens all prompts must be equally long.
        rows: the data set, with the columns prompt and uid.
        reward: called with prompts, completions and the other columns of the rows.
        controller: with any method.
        steps: generation batches; each is an optimizer step unless the method waits for more.
        prompts: how many a batch.
        learning_rate: of the first step.
        max_new_tokens: of a completion, at most.
        seed: of samples and of the data's order; the controller has its own.
        schedule: of the learning rate, "constant" or "linear" (decays to 0 over `steps`).
        on_step: called after each step with the number of steps done and the new row of the record.

    Returns:
        The record: `observed.row` of each batch with rollouts_spent, tokens, replayed (kept texts
        in the loss), trained_tokens (whose advantage is not 0), mixed (`mixed_share`), seconds (of
        the processor, which other work and a GPU's own time do not change) and controller_seconds,
        a part of them.
    """
    check("schedule", schedule, Literal["constant", "linear"])
    training = LoopTraining(model, tokenizer, rows, reward, controller, max_new_tokens, seed)
    check("prompts", prompts, int, ge=1, le=len(rows))  # none twice in a batch
    epochs = batches(len(rows), prompts, np.random.default_rng(seed))
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0, fused=True)
    record: list[dict] = []
    collected: list[Texts] = []  # what the next optimizer step learns from
    for step in range(1, steps + 1):
        began = time.process_time()
        texts, observed, costs = training.play_batch(prompts, epochs)
        collected.append(texts)  # those of advantage 0 too: the loss divides by their tokens
        kept = training.bank_texts() if observed.ready else None  # once a step, not once a batch
        if observed.ready:  # False where a method that discards groups (DAPO) wants another batch
            collected += [] if kept is None else [kept]
            decay = 1 - (step - 1) / steps if schedule == "linear" else 1.0
            take_step(model, optimizer, learning_rate * decay, collected)
            collected = []
        costs["seconds"] = time.process_time() - began
        row = observed.row | training.costs(texts, kept) | costs
        record.append(row)
        if on_step is not None:
            on_step(step, row)
    return record


@dataclass
class LoopTraining:
    """Model, data and controller of one training, with its replay buffer.

    The arguments are those of `train`.
    """

    model: Model
    tokenizer: Tokenizer
    rows: Rows
    reward: Reward
    controller: GDROController
    max_new_tokens: int
    seed: int

    def __post_init__(self) -> None:
        self.generator = torch.Generator(self.model.device).manual_seed(self.seed)
        self.ids_DT = prompt_ids(self.model, self.tokenizer, self.rows)
        self.uids_D = as_uids([row["uid"] for row in self.rows])  # hashed once
        self.replay_buffer = ReplayBuffer(self.controller.method.kept_texts)

    def play_batch(
        self, prompts: int, epochs: Iterator[np.ndarray]
    ) -> tuple[Texts, Observed, dict[str, float]]:
        """Draw, plan, sample, reward and observe a batch of prompts; keep its successes.

        Args:
            prompts: how many.
            epochs: what comes next where the method draws none.

        Returns:
            All rollouts with their advantages, what the controller made of them, and of the row of
            the record mixed and controller_seconds.
        """
        began = time.process_time()
        # the pool is the same array each time, so the controller sorts it once
        drawn_P = self.controller.draw(self.uids_D, prompts)
        if drawn_P is None:
            drawn_P = next(epochs)
        rounds: list[Tensor] = []  # completions of each
        away: list[float] = []  # seconds that sampling and rewards took

        def sample_and_reward(group_ids_R: np.ndarray) -> np.ndarray:
            left = time.process_time()
            drawn_R = drawn_P[group_ids_R]
            text_RT = sample(self.model, self.ids_DT[drawn_R], self.max_new_tokens, self.generator)
            rounds.append(text_RT)
            rows = [self.rows[d] for d in drawn_R]
            rewards_R = rewards_of(self.tokenizer, rows, text_RT, self.reward)
            away.append(time.process_time() - left)
            return rewards_R

        plan = self.controller.plan(self.uids_D[drawn_P])
        samples = sample_in_rounds(self.controller, plan, sample_and_reward)
        observed = self.controller.observe(
            plan, samples.group_ids_R, samples.rewards_R, correct=samples.correct_R
        )
        costs = {
            "mixed": mixed_share(samples.group_ids_R, samples.correct_R),
            "controller_seconds": time.process_time() - began - sum(away),
        }
        text_RT = torch.cat(rounds)  # in the order of the samples, so rows and advantages agree
        drawn_R = drawn_P[samples.group_ids_R]
        if self.controller.method.replays:
            self._keep_successes(drawn_R[samples.correct_R], text_RT[samples.correct_R])
        # float32, as the weights are
        advantages_R = torch.as_tensor(observed.advantages, dtype=torch.float32)
        texts = Texts(self.ids_DT[drawn_R], text_RT, advantages_R.to(self.model.device))
        return texts, observed, costs

    def _keep_successes(self, drawn_R: np.ndarray, text_RT: Tensor) -> None:
        """Add correct rollouts to the buffer, those that are whole."""
        ends = {self.model.config.eos_token_id}
        specials = set(self.tokenizer.all_special_ids)
        lengths_R = self._mask(text_RT).sum(dim=1).tolist()
        for position, row_T, length in zip(drawn_R, text_RT, lengths_R, strict=True):
            text = row_T[:length].tolist()
            if is_whole(text, ends, specials):
                key = self.tokenizer.decode(text, skip_special_tokens=True)
                self.replay_buffer.add(int(position), text, key)

    def bank_texts(self) -> Texts | None:
        """Kept successes that the method wants in this step, with their weights as advantages.

        Returns:
            None where it wants none.
        """
        answer = self.controller.replay(self.uids_D[np.array(self.replay_buffer.uids, int)])
        if answer is None:
            return None
        places, prompt_weights = answer
        # the buffer's uids here are positions in the data set
        positions_M, texts_M, weights_M = self.replay_buffer.rows(places, prompt_weights)
        # filled up, as samples are, with the token that ends a text
        eos_id = self.model.config.eos_token_id
        text_MT = self.ids_DT.new_full((len(texts_M), self.max_new_tokens), eos_id)
        for row_T, text in zip(text_MT, texts_M, strict=True):
            row_T[: len(text)] = torch.tensor(text)
        advantages_M = torch.as_tensor(weights_M, dtype=torch.float32).to(self.model.device)
        return Texts(self.ids_DT[np.array(positions_M)], text_MT, advantages_M)

    def costs(self, texts: Texts, kept: Texts | None) -> dict[str, float]:
        """What a batch and its replay have cost, for the row of the record."""
        lengths_R = self._mask(texts.text_RT).sum(dim=1)
        trained_tokens = lengths_R[texts.advantages_R != 0].sum()
        if kept is not None:
            trained_tokens = trained_tokens + self._mask(kept.text_RT).sum()
        return {
            "rollouts_spent": len(lengths_R),
            "tokens": int(lengths_R.sum()),
            "replayed": 0 if kept is None else len(kept.text_RT),
            "trained_tokens": int(trained_tokens),
        }

    def _mask(self, text_RT: Tensor) -> Tensor:
        return completion_mask(text_RT, self.model.config.eos_token_id)


def batches(size: int, prompts: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Positions of batch after batch, without end; each epoch is shuffled, its rest dropped.

    With the seed of a replicate, `rng` repeats the numbers that draw the task and train the base,
    since numpy seeds s and (s, 0) alike. Another seed would change all stored results.
    """
    while True:
        order_D = rng.permutation(size)
        for start in range(0, size - prompts + 1, prompts):
            yield order_D[start : start + prompts]


def mixed_share(group_ids_R: np.ndarray, correct_R: np.ndarray) -> float:
    """Share of the prompts that have correct and wrong rollouts."""
    trials_P = np.bincount(group_ids_R)
    hits_P = np.bincount(group_ids_R, correct_R)
    return float(((hits_P > 0) & (hits_P < trials_P)).mean())


def take_step(
    model: Model, optimizer: torch.optim.Optimizer, learning_rate: float, collected: list[Texts]
) -> None:
    """One step of the optimizer on all texts since the last one.

    Args:
        model, optimizer: changed in place.
        learning_rate: of this step.
        collected: rollouts of one batch or more, and kept texts.
    """
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    # so that AdamW steps without signal, as in TRL, once there has been a gradient
    optimizer.zero_grad(set_to_none=False)
    policy_gradient(
        model,
        torch.cat([texts.prompt_RT for texts in collected]),
        torch.cat([texts.text_RT for texts in collected]),
        torch.cat([texts.advantages_R for texts in collected]),
    )
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def policy_gradient(model: Model, prompt_RT: Tensor, text_RT: Tensor, advantages_R: Tensor) -> int:
    """Add the gradient of −Σ A log π / tokens, GRPO's at ratio 1 (TRL's "dapo"), to the model's.

    Args:
        prompt_RT: tokens of each rollout's prompt.
        text_RT: of its completion, filled up with the token that ends it.
        advantages_R: weighted.

    Returns:
        The number of tokens, of all completions.
    """
    tokens = int(completion_mask(text_RT, model.config.eos_token_id).sum())
    # linear in A, so equal texts are computed once, with the sum of their advantages
    text_NT, row_R = torch.cat([prompt_RT, text_RT], dim=1).unique(dim=0, return_inverse=True)
    advantages_N = advantages_R.new_zeros(len(text_NT)).index_add(0, row_R, advantages_R)
    trains_N = advantages_N != 0  # the others have no gradient
    text_NT = text_NT[trains_N]
    advantages_N = advantages_N[trains_N]
    if len(text_NT):
        logps_N = text_logps(model, text_NT, prompt_RT.shape[1])
        (-(advantages_N @ logps_N) / tokens).backward()
    return tokens


def text_logps(model: Model, text_NT: Tensor, start: int) -> Tensor:
    """Log-probability of each text from token `start` to the token that ends it, (N,)."""
    logps_NT, mask_NT = completion_logps(model, text_NT, start)
    return (logps_NT * mask_NT).sum(dim=1)


def completion_logps(model: Model, text_NT: Tensor, start: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the tokens from `start` on, and which are of the completion, (N, T)."""
    completion_NT = text_NT[:, start:]  # its token t is predicted by the logits at t − 1
    logps_NTV = forward(model, text_NT[:, :-1])[:, start - 1 :].log_softmax(dim=-1)
    logps_NT = logps_NTV.gather(-1, completion_NT[..., None])[..., 0]
    return logps_NT, completion_mask(completion_NT, model.config.eos_token_id)


class Counts(NamedTuple):
    """What `evaluate` counts of each prompt, (P,) each."""

    successes_P: np.ndarray
    """Correct completions."""
    distinct_P: np.ndarray
    """Different texts among them."""


def evaluate(
    model: Model,
    tokenizer: Tokenizer,
    rows: Rows,
    reward: Reward,
    samples: int,
    max_new_tokens: int,
    seed: int,
    success_threshold: float = 0.0,
) -> Counts:
    """Sample completions and count the correct ones.

    Args:
        model, tokenizer, rows, reward, max_new_tokens: as for `train`.
        samples: completions of each prompt.
        seed: of the samples.
        success_threshold: a completion is correct if its reward is greater.
    """
    generator = torch.Generator(model.device).manual_seed(seed)
    prompt_RT = prompt_ids(model, tokenizer, rows).repeat_interleave(samples, dim=0)
    text_RT = sample(model, prompt_RT, max_new_tokens, generator)
    repeated = [row for row in rows for _ in range(samples)]  # in the order of the rollouts
    texts = tokenizer.batch_decode(text_RT, skip_special_tokens=True)
    rewards_R = call_reward(repeated, texts, reward)
    correct_PS = is_correct(rewards_R, success_threshold).reshape(-1, samples)
    texts_PS = np.array(texts, dtype=object).reshape(-1, samples)
    distinct_P = np.array(list(map(count_distinct, texts_PS, correct_PS)))
    return Counts(correct_PS.sum(axis=1), distinct_P)


def prompt_ids(model: Model, tokenizer: Tokenizer, rows: Rows) -> Tensor:
    """Tokens of the prompts, (P, T), on the model's device; all must be equally long."""
    kind = model.config.model_type
    if kind != "qwen3":
        raise ValueError(f"model must be a Qwen3, got {kind!r}; use gdro.trainer")
    ids = tokenizer([row["prompt"] for row in rows])["input_ids"]
    lengths = {len(row) for row in ids}
    if len(lengths) != 1:
        raise ValueError(f"prompts must be equally long in tokens, got {sorted(lengths)}")
    return torch.tensor(ids, device=model.device)


def rewards_of(tokenizer: Tokenizer, rows: Rows, text_RT: Tensor, reward: Reward) -> np.ndarray:
    """The reward of each completion, (R,), from its tokens (R, T): decoded, then `call_reward`."""
    return call_reward(rows, tokenizer.batch_decode(text_RT, skip_special_tokens=True), reward)


def call_reward(rows: Rows, completions: Sequence[Any], reward: Reward) -> np.ndarray:
    """The reward of each completion, (R,), asked for as TRL asks.

    Args:
        rows: of each completion, its prompt and the reward's columns; a missing column is None.
        completions: texts, or chats.
        reward: called as (prompts=, completions=, **columns).
    """
    names = dict.fromkeys(name for row in rows for name in row if name != "prompt")
    columns = {name: [row.get(name) for row in rows] for name in names}
    prompts = [row["prompt"] for row in rows]
    return np.asarray(reward(prompts=prompts, completions=completions, **columns), float)


def completion_mask(text_RT: Tensor, eos_id: int) -> Tensor:
    """Tokens of the completions up to the one that ends them, that one included, (R, T)."""
    ends_RT = (text_RT == eos_id).int()
    # 0 = 0 before the first end and 1 = 1 at it; behind it the sum is larger
    return ends_RT.cumsum(dim=1) == ends_RT
