"""Pools of tiny random models: sketches against autograd, samples against the model."""

import copy

import numpy as np
import pytest
import torch
from conftest import TRAINS
from tiny_models import save_tiny_model
from torch.nn import Linear

from gdro_lab.microscope.making import (
    PoolChoice,
    choose_prompts,
    load_base,
    make_pool,
    sample_rollouts,
)
from gdro_lab.microscope.pool import read_pool
from gdro_lab.microscope.sketch import Sketcher

pytestmark = TRAINS

ROWS = [
    {"prompt": f"{p}+{p}=", "uid": f"sum/{p}", "family": "odd" if p % 2 else "even"}
    for p in range(6)
]
ALL = ("uids_P", "families_P", "rewards_PK", "texts_PK", "sketch_NS", "mean_length_P")


@pytest.fixture(scope="module", params=["Qwen3", "Llama"])
def folder(request, tmp_path_factory):
    return save_tiny_model(request.param, tmp_path_factory.mktemp("model") / request.param)


def short_texts(prompts, completions, **columns):
    """About half of a random model's texts."""
    return [float(sum(map(ord, text)) % 2) for text in completions]


def make(folder, reward=short_texts, **changes):
    model, tokenizer, ends = load_base(folder)
    chosen = {"rollouts": 6, "max_new_tokens": 3, "seed": 1, "width": 8} | changes
    choice = PoolChoice(ends=ends, **chosen)
    return make_pool(model, tokenizer, ROWS, reward, choice, progress=False)


def exact_gradients(model, prompt_T, text_NT, length_N):
    """Gradients of each text's log-probability by the weights of all linear layers."""
    layers = [layer for layer in model.model.modules() if isinstance(layer, Linear)]
    gradients = []
    for text_T, length in zip(text_NT, length_N, strict=True):
        ids_T = torch.cat([prompt_T, text_T[:length]])
        logps_TV = model(ids_T[None]).logits[0].log_softmax(dim=-1)[len(prompt_T) - 1 : -1]
        logp = logps_TV.gather(1, text_T[:length, None]).sum()
        parts = torch.autograd.grad(logp, [layer.weight for layer in layers])
        gradients.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(gradients)


def test_sketches_have_the_inner_products_of_the_gradients(folder):
    prompt_T = torch.tensor([5, 6, 7])
    text_NT = torch.tensor([[8, 9, 10, 11], [8, 9, 12, -1], [13, -1, -1, -1]])
    length_N = torch.tensor([4, 3, 1])
    model, *_ = load_base(folder)
    exact = exact_gradients(model, prompt_T, text_NT, length_N)
    exact_NN = (exact @ exact.T).numpy()
    found = []
    for seed in range(60):
        sketcher = Sketcher(copy.deepcopy(model), 8, seed)
        sketch_NS = sketcher(prompt_T, text_NT, length_N)
        found.append((sketch_NS @ sketch_NS.T).numpy())
    error = np.std(found, axis=0) / np.sqrt(len(found))
    assert (np.abs(np.mean(found, axis=0) - exact_NN) <= 4 * error).all()
    assert (error <= 0.08 * np.sqrt(np.outer(exact_NN.diagonal(), exact_NN.diagonal()))).all()


def test_texts_of_unlike_lengths_are_not_mixed_up(folder, monkeypatch):
    """The sketch of a text is that of the text alone, whatever is computed beside it."""
    model, *_ = load_base(folder)
    sketcher = Sketcher(model, 8, 0)
    prompt_T = torch.tensor([5, 6, 7])
    text_NT = torch.tensor([[13, -1, -1], [8, 9, 10], [11, -1, -1], [8, 9, -1]])
    length_N = torch.tensor([1, 3, 1, 2])
    together = sketcher(prompt_T, text_NT, length_N)
    alone = [sketcher(prompt_T, text_NT[[n]], length_N[[n]]) for n in range(4)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-5)
    monkeypatch.setattr("gdro_lab.microscope.sketch.TOKENS", 9)  # two of them at once
    chunked = sketcher(prompt_T, text_NT, length_N)
    torch.testing.assert_close(chunked, torch.cat(alone), rtol=1e-4, atol=1e-5)


def test_samples_are_the_model_s(folder):
    """First and second tokens come as often as the model says, and texts stop where they end."""
    model, _, _ = load_base(folder)
    prompt_T = torch.tensor([5, 6, 7])
    count = 20_000
    with torch.no_grad():
        p_V = model(prompt_T[None]).logits[0, -1].softmax(dim=-1)
        end = int(p_V.argmax())
        other = int(p_V.topk(2).indices[1])
        ids = torch.tensor([[5, 6, 7, other]])
        then_V = p_V[other] * model(ids).logits[0, -1].softmax(dim=-1)
    generator = torch.Generator().manual_seed(0)
    text_KT, length_K = sample_rollouts(
        model, prompt_T, PoolChoice(rollouts=count, max_new_tokens=3, ends=[end]), generator
    )
    ended_K = text_KT[:, 0] == end
    assert (text_KT[ended_K, 1:] == -1).all()
    assert (length_K[ended_K] == 1).all()
    first_V = text_KT[:, 0].bincount(minlength=len(p_V)) / count
    second_V = text_KT[text_KT[:, 0] == other, 1].bincount(minlength=len(p_V)) / count
    for found, expected in ((first_V, p_V), (second_V, then_V)):
        assert (np.abs(found - expected) <= 5 * (expected / count).sqrt()).all()


def test_a_stored_pool_is_read_back(folder, tmp_path):
    made = make(folder, flat=True)
    made.save(tmp_path / "pool.npz")
    assert (made.texts_PK >= 0).all()
    read = read_pool(tmp_path / "pool.npz")
    for name in set(ALL) - {"sketch_NS"}:
        np.testing.assert_array_equal(getattr(read, name), getattr(made, name), err_msg=name)
    # eleven bits
    np.testing.assert_allclose(read.sketch_NS, made.sketch_NS, rtol=1e-3, atol=1e-4)
    assert read.made == made.made
    with pytest.raises(ValueError, match=r"none\.npz"):
        read_pool(tmp_path / "none.npz")


def test_flat_prompts_have_no_gradients_unless_asked_for(folder):
    def all_wrong(prompts, completions, **columns):
        return [0.0 for _ in completions]

    pool = make(folder, all_wrong)
    assert (pool.texts_PK == -1).all()
    assert len(pool.sketch_NS) == 0


def test_families_are_drawn_in_proportion():
    rows = [{"uid": n, "family": "rare" if n < 20 else "frequent"} for n in range(80)]
    chosen = choose_prompts(rows, 16, 0)
    assert sum(row["family"] == "rare" for row in chosen) == 4
    assert len({row["uid"] for row in chosen}) == 16
    assert choose_prompts(rows, 16, 0) == chosen
    with pytest.raises(ValueError, match="prompts"):
        choose_prompts(rows, 81, 0)
