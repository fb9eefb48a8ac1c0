"""Freed memory is kept, where a process can say so, and nowhere else."""

import os
import subprocess
import sys

import pytest

# Page faults of taking, filling and freeing 64 MB, after it has been done once.
COUNT = """
import resource
import torch
from orthogonium.training.memory import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def use():
    torch.ones(2**24)

{first}
use()
before = faults()
for _ in range(10):
    use()
print(faults() - before)
"""
PAGES = 10 * 2**26 // os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0


def _faults(first: str, **variables: str) -> int:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    code = COUNT.format(first=first)
    done = subprocess.run(
        [sys.executable, "-c", code], env=inherited | variables, capture_output=True, text=True, check=True
    )
    return int(done.stdout.splitlines()[-1])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc")
@pytest.mark.skipif("glibc" not in os.confstr("CS_GNU_LIBC_VERSION"), reason="glibc")
def test_pages_are_used_again():
    # One block or another may be new: a small one takes the end of the place of a large one.
    assert _faults("assert keep_freed_memory()") < PAGES / 4


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc")
def test_who_decides_by_the_environment_is_not_overruled():
    with_variable = _faults("assert not keep_freed_memory()", MALLOC_MMAP_THRESHOLD_="131072")
    assert with_variable > PAGES / 2
