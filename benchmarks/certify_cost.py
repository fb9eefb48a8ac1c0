"""What `certify` costs beside plain inference, by a shipped network: `python -m benchmarks.certify_cost [images]`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch

from orthogonium import certify
from orthogonium.models import create_model

_BATCH = 128
_ROUNDS = 3


def _seconds(job: Callable[[], object]) -> float:
    start = time.perf_counter()
    job()
    return time.perf_counter() - start


@torch.no_grad()
def main(images: int = 10_000) -> None:
    """Plain inference and certificates in turns; the fastest round of each counts."""
    model = create_model("aocnet_tiny_cifar10", pretrained=True).eval()
    x = torch.rand(images, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    loader = [(part, torch.zeros(len(part), dtype=torch.long)) for part in x.split(_BATCH)]

    def infer() -> None:
        for part, _ in loader:
            model(part)

    jobs: dict[str, Callable[[], object]] = {
        "plain inference": infer,
        'certify(rounding="measured")': lambda: certify(model, loader),
        'certify(rounding="measured", stride=10)': lambda: certify(model, loader, stride=10),
        'certify(rounding="proved")': lambda: certify(model, loader, rounding="proved"),
    }
    certify(model, loader[:1])
    best = dict.fromkeys(jobs, float("inf"))
    for _ in range(_ROUNDS):
        for name, job in jobs.items():
            best[name] = min(best[name], _seconds(job))
    print(f"{images} images of 3×32×32, batches of {_BATCH}\n\n| | s | × plain |\n|---|---|---|")
    for name, seconds in best.items():
        print(f"| {name} | {seconds:.1f} | {seconds / best['plain inference']:.2f} |")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
