"""Sandwich layers: dense, and convolutional in the Fourier domain, as first published.

Ruigang Wang, Ian R. Manchester: "Direct Parameterization of Lipschitz-Bounded Deep Networks", ICML 2023.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orthogonium.errors import ParameterError
from orthogonium.legacy._common import downsample, require_positive, require_same_padding
from orthogonium.legacy.cayley_ortho_conv import (
    NormalizedWeight,
    cayley,
    frequency_response,
    from_frequencies,
    to_frequencies,
)


def sandwich(
    x: Tensor,  # (batch, p)
    weight: Tensor,  # (q, q+p), unconstrained
    d: Tensor,  # (q,)
    bias: Tensor | None = None,  # (q,)
) -> Tensor:  # (batch, q)
    """√2 AᵀΨ ReLU(√2 Ψ⁻¹Bx + b) with [A B] = Cayley(weight), so AAᵀ + BBᵀ = I, and Ψ = diag(e^d).

    >>> x = torch.randn(1, 3)
    >>> y = sandwich(x, torch.randn(5, 8), torch.randn(5))
    >>> bool(y.norm() <= x.norm())
    True
    """
    q = len(d)
    ab = cayley(weight)
    inner = math.sqrt(2) * F.linear(x, ab[:, q:]) * torch.exp(-d)
    inner = F.relu(inner if bias is None else inner + bias)
    return math.sqrt(2) * (inner * torch.exp(d)) @ ab[:, :q]


def sandwich_fft(
    x: Tensor,  # (batch, p, n1, n2)
    kernel: Tensor,  # (q, q+p, k1, k2), unconstrained
    d: Tensor,  # (q,)
    bias: Tensor | None = None,  # (q,)
) -> Tensor:  # (batch, q, n1, n2)
    """`sandwich` for circular convolutions: [A B] is the Cayley transform of the kernel's matrix at every frequency.

    >>> x = torch.randn(1, 3, 4, 4)
    >>> y = sandwich_fft(x, torch.randn(5, 8, 3, 3), torch.randn(5))
    >>> bool(y.norm() <= x.norm())
    True
    """
    q, size = len(d), (x.shape[-2], x.shape[-1])
    ab = cayley(frequency_response(kernel, size))
    psi = torch.exp(d).view(-1, 1, 1)
    inner = math.sqrt(2) * from_frequencies(ab[..., q:] @ to_frequencies(x), size) / psi
    inner = F.relu(inner if bias is None else inner + bias.view(-1, 1, 1))
    return math.sqrt(2) * from_frequencies(ab[..., :q].mH @ to_frequencies(psi * inner), size)


def _require_scale(scale: float) -> None:
    if not scale > 0:
        raise ParameterError(f"scale is the Lipschitz constant and must be positive, got {scale}. Use 1.0.")


class SandwichConv(nn.Module):
    """√2 AᵀΨ ReLU(√2 Ψ⁻¹B·scale·x + b), circular convolutions A and B with AAᵀ + BBᵀ = I at every frequency.

    Paper: Wang & Manchester, "Direct Parameterization of Lipschitz-Bounded Deep Networks", ICML 2023.

    Guarantee: `scale`-Lipschitz with circular padding, within 1e-5 in float32; images at least as large as the kernel.

    Kept from the original: the cost grows with the image (a linear solve per frequency and four transforms at every
    call); ReLU inside. Stride is a pixel-unshuffle; the convolution after it has kernel_size // stride taps (or 1).
    Corrected here: the printed algorithm leaves out Ψ⁻¹ (5.5-Lipschitz where e^d reaches 5.5) and applies A where its
    adjoint is meant (1.62-Lipschitz).

    >>> layer = SandwichConv(3, 8, kernel_size=4, stride=2)
    >>> layer(torch.randn(1, 3, 8, 8)).shape
    torch.Size([1, 8, 4, 4])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int | None = None,
        bias: bool = True,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        require_positive(in_channels=in_channels, out_channels=out_channels, kernel_size=kernel_size, stride=stride)
        require_same_padding("SandwichConv", kernel_size, padding)
        _require_scale(scale)
        self.stride, self.scale = stride, scale
        k = max(kernel_size // stride, 1)
        self.kernel = NormalizedWeight(out_channels, out_channels + in_channels * stride**2, k, k)
        self.d = nn.Parameter(torch.zeros(out_channels))
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """The layer applied to a batch of images."""
        return sandwich_fft(self.scale * downsample(x, self.stride), self.kernel(), self.d, self.bias)


class SandwichFc(nn.Module):
    """Dense sandwich layer, `scale`-Lipschitz within 1e-5 in float32.

    Paper: Wang & Manchester, "Direct Parameterization of Lipschitz-Bounded Deep Networks", ICML 2023.
    Kept from the original and corrected: as for `SandwichConv`.

    >>> SandwichFc(3, 8)(torch.randn(2, 3)).shape
    torch.Size([2, 8])
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, scale: float = 1.0) -> None:
        super().__init__()
        require_positive(in_features=in_features, out_features=out_features)
        _require_scale(scale)
        self.scale = scale
        self.matrix = NormalizedWeight(out_features, out_features + in_features)
        self.d = nn.Parameter(torch.zeros(out_features))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """The layer applied to a batch of vectors."""
        return sandwich(self.scale * x, self.matrix(), self.d, self.bias)
