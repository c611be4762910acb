"""The tiny base model: cached, whole or absent, the same each time."""

import numpy as np
import pytest

from gdro.tasks import chain

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tiny = pytest.importorskip("gdro.tiny")

TINY = {"seed": 0, "steps": 3, "batch_size": 8, "progress": False}


@pytest.fixture(scope="module")
def task():
    return chain.make_task(chain.DEFAULT_SPEC, np.random.default_rng(0))


def weights(path):
    return transformers.AutoModelForCausalLM.from_pretrained(path).state_dict()


def test_base_is_the_same_bits_for_the_same_seed(task, tmp_path):
    first = tiny.tiny_base(task, cache_dir=tmp_path / "a", **TINY)
    torch.rand(3)  # neither the random state around it
    before = torch.random.get_rng_state()
    again = tiny.tiny_base(task, cache_dir=tmp_path / "b", **TINY)
    assert torch.equal(torch.random.get_rng_state(), before)
    other = tiny.tiny_base(task, cache_dir=tmp_path / "b", **TINY | {"seed": 1})
    assert first.name == again.name
    assert other.name != again.name
    ours, theirs = weights(first), weights(again)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert any(not torch.equal(ours[name], array) for name, array in weights(other).items())


def test_base_is_found_again_and_not_trained_twice(task, tmp_path, monkeypatch):
    first = tiny.tiny_base(task, cache_dir=tmp_path, **TINY)

    def fail(*args):
        raise AssertionError("trained although cached")

    monkeypatch.setattr(tiny, "_train_tiny_base", fail)
    assert tiny.tiny_base(task, cache_dir=str(tmp_path), **TINY) == first
    assert [path.name for path in tmp_path.iterdir()] == [first.name]


def test_base_holds_all_that_a_trainer_loads(task, tmp_path):
    path = tiny.tiny_base(task, cache_dir=tmp_path, **TINY)
    model = transformers.AutoModelForCausalLM.from_pretrained(path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    assert model.config.vocab_size == len(tokenizer)
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.generation_config.pad_token_id == tokenizer.pad_token_id
    assert 0.5e6 < model.num_parameters() < 0.7e6
    assert (path / tiny.INGREDIENTS_FILE).is_file()


@pytest.mark.parametrize("culprit", ["_completion_loss", "INGREDIENTS_FILE"])
def test_failed_training_leaves_nothing(task, tmp_path, monkeypatch, culprit):
    # a loss that cannot be called fails in training; a file name that is none, while saving
    monkeypatch.setattr(tiny, culprit, None)
    threads = torch.get_num_threads()
    with pytest.raises(TypeError):
        tiny.tiny_base(task, cache_dir=tmp_path, **TINY)
    assert list(tmp_path.iterdir()) == []
    assert torch.get_num_threads() == threads


def test_a_base_made_meanwhile_elsewhere_is_used(task, tmp_path, monkeypatch):
    elsewhere = tiny.tiny_base(task, cache_dir=tmp_path / "elsewhere", **TINY)
    target = tmp_path / "here" / elsewhere.name
    train = tiny._train_tiny_base

    def train_while_another_finishes(*args):
        model = train(*args)
        elsewhere.rename(target)
        return model

    monkeypatch.setattr(tiny, "_train_tiny_base", train_while_another_finishes)
    assert tiny.tiny_base(task, cache_dir=tmp_path / "here", **TINY) == target
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_loss_is_of_the_completion_alone(task):
    tokenizer = chain.make_tokenizer(task.spec)
    torch.manual_seed(0)
    model = tiny._fresh_tiny_model(tokenizer, "tiny")
    loss = tiny._completion_loss(model, tokenizer, ["7*4*3?"], ["7*4=8;8*3=4"])
    ids = tokenizer("7*4*3?7*4=8;8*3=4" + tokenizer.eos_token, return_tensors="pt")["input_ids"]
    log_probs = model(ids).logits[0].log_softmax(-1)
    # the token at place t is predicted at t - 1; the prompt takes places 0 … 5
    by_hand = -log_probs[range(5, 17), ids[0, 6:]].mean()
    torch.testing.assert_close(loss, by_hand)


def test_training_lowers_the_loss(task):
    tokenizer = chain.make_tokenizer(task.spec)
    losses = []
    for steps in (1, 40):
        model = tiny._train_tiny_base(task, tokenizer, "tiny", 0, steps, 16, 1, "cpu", False)
        prompts, completions = chain.teach(task, np.random.default_rng(9), 64)
        with torch.no_grad():
            losses.append(tiny._completion_loss(model, tokenizer, prompts, completions).item())
    assert losses[1] < losses[0] - 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": -1}, "seed is -1; give an integer of at least 0"),
        ({"steps": 0}, "steps is 0; give an integer of at least 1"),
        ({"batch_size": 0}, "batch_size is 0; give an integer of at least 1"),
        ({"threads": 0}, "threads is 0; give an integer of at least 1"),
    ],
)
def test_bad_arguments_are_refused(task, tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        tiny.tiny_base(task, cache_dir=tmp_path / "new", **TINY | change)
    assert not (tmp_path / "new").exists()
