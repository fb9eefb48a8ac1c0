"""The machine that numbers were measured on, in one line."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import torch

_CPU_INFO = Path("/proc/cpuinfo")


def machine_line() -> str:
    """Processor, threads that torch uses, accelerator, and system.

    >>> from orthogonium.report.machine import machine_line
    >>> "thread" in machine_line()
    True
    """
    threads = torch.get_num_threads()
    parts = [processor(), f"{threads} thread{'s' if threads > 1 else ''}"]
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    return ", ".join([*parts, f"{platform.system()} {platform.machine()}"])


def processor() -> str:
    """The name of the processor."""
    named = re.search(r"^model name\s*:\s*(.+)$", _CPU_INFO.read_text(), re.MULTILINE) if _CPU_INFO.is_file() else None
    return " ".join(named[1].split()) if named else platform.processor() or platform.machine()
