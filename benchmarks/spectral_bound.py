"""How long the certified bound of a convolution takes, how sharp it is, and that images do not matter.

python -m benchmarks.spectral_bound [--threads 2] [--channels 512] [--device cpu]

A line gives the best of three runs. "excess" is relative to the largest norm of K(ω) at the frequencies 2πm/64,
found by Lanczos: a number from below, so the true excess is at most what is shown.
"""

import argparse

import torch
from torch import nn

from benchmarks.side_by_side import chosen_device, timed, use_device
from orthogonium.spectral import convolution, gram_bound, grid_bound, lanczos, norm_bound, spectrum


def best_of_three(call):
    runs = [timed(call, chosen_device()) for _ in range(3)]
    return runs[0][1], min(seconds for seconds, _ in runs)


def from_below(weight, image):
    """Largest singular value found on a circular image, an estimate from below of the norm on the lattice."""
    layer = nn.Conv2d(weight.shape[1], weight.shape[0], 3, padding=1, padding_mode="circular", bias=False)
    layer.weight = nn.Parameter(weight)
    return lanczos(layer, (weight.shape[1], image, image), steps=12)[0].item()


def orthogonal_kernel(channels):
    """A 3×3 orthogonal kernel: along each axis, twice P + (I − P)·shift with an orthogonal projector P."""
    kernel = torch.eye(channels)[:, :, None, None]
    for axis in (2, 2, 3, 3):
        basis = nn.init.orthogonal_(torch.empty(channels, channels // 2))
        stay = torch.einsum("oi,ij...->oj...", basis @ basis.T, kernel)
        zero = torch.zeros_like(kernel.narrow(axis, 0, 1))
        kernel = torch.cat([stay, zero], axis) + torch.cat([zero, kernel - stay], axis)
    return kernel


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--channels", type=int, default=512)
    options, _ = parser.parse_known_args()
    use_device(chosen_device())
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    c = options.channels
    kernels = {"default init": nn.Conv2d(c, c, 3).weight.detach(), "orthogonal": orthogonal_kernel(c)}
    print(f"{c} → {c}, 3 × 3, zero padding, {torch.get_num_threads()} threads")
    print("| kernel | bound | image | value | excess | seconds |\n|---|---|---|---|---|---|")
    for name, weight in kernels.items():
        low = from_below(weight, 16)
        layer = convolution(weight, padding=1)
        norm_bound(layer)  # warm up
        for image in (56, 224, 1024):
            value, seconds = best_of_three(lambda image=image, layer=layer: norm_bound(layer, (image, image)).item())
            print(f"| {name} | norm_bound | {image}² | {value:.5f} | {value / low - 1:.2%} | {seconds:.2f} |")
        value, seconds = best_of_three(lambda layer=layer: spectrum(layer, (c, 224, 224)).upper_bound)
        print(f"| {name} | spectrum | 224² | {value:.5f} | {value / low - 1:.2%} | {seconds:.2f} |")
        for label, call in {
            "gram_bound, 1 step": lambda layer=layer: gram_bound(layer, steps=1).item(),
            "grid_bound, rtol 0.05": lambda layer=layer: grid_bound(layer, rtol=0.05).item(),
        }.items():
            value, seconds = best_of_three(call)
            print(f"| {name} | {label} | any | {value:.5f} | {value / low - 1:.2%} | {seconds:.2f} |")


if __name__ == "__main__":
    main()
