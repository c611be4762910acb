"""The tiny base: the same bits each time, cached, complete or absent."""

import pytest
import torch
import transformers

from gdro_lab.tasks import embedded
from gdro_lab.tasks import tiny as models
from gdro_lab.tasks.tiny import tiny_base

TINY = {"seed": 0, "steps": 3, "batch_size": 8, "progress": False}


@pytest.fixture(scope="module")
def task():
    return embedded.DEFAULT_SPEC.draw(0)


@pytest.fixture(scope="module")
def base(task, tmp_path_factory):
    return tiny_base(task, cache_dir=tmp_path_factory.mktemp("base"), **TINY)


def weights(path):
    return transformers.AutoModelForCausalLM.from_pretrained(path).state_dict()


def test_base_is_the_same_bits_for_the_same_seed(task, base, tmp_path):
    torch.rand(3)  # the random state around it has no effect, nor does it change
    before = torch.random.get_rng_state()
    again = tiny_base(task, cache_dir=tmp_path, **TINY)
    assert torch.equal(torch.random.get_rng_state(), before)
    other = tiny_base(task, cache_dir=tmp_path, **TINY | {"seed": 1})
    assert base.name == again.name != other.name
    ours, theirs = weights(base), weights(again)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert any(not torch.equal(ours[name], array) for name, array in weights(other).items())


def test_the_loss_is_on_the_completion_and_its_end_alone(task, base):
    """That training lowers it: test_arena.py, whose oracle knows the pass rates of a base."""
    tokenizer = task.tokenizer()
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    loss = models._completion_loss(model, tokenizer, ["7*4*3?"], ["7*4=8;8*3=4"])
    ids = tokenizer("7*4*3?7*4=8;8*3=4" + tokenizer.eos_token, return_tensors="pt")["input_ids"]
    log_probs = model(ids).logits[0].log_softmax(-1)
    # the token at position t is predicted at t - 1; the prompt has positions 0 to 5
    torch.testing.assert_close(loss, -log_probs[range(5, 17), ids[0, 6:]].mean())
