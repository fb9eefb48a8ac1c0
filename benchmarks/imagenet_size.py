"""Every model at the size of ImageNet: 224×224 pixels, 1000 classes.

Run with `.venv/bin/python -m benchmarks.imagenet_size` (or with the names of some models). A training step (forward,
backward and Adam) is timed at batch 4 and at batch 8. The difference is what four images cost; what is left of the
first is fixed: the building of constrained weights, and the optimizer. With `OMP_NUM_THREADS=1`, times are those of the
processor, which other processes hardly change.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks.side_by_side import KEEP_FREED_MEMORY, table

BATCH = 4
ROUNDS = 5
LONG = 20.0  # seconds that the calls for one model may take, but for one of each


def fastest(steps: list[Callable[[], None]], clock: Callable[[], float]) -> list[float]:
    """Seconds of the fastest of some calls of each, in turns, after one that warms up; of fewer if they take long."""
    begin, rounds = time.perf_counter(), []
    while len(rounds) <= ROUNDS and (len(rounds) < 2 or time.perf_counter() - begin < LONG):
        rounds.append([])
        for step in steps:
            start = clock()
            step()
            rounds[-1].append(clock() - start)
    return [min(times) for times in zip(*rounds[1:], strict=True)]


def measure(name: str) -> None:
    """Print the number of parameters and the seconds of a step at both batch sizes."""
    import torch

    from orthogonium.models import create_model

    torch.manual_seed(0)
    model = create_model(name, (3, 224, 224), 1000)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)

    def step(batch: int) -> Callable[[], None]:
        images, labels = torch.rand(batch, 3, 224, 224), torch.arange(batch)

        def run() -> None:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()

        return run

    count = sum(p.numel() for p in model.parameters())
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    print(count, *fastest([step(BATCH), step(2 * BATCH)], clock))


def main() -> None:
    """A row for each model, each measured in a process of its own."""
    from orthogonium.models import list_models

    table(["", "million parameters", "step at batch 4", "each image", "fixed in a step"], [])
    for name in sys.argv[1:] or list_models():
        command = [sys.executable, "-c", f"from benchmarks.imagenet_size import measure; measure({name!r})"]
        environment = {**os.environ, **KEEP_FREED_MEMORY}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
        count, small, large = map(float, done.stdout.split())
        image = max(large - small, 0.0) / BATCH
        fixed = max(small - BATCH * image, 0.0)
        print(f"| `{name}` | {count / 1e6:.1f} | {small:.2f} s | {image:.3f} s | {fixed:.2f} s |", flush=True)


if __name__ == "__main__":
    main()
