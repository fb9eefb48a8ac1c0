"""What a training step costs: time and memory."""

from __future__ import annotations

import copy
import re
import statistics
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn

from orthogonium.building import build_once
from orthogonium.training.classifier import LipschitzClassifier

_MOST_STEPS, _FEWEST_STEPS, _SECONDS = 30, 4, 2.0
_STATUS = Path("/proc/self/status")


def step_seconds(
    classifier: LipschitzClassifier,
    part: tuple[Tensor, Tensor],  # images (n, c, h, w), labels (n,): what `accumulate` leaves of a batch
    device: torch.device,
) -> float:
    """Median time of a training step as the recipe has it: all parts of a batch, its precision, and the optimizer.

    The classifier itself is not changed.
    """
    recipe = classifier.recipe
    dtype = torch.float64 if recipe.precision == "64" else torch.float32
    classifier = copy.deepcopy(classifier).to(device, dtype).train()
    images, labels = part[0].to(device, dtype), part[1].to(device)
    optimizer = classifier.configure_optimizers()
    times: list[float] = []
    while len(times) < _FEWEST_STEPS or (len(times) < _MOST_STEPS and sum(times) < _SECONDS):
        begin = time.perf_counter()
        optimizer.zero_grad()
        with build_once(classifier.model) if recipe.accumulate > 1 else nullcontext():
            for _ in range(recipe.accumulate):
                with _precision(recipe.precision, device):
                    loss = classifier.training_step((images, labels), 0)
                (loss / recipe.accumulate).backward()
        if recipe.clip_norm is not None:
            nn.utils.clip_grad_norm_(classifier.parameters(), recipe.clip_norm)
        optimizer.step()
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])  # the first one allocates


def _precision(name: str, device: torch.device) -> AbstractContextManager[object]:
    """What a forward pass is computed in."""
    halves = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
    return torch.autocast(device.type, halves[name]) if name in halves else nullcontext()


def training_device(accelerator: str) -> torch.device:
    """The device that Lightning uses when it trains on a single one."""
    if accelerator != "cpu" and torch.accelerator.is_available():
        found = torch.accelerator.current_accelerator()
        assert found is not None
        return found
    return torch.device("cpu")


def peak_memory(device: torch.device) -> int | None:
    """Largest memory of tensors on the device so far, in bytes; on a CPU, largest resident memory of this process.

    Where the system tells the peak of this program alone, that is taken: that of `getrusage` also counts the process
    that started it.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return _status("VmHWM") or _of_process_tree()


def memory(device: torch.device) -> int | None:
    """Memory of tensors on the device at this moment, in bytes; on a CPU, resident memory of this process."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else _status("VmRSS")


def _status(field: str) -> int | None:
    found = re.search(rf"^{field}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE) if _STATUS.is_file() else None
    return 1024 * int(found[1]) if found else None


def _of_process_tree() -> int | None:
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
