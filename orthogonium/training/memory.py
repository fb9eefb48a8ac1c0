"""Freed memory is kept for the next step.

By default glibc returns large blocks to the system when they are freed, and each step asks for them again: the system
fills every page with zeros first. That was a quarter of a training step of the CIFAR-10 preset on two cores. The most
memory that a process has at a time stays what it was; it just does not shrink in between.
"""

from __future__ import annotations

import ctypes
import os
import sys

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of mallopt(3)


def keep_freed_memory() -> bool:
    """Let this process reuse the memory that it frees, until it ends; False where that cannot be said.

    It can with glibc, the C library of most Linux systems. Variables `MALLOC_…_` of the environment, by which a user
    has decided already, are left to decide.
    """
    if sys.platform != "linux" or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # another C library
        return False
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, -1))
