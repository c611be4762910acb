"""The laboratory: what teaches and measures GDRO. What people import to train is `gdro`."""

import os
import platform

# Libraries choose their kernels by the processor, and other kernels round in another order. With
# these, all x86-64 processors with AVX2 compute the same bits. They are read once, when torch and
# numpy are imported, so import this package first; subprocesses inherit them, and what is set
# already stays. Found and checked with scripts/numerics.py.
if platform.machine() in ("x86_64", "AMD64"):
    for _name, _value in {
        "ATEN_CPU_CAPABILITY": "avx2",  # PyTorch's own kernels
        "MKL_CBWR": "COMPATIBLE",  # PyTorch's products, by vendor otherwise, also under "AVX2"
        "OPENBLAS_CORETYPE": "Haswell",  # products of numpy and scipy
        "NPY_ENABLE_CPU_FEATURES": "X86_V3",  # numpy's elementary functions and sorts
        "OMP_NUM_THREADS": "1",  # sums are split by threads; for OpenBLAS as well
    }.items():
        os.environ.setdefault(_name, _value)
