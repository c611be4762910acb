"""The tiny base: the same bits each time, cached, complete or absent."""

import os
import shutil

import numpy as np
import pytest

from gdro_lab.tasks import embedded

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from gdro.checkpoint import LEDGER  # noqa: E402
from gdro_lab.tasks import tiny as models  # noqa: E402
from gdro_lab.tasks.tiny import tiny_base  # noqa: E402

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


def test_base_is_found_again_and_holds_all_that_a_trainer_loads(task, base, monkeypatch):
    monkeypatch.setattr(
        models, "_train_tiny_base", lambda *_: pytest.fail("trained although cached")
    )
    assert tiny_base(task, cache_dir=str(base.parent), **TINY) == base
    assert [path.name for path in base.parent.iterdir()] == [base.name]
    model = transformers.AutoModelForCausalLM.from_pretrained(base)
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    assert model.config.vocab_size == len(tokenizer)
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.generation_config.pad_token_id == tokenizer.pad_token_id
    assert 0.5e6 < model.num_parameters() < 0.7e6
    assert (base / "tiny_base.json").is_file()


def test_a_damaged_base_is_refused_and_one_without_a_ledger_made_again(task, base, tmp_path):
    copy = tmp_path / base.name
    shutil.copytree(base, copy)
    weights_file = copy / "model.safetensors"
    content = bytearray(weights_file.read_bytes())
    content[-1] ^= 1
    weights_file.write_bytes(content)
    with pytest.raises(
        ValueError, match=rf"model.safetensors is not as it was written .*; delete {copy}"
    ):
        tiny_base(task, cache_dir=tmp_path, **TINY)
    (copy / LEDGER).unlink()  # as of a release that wrote none
    assert tiny_base(task, cache_dir=tmp_path, **TINY) == copy
    assert weights_file.read_bytes() == (base / "model.safetensors").read_bytes()


@pytest.mark.parametrize("culprit", ["_completion_loss", "TINY_MAX_GRAD_NORM"])
def test_failed_training_leaves_nothing(task, tmp_path, monkeypatch, culprit):
    monkeypatch.setattr(models, culprit, None)  # cannot be called; is no number
    threads = torch.get_num_threads()
    (tmp_path / ".making-x").mkdir()  # by a process that was killed long ago
    os.utime(tmp_path / ".making-x", (0, 0))
    with pytest.raises(TypeError):
        tiny_base(task, cache_dir=tmp_path, **TINY)
    assert list(tmp_path.iterdir()) == []
    assert torch.get_num_threads() == threads


def test_a_base_made_meanwhile_elsewhere_is_used(task, tmp_path, monkeypatch):
    elsewhere = tiny_base(task, cache_dir=tmp_path / "elsewhere", **TINY)
    target = tmp_path / "here" / elsewhere.name
    train = models._train_tiny_base

    def train_while_another_finishes(*args):
        model = train(*args)
        elsewhere.rename(target)
        return model

    monkeypatch.setattr(models, "_train_tiny_base", train_while_another_finishes)
    assert tiny_base(task, cache_dir=tmp_path / "here", **TINY) == target
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_training_lowers_the_loss_of_the_completion_alone(task):
    tokenizer = task.tokenizer()
    losses = []
    for steps in (1, 40):
        model = models._train_tiny_base(task, tokenizer, "tiny", 0, steps, 16, 2e-3, "cpu", False)
        prompts, completions = task.teach(np.random.default_rng(9), 64)
        with torch.no_grad():
            losses.append(models._completion_loss(model, tokenizer, prompts, completions).item())
    assert losses[1] < losses[0] - 0.5

    loss = models._completion_loss(model, tokenizer, ["7*4*3?"], ["7*4=8;8*3=4"])
    ids = tokenizer("7*4*3?7*4=8;8*3=4" + tokenizer.eos_token, return_tensors="pt")["input_ids"]
    log_probs = model(ids).logits[0].log_softmax(-1)
    # the token at position t is predicted at t - 1; the prompt has positions 0 to 5
    torch.testing.assert_close(loss, -log_probs[range(5, 17), ids[0, 6:]].mean())
