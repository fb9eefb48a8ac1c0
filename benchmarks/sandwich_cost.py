"""Cost of a sandwich convolution on explicit kernels against the original in the Fourier domain, side by side.

The original solves a linear system per frequency of the image at every call; the explicit kernel is built once per
step (once in eval), whatever the image. Prints a markdown table; each cell is the fastest of interleaved runs, which
end after `LONG`.

    python -m benchmarks.sandwich_cost [--channels 32] [--batch 1] [--repeats 3] [--threads 1] [--sizes 32 64 224]
"""

import argparse
import sys

import torch

from benchmarks.side_by_side import chosen_device, fastest, table, timed, use_device
from orthogonium.layers.conv.sandwich import SandwichConv2d
from orthogonium.legacy import SandwichConv

LONG = 1e4  # milliseconds


def step(layer, x):
    layer.train()
    layer.zero_grad()
    layer(x).sum().backward()


def infer(layer, x):
    layer.eval()
    with torch.no_grad():
        layer(x)


def milliseconds(run, layer, x):
    return 1e3 * timed(lambda: run(layer, x), chosen_device())[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sizes", type=int, nargs="+", default=[32, 64, 224])
    options, _ = parser.parse_known_args()
    use_device(chosen_device())
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    c = options.channels
    ours, original = SandwichConv2d(c, c, 3), SandwichConv(c, c, 3)

    command = " ".join(["python -m benchmarks.sandwich_cost", *sys.argv[1:]])
    print(f"`{command}` (torch {torch.__version__}, {options.threads} thread(s), float32)\n")
    print(f"Sandwich {c}→{c}, 3×3, batch {options.batch}; fastest of up to {options.repeats} runs in ms\n")
    rows = []
    for size in options.sizes:
        x = torch.randn(options.batch, c, size, size)
        cells = []
        for run in (step, infer):
            run(ours, x)  # warm up, and fill the cache of eval
            times = {ours: [], original: []}
            for _ in range(options.repeats):
                for layer, found in times.items():
                    if sum(found) < LONG:
                        found.append(milliseconds(run, layer, x))
            a, b = (fastest(found) for found in times.values())
            cells += [f"{a:.1f}", f"{b:.1f}", f"{b / a:.1f}×"]
        rows.append([f"{size}²", *cells])
    kinds = ["explicit", "Fourier"]
    header = [*(f"step, {kind}" for kind in kinds), "ratio", *(f"inference, {kind}" for kind in kinds), "ratio"]
    table(["image", *header], rows, f"up to {options.repeats} runs")


if __name__ == "__main__":
    main()
