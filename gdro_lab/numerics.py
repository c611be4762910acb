"""The same bits on all x86-64 processors with AVX2, by the environment.

Libraries choose their kernels by the processor, and other kernels round in another order. With
these variables they choose alike. Found and checked with scripts/numerics.py.
"""

import os
import platform

VARIABLES = {
    "ATEN_CPU_CAPABILITY": "avx2",  # PyTorch's own kernels
    "MKL_CBWR": "COMPATIBLE",  # PyTorch's products, by vendor otherwise, also under "AVX2"
    "OPENBLAS_CORETYPE": "Haswell",  # products of numpy and scipy
    "NPY_ENABLE_CPU_FEATURES": "X86_V3",  # numpy's elementary functions and sorts
    "OMP_NUM_THREADS": "1",  # sums are split by threads; for OpenBLAS as well
}


def fix() -> None:
    """Set the variables that are not set yet.

    They are read once, when torch and numpy are imported, so call this first; subprocesses inherit
    them.
    """
    if platform.machine() in ("x86_64", "AMD64"):
        for name, value in VARIABLES.items():
            os.environ.setdefault(name, value)
