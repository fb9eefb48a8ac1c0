"""Convolutions divided by their spectral norm: σ_max of what they do to images, seconds of a build with derivative.

    python -m benchmarks.spectral_norms [--threads 1] [--channels 16 64 128]

σ_max is the largest singular value of the matrix of the wrapped convolution on images of 12×12 pixels, after 50 power
iterations of `torch.nn.utils.parametrizations.spectral_norm`, as it is made, filled with ones, and after 20 training
steps.
"""

import argparse
import copy
import time

import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from orthogonium.layers import AdaptiveOrthoConv2d, SpectralConv2d, normalize

CONVOLUTIONS = {
    "3×3": lambda: nn.Conv2d(8, 8, 3, padding=1),
    "3×3, circular": lambda: nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular"),
    "3×3, replicate": lambda: nn.Conv2d(8, 8, 3, padding=1, padding_mode="replicate"),
    "5×5, dilation 2": lambda: nn.Conv2d(8, 8, 5, padding=4, dilation=2),
    "3×3, stride 2": lambda: nn.Conv2d(8, 16, 3, stride=2, padding=1),
    "3×3, 4 groups": lambda: nn.Conv2d(8, 8, 3, padding=1, groups=4),
    "transposed 4×4, stride 2": lambda: nn.ConvTranspose2d(8, 8, 4, stride=2, padding=1),
}


def largest_singular_value(conv: nn.Module) -> float:
    conv = copy.deepcopy(conv).double().eval()
    with torch.no_grad():
        offset = conv(torch.zeros(1, 8, 12, 12).double())
        responses = conv(torch.eye(8 * 144).double().view(-1, 8, 12, 12)) - offset
    return torch.linalg.matrix_norm(responses.flatten(1), ord=2).item()


def train(conv: nn.Module) -> nn.Module:
    optimizer = torch.optim.SGD(conv.parameters(), 1.0)
    x, y = torch.randn(2, 8, 8, 12, 12)
    target = torch.randn_like(conv(x)) + conv(y).detach()
    for _ in range(20):
        optimizer.zero_grad()
        (conv(x) - target).square().mean().backward()
        optimizer.step()
    return conv


def norms() -> None:
    print("| convolution | torch: new | ones | trained | ours: new | ones | trained |\n|---|---|---|---|---|---|---|")
    for name, make in CONVOLUTIONS.items():
        row = []
        for wrap in (lambda conv: spectral_norm(conv, n_power_iterations=50), normalize):
            torch.manual_seed(0)
            conv = make()
            full = copy.deepcopy(conv)
            nn.init.ones_(full.weight)
            row += [largest_singular_value(wrap(copy.deepcopy(conv))), largest_singular_value(wrap(full))]
            row.append(largest_singular_value(train(wrap(conv))))
        print(f"| {name} | " + " | ".join(f"{sigma:.3f}" for sigma in row) + " |", flush=True)


def seconds(layer: nn.Module, repeats: int = 5) -> float:
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        layer.weight.square().sum().backward()
        found.append(time.perf_counter() - start)
    return min(found)


def builds(sizes: list[int]) -> None:
    print("\n| channels (3×3) | spectral, ms | orthogonal, ms |\n|---|---|---|")
    for channels in sizes:
        torch.manual_seed(0)
        ours, orthogonal = (cls(channels, channels, 3, padding=1) for cls in (SpectralConv2d, AdaptiveOrthoConv2d))
        print(f"| {channels} | {1e3 * seconds(ours):.1f} | {1e3 * seconds(orthogonal):.1f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--channels", type=int, nargs="+", default=[16, 64, 128])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    norms()
    builds(options.channels)
