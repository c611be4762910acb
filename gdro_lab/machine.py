"""The machine that a model runs on, and this process on it.

What a model computes in and what a record says of the machine; a lock on a folder, processes that
end with their parent, and a free port.
"""

import ctypes
import fcntl
import multiprocessing
import os
import random
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

from gdro.checks import Refusal

Arithmetic = Literal["float32", "bfloat16"]

# Without instructions of its own for bfloat16, a processor takes eight times as long as in float32.
BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16")
# A manifest lists which of these the processor has, since libraries choose their kernels by them.
RECORDED_FLAGS = ("avx2", "avx512_f", *BFLOAT16_FLAGS, "amx_fp16", "neon", "bf16", "sve")


def arithmetic(*, pretrained: bool) -> Arithmetic:
    """What models compute in on this machine: float32, or bfloat16 where that is faster.

    On a GPU, bfloat16. On a processor, bfloat16 for a pretrained model where the processor has
    instructions for it, unless `gdro_lab.numerics` restricts PyTorch to AVX2: its attention in
    bfloat16 then fails on processors with AMX. Our tiny models stay in float32, because their
    tables are equal everywhere.
    """
    import torch

    if torch.cuda.is_available():
        return "bfloat16"
    flags = processor_flags()
    has_bfloat16 = any(flag in flags for flag in BFLOAT16_FLAGS)
    is_free = torch.backends.cpu.get_cpu_capability() == "AVX512"
    if pretrained and has_bfloat16 and is_free:
        return "bfloat16"
    return "float32"


def fast_attention() -> str | None:
    """The attention of transformers that trains fastest here; None for its own choice.

    On a processor PyTorch's fused attention multiplies many small blocks one by one: forward and
    backward of 1,024 tokens of SmolLM2-135M take 2.6 s with it and 2.1 s without.
    """
    import torch

    return None if torch.cuda.is_available() else "eager"


def processor_flags() -> list[str]:
    """Those of `RECORDED_FLAGS` that the processor has; none where torch is older than 2.11."""
    capabilities = _capabilities()
    return [flag for flag in RECORDED_FLAGS if capabilities.get(flag)]


def describe_machine(*, pretrained: bool) -> dict[str, Any]:
    """Device, threads, processor and arithmetic, for a manifest."""
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "device": device,
        "threads": torch.get_num_threads(),
        "processor": {"name": _capabilities().get("cpu_name"), "flags": processor_flags()},
        "arithmetic": arithmetic(pretrained=pretrained),
    }


def _capabilities() -> dict[str, Any]:
    import torch

    if not hasattr(torch.cpu, "get_capabilities"):
        return {}
    return dict(torch.cpu.get_capabilities())


@contextmanager
def only_process_in(folder: Path) -> Iterator[None]:
    """Refuse (Refusal) a second process that holds this folder. The lock ends with the process.

    Refusal, too, for a folder that cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("a")
    except OSError as error:
        raise Refusal(f"{folder} cannot be written: {error}") from error
    # of the process: one of the open file would be inherited by workers of a data loader
    with lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Refusal(f"another process works in {folder}") from error
        yield


@contextmanager
def own_processes(number: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that end with this block, or when this one is asked to end."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(number, context, set_up_process) as pool:
        try:
            yield pool
        except BaseException:  # SystemExit by a signal, too
            for process in multiprocessing.active_children():
                while process.is_alive():  # one signal may come where its exception is lost
                    process.terminate()
                    process.join(1)
            raise


def end_with_parent() -> None:
    """End this process when the one that started it ends, however it does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    starter = multiprocessing.parent_process()
    if starter is not None:
        # to the system, the parent of a job is the server that it was forked from, which stays
        threading.Thread(target=_end_after, args=(starter,), daemon=True).start()


def _end_after(starter: Any) -> None:
    starter.join()
    os.kill(os.getpid(), signal.SIGTERM)


def set_up_process() -> None:
    """Set up a process that trains or evaluates: few threads, a clean end on SIGTERM."""
    import torch

    end_with_parent()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that launched processes end too
    _take_other_places()


@cache  # torch's registry takes a package once
def _take_other_places() -> None:
    """Load the optimizer of a second process, restored to "cpu:1", which torch does not know."""
    import torch

    torch.serialization.register_package(
        1, lambda storage: None, lambda storage, place: storage if place.startswith("cpu") else None
    )


def free_port() -> int:
    """A port of this machine that nothing listens on, outside the usual range of ephemeral ports.

    The system could give an ephemeral port to another process before the caller listens on it: an
    engine loads first.
    """
    while True:
        # unseeded, or runs of one seed would ask for the same port
        port = random.SystemRandom().randrange(20_000, 30_000)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        return port
