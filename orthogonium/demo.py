"""A first look: build orthogonal layers and print what they guarantee beside what an SVD of their operators finds."""

from __future__ import annotations

import torch
from torch import nn

from orthogonium.kernels import select_method
from orthogonium.layers import AdaptiveOrthoConv2d, AdaptiveOrthoConvTranspose2d, OrthoLinear
from orthogonium.layers.conv.base import ConstrainedConvNd


def _extreme_singular_values(layer: nn.Module, *size: int) -> tuple[float, float]:
    """σ_min and σ_max of the matrix that the layer applies, from its responses to unit impulses."""
    count = torch.Size(size).numel()
    with torch.no_grad():
        matrix = (layer(torch.eye(count).view(count, *size)) - layer(torch.zeros(1, *size))).flatten(1)
    sigma = torch.linalg.svdvals(matrix.double())
    return sigma.min().item(), sigma.max().item()


def main() -> None:
    """Print the table."""
    torch.manual_seed(0)
    layers: list[tuple[nn.Module, tuple[int, ...]]] = [
        (OrthoLinear(64, 32), (64,)),
        (AdaptiveOrthoConv2d(8, 8, kernel_size=3), (8, 8, 8)),
        (AdaptiveOrthoConv2d(8, 16, kernel_size=3, stride=2), (8, 8, 8)),
        (AdaptiveOrthoConv2d(8, 16, kernel_size=(3, 5), groups=4, dilation=(1, 2)), (8, 8, 8)),
        (AdaptiveOrthoConv2d(8, 8, kernel_size=1, stride=2), (8, 8, 8)),
        (AdaptiveOrthoConvTranspose2d(16, 8, 4, stride=2, padding="same", padding_mode="circular"), (16, 4, 4)),
        (AdaptiveOrthoConv2d(8, 8, kernel_size=3, padding_mode="zeros"), (8, 8, 8)),
    ]
    for layer, size in layers:
        low, high = _extreme_singular_values(layer, *size)
        print(type(layer).__name__.removeprefix("Parametrized") + f"({layer.extra_repr()})")
        if isinstance(layer, ConstrainedConvNd):
            print(f"  built as      {select_method(layer.geometry).method}")
        print(f"  guarantee     {layer.guarantee}")
        print(f"  measured      {low:.7f} ≤ σ ≤ {high:.7f}\n")


if __name__ == "__main__":
    main()
