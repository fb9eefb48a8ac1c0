"""Seconds to build the kernels of AOL and adaptive SOC, forward and backward, beside the published orthogonium 0.0.4.

The peer is no dependency. Put it into a directory of its own and name that:

    pip install --no-deps --target .peer orthogonium==0.0.4
    python benchmarks/methods_build.py --peer .peer

Each measurement runs in a process of its own, ours and the peer's in turn; the median of the ratios counts. Also shows
the largest singular value that each kernel has on a circular image.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
# (name, class, module, options of ours, options of the peer); the peer's SOC has order 3 by default, ours 4.
CASES = [
    ("AOL, 1 step", "AOL", "AOLConv2D", {"niter": 1}, {"niter": 1}),
    ("AOL, 2 steps", "AOL", "AOLConv2D", {"niter": 2}, {"niter": 2}),
    ("SOC, order 3", "adaptiveSOC", "AdaptiveSOCConv2d", {"order": 3}, {}),
    ("SOC, order 4 against 3", "adaptiveSOC", "AdaptiveSOCConv2d", {}, {}),
]

WORKER = """
import importlib, json, sys, time
import torch
directory, module, name, channels, options, repeats = json.loads(sys.argv[1])
sys.path.insert(0, directory)
torch.set_num_threads(1)
torch.manual_seed(0)
layer = getattr(importlib.import_module(f"orthogonium.layers.conv.{module}"), name)(channels, channels, 3, **options)
seconds = []
for _ in range(repeats + 1):
    start = time.perf_counter()
    weight = layer.weight
    (weight * weight.detach()).sum().backward()
    seconds.append(time.perf_counter() - start)
small = getattr(importlib.import_module(f"orthogonium.layers.conv.{module}"), name)(8, 8, 3, **options)
symbol = torch.fft.fft2(small.weight.detach().double(), s=(32, 32)).permute(2, 3, 0, 1)
print(json.dumps([min(seconds[1:]), torch.linalg.svdvals(symbol).max().item()]))
"""


def measure(directory: Path, module: str, name: str, channels: int, options: dict, repeats: int) -> tuple[float, float]:
    arguments = json.dumps([str(directory.resolve()), module, name, channels, options, repeats])
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WORKER, arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent,
    )
    return tuple(json.loads(run.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", type=Path, default=ROOT / ".peer")
    parser.add_argument("--channels", type=int, nargs="+", default=[128, 256])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(
        "| kernel | channels | ours, ms | 0.0.4, ms | ratio | σ_max, ours | σ_max, 0.0.4 |\n|---|---|---|---|---|---|---|"
    )
    for label, module, name, mine, theirs in CASES:
        for channels in options.channels:
            ours, peers = [], []
            for _ in range(options.rounds):
                ours.append(measure(ROOT, module, name, channels, mine, options.repeats))
                peers.append(measure(options.peer, module, name, channels, theirs, options.repeats))
            ratio = median(b[0] / a[0] for a, b in zip(ours, peers, strict=True))
            own, peer = min(ours), min(peers)
            print(
                f"| {label} | {channels} | {1e3 * own[0]:.1f} | {1e3 * peer[0]:.1f} | {ratio:.2f}× | {own[1]:.6f} | "
                f"{peer[1]:.6f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
