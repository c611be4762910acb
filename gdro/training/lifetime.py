"""A process that ends with the one that started it, however that ends."""

import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def end_with_parent(signum: int = signal.SIGTERM) -> None:
    """Have Linux send `signum` to this process when its parent has died; elsewhere, do nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signum)
