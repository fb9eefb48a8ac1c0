"""Time to build the kernels of AOL and adaptive SOC, forward and backward, beside the published library.

Run with `.venv/bin/python -m benchmarks.methods_build`. Also shows the largest singular value that each kernel has on a
circular image.
"""

import importlib

from benchmarks.side_by_side import PEER_VERSION, beside, in_process, install_peer, is_quick, race, table

# (name, module, class, options of ours, options of the peer); the peer's SOC has order 3 by default, ours 4.
CASES = [
    ("AOL, 1 step", "AOL", "AOLConv2D", {"niter": 1}, {"niter": 1}),
    ("AOL, 2 steps", "AOL", "AOLConv2D", {"niter": 2}, {"niter": 2}),
    ("SOC, order 3", "adaptiveSOC", "AdaptiveSOCConv2d", {"order": 3}, {}),
    ("SOC, order 4 against 3", "adaptiveSOC", "AdaptiveSOCConv2d", {}, {}),
]

WHY = {
    "AOL": "the same arithmetic, and a few percent from run to run",
    "SOC": "it has a term less where orders differ, and its σ is above 1",
}


def make(module: str, name: str, channels: int, options: dict):
    """A layer of either library, in whose process this runs."""
    return getattr(importlib.import_module(f"orthogonium.layers.conv.{module}"), name)(channels, channels, 3, **options)


def build(module: str, name: str, channels: int, options: dict):
    """The weight, forward and backward."""
    layer = make(module, name, channels, options)

    def run():
        weight = layer.weight
        (weight * weight.detach()).sum().backward()

    return run


def largest_singular_value(module: str, name: str, options: dict) -> float:
    import torch

    torch.manual_seed(0)
    weight = make(module, name, 8, options).weight.detach().double()
    symbol = torch.fft.fft2(weight, s=(32, 32)).permute(2, 3, 0, 1)
    return torch.linalg.svdvals(symbol).max().item()


def main() -> None:
    install_peer()
    rows = []
    for label, module, name, *options in CASES:
        own, peer = (
            in_process(is_peer, f"benchmarks.methods_build:{largest_singular_value.__name__}", module, name, given)
            for is_peer, given in zip((False, True), options, strict=True)
        )
        for channels in (128,) if is_quick() else (128, 256):
            layer = {"module": module, "name": name, "channels": channels}
            cases = {
                is_peer: (is_peer, "benchmarks.methods_build:build", {**layer, "options": given})
                for is_peer, given in zip((False, True), options, strict=True)
            }
            (ours, _), (theirs, _) = race(cases, rounds=3, threads=1).values()
            times = [f"{1e3 * t:.1f} ms" for t in (ours, theirs)]
            rows.append([label, channels, *times, beside(ours, theirs, WHY[label[:3]]), f"{own:.6f}", f"{peer:.6f}"])
    ratio = [f"published {PEER_VERSION}", "ratio", "σ_max, ours", "σ_max, published"]
    table(["kernel, one thread", "channels", "ours", *ratio], rows)


if __name__ == "__main__":
    main()
