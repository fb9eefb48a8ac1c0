"""What `certify` costs beside plain inference, by a shipped network: `python -m benchmarks.certify_cost`."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from benchmarks.side_by_side import chosen_device, fastest, table, timed, use_device
from orthogonium import certify
from orthogonium.models import create_model

_BATCH = 128
_ROUNDS = 3


@torch.no_grad()
def main(images: int, device: str) -> None:
    """Plain inference and certificates in turns; the fastest round of each counts."""
    model = create_model("aocnet_tiny_cifar10", pretrained=True).eval()
    x = torch.rand(images, 3, 32, 32, generator=torch.Generator(device).manual_seed(0))
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
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(_ROUNDS):
        for name, job in jobs.items():
            times[name].append(timed(job, device)[0])
    best = {name: fastest(found) for name, found in times.items()}
    rows: list[list[object]] = [[k, f"{s:.1f}", f"{s / best['plain inference']:.2f}"] for k, s in best.items()]
    table([f"{images} images of 3×32×32, batches of {_BATCH}", "s", "× plain"], rows, f"{_ROUNDS} rounds")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=10_000)
    use_device(chosen_device())
    main(parser.parse_known_args()[0].images, chosen_device())
