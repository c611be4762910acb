"""The same bits on all x86-64 processors with AVX2, through environment variables.

Libraries choose their kernels by the processor, and other kernels round in another order. With
these variables they choose alike. Found and checked with scripts/numerics.py.
"""

import os
import platform
import tempfile

_USER = os.getuid() if hasattr(os, "getuid") else ""
VARIABLES = {
    "ATEN_CPU_CAPABILITY": "avx2",  # PyTorch's own kernels
    # A folder of its own for what torch.compile makes (of vLLM's sampler, say): PyTorch's cache
    # does not tell kernels apart by the variable above, and code that is generated for AVX2 and
    # then compiled for AVX-512 writes beyond the ends of its arrays.
    "TORCHINDUCTOR_CACHE_DIR": os.path.join(tempfile.gettempdir(), f"torchinductor_avx2_{_USER}"),
    "MKL_CBWR": "COMPATIBLE",  # MKL's products; even "AVX2" lets the vendor of the CPU decide
    "OPENBLAS_CORETYPE": "Haswell",  # products of numpy and scipy
    "NPY_ENABLE_CPU_FEATURES": "X86_V3",  # numpy's elementary functions and sorts
    "OMP_NUM_THREADS": "1",  # sums are split by threads; for OpenBLAS as well
}

# FlashInfer's sampler needs a CUDA toolkit. With several processes, equal seeds would not give
# equal samples. On a processor, vLLM would keep half of the memory for its cache, and a training
# beside it would find none; models small enough to train there need one GiB.
ENGINES = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}

FOR_TORCH = ("ATEN_CPU_CAPABILITY", "TORCHINDUCTOR_CACHE_DIR", "MKL_CBWR")
_set_here: set[str] = set()  # by `fix`, in this process


def fix() -> None:
    """Set the variables that are not set yet.

    They are read once, when torch and numpy are imported, so call this first; subprocesses inherit
    them.
    """
    if platform.machine() in ("x86_64", "AMD64"):
        for name, value in VARIABLES.items():
            if name not in os.environ:
                os.environ[name] = value
                _set_here.add(name)


def fix_engines() -> None:
    """Set the variables of huggingface_hub and vLLM that are not set yet.

    They are read once, so call this before either is imported.
    """
    for name, value in ENGINES.items():
        os.environ.setdefault(name, value)


def leave_torch_free() -> None:
    """Take back what `fix` has set for PyTorch, which is still to be imported.

    A pretrained model then computes as fast as the processor can, up to three times faster. Its
    runs record the processor.
    """
    for name in FOR_TORCH:
        if name in _set_here:
            del os.environ[name]
            _set_here.remove(name)
