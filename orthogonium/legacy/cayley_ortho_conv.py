"""Cayley transform of matrices and of convolutions in the Fourier domain, as first published.

Asher Trockman, J. Zico Kolter: "Orthogonalizing Convolutional Layers with the Cayley Transform", ICLR 2021.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orthogonium import linalg
from orthogonium.errors import GeometryError, ShapeError
from orthogonium.kernels import circle
from orthogonium.legacy._common import add_bias, downsample, require_positive


def cayley(w: Tensor) -> Tensor:  # (…, m, c), real or complex → same
    """Orthonormal columns (m ≥ c) or rows (m < c) from any matrix, by `orthogonium.linalg.cayley`.

    >>> q = cayley(torch.randn(5, 3))
    >>> torch.allclose(q.T @ q, torch.eye(3), atol=1e-5)
    True
    """
    return linalg.cayley(w)


def frequency_response(
    kernel: Tensor,  # (co, ci, k1, k2)
    size: tuple[int, int],  # (n1, n2) ≥ (k1, k2)
) -> Tensor:  # (n1, n2//2+1, co, ci), complex
    """K(ω) = Σ_t K_t e^{iω·(t−center)}, a matrix per frequency of a circular image; half of them, as K is real."""
    (k1, k2), (n1, n2) = kernel.shape[-2:], size
    if k1 > n1 or k2 > n2:
        raise ShapeError(f"A kernel {(k1, k2)} is larger than the image {(n1, n2)}. Use a larger image.")
    return circle.to_frequencies(circle.wrap_taps(kernel, ((k1 - 1) // 2, (k2 - 1) // 2), size), 2).conj()


def to_frequencies(x: Tensor) -> Tensor:  # (batch, c, n1, n2) → (n1, n2//2+1, c, batch)
    """Images as one matrix per frequency."""
    return circle.to_frequencies(x.transpose(0, 1), 2)


def from_frequencies(x: Tensor, size: tuple[int, int]) -> Tensor:  # (n1, n2//2+1, c, batch) → (batch, c, n1, n2)
    """Inverse of `to_frequencies`."""
    return circle.from_frequencies(x, size).transpose(0, 1)


def cayley_fft(
    x: Tensor,  # (batch, ci, n1, n2)
    kernel: Tensor,  # (co, ci, k1, k2), unconstrained
) -> Tensor:  # (batch, co, n1, n2)
    """The circular convolution that has `cayley` of the kernel's matrix at every frequency.

    >>> x = torch.randn(1, 2, 4, 4)
    >>> torch.allclose(cayley_fft(x, torch.randn(3, 2, 3, 3)).norm(), x.norm())
    True
    """
    size = (x.shape[-2], x.shape[-1])
    return from_frequencies(cayley(frequency_response(kernel, size)) @ to_frequencies(x), size)


class NormalizedWeight(nn.Module):
    """α·W/‖W‖_F with learnable α, initially ‖W‖_F: the Cayley transform depends on the scale of its argument."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(math.prod(shape[1:]))
        self.weight = nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
        self.alpha = nn.Parameter(self.weight.detach().norm())

    def forward(self) -> Tensor:
        """The weight at scale α."""
        return self.alpha * self.weight / self.weight.norm()


class Cayley(nn.Module):
    """Orthogonal circular convolution through the Cayley transform at every frequency of the image.

    Paper: Trockman & Kolter, "Orthogonalizing Convolutional Layers with the Cayley Transform", ICLR 2021.

    Guarantee: every singular value is 1 (columns orthonormal if in·stride² ≤ out, else rows), to 1e-5 in float32 and
    1e-12 in float64, with circular padding, on any image at least as large as the kernel.

    Kept from the original: the cost grows with the image (an inverse per frequency, at every call); the spatial kernel
    is as large as the image and differs between image sizes; eigenvalue −1 is out of reach. `padding` is accepted for
    the sake of scripts that pass it, but has no effect: images keep their size. Stride is a pixel-unshuffle; the
    convolution after it has kernel_size // stride taps (at least 1).
    Corrected here: scales beyond 32, which rotate nothing any further and lose all digits in float32, are cut back to
    it. `orthogonium.layers.CayleyConv2d` is the same with groups, any sizes and strides, and a kernel that is kept in
    eval mode.

    >>> layer = Cayley(4, 4, 3)
    >>> x = torch.randn(1, 4, 5, 5)
    >>> torch.allclose((layer(x) - layer(0 * x)).norm(), x.norm())
    True
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int | str | None = None,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "circular",
    ) -> None:
        super().__init__()
        require_positive(in_channels=in_channels, out_channels=out_channels, kernel_size=kernel_size, stride=stride)
        if (dilation, groups, padding_mode) != (1, 1, "circular"):
            raise GeometryError(
                "Cayley knows no dilation, no groups and circular padding only: got "
                f"dilation {dilation}, groups {groups}, padding_mode {padding_mode!r}. Use orthogonium.layers instead."
            )
        self.in_channels, self.out_channels, self.stride = in_channels * stride**2, out_channels, stride
        self.kernel_size = max(kernel_size // stride, 1)
        self.kernel = NormalizedWeight(out_channels, self.in_channels, self.kernel_size, self.kernel_size)
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """The convolution of a batch of images."""
        return add_bias(cayley_fft(downsample(x, self.stride), self.kernel()), self.bias)

    def extra_repr(self) -> str:
        """The geometry of the convolution on the unshuffled image."""
        return f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"


class CayleyLinear(nn.Module):
    """Dense layer with the Cayley transform of its weight; all singular values 1, to 1e-5 in float32, 1e-12 in float64.

    Paper: Trockman & Kolter, "Orthogonalizing Convolutional Layers with the Cayley Transform", ICLR 2021.
    Kept from the original and corrected: as for `Cayley`.

    >>> x = torch.randn(1, 3)
    >>> torch.allclose(CayleyLinear(3, 5, bias=False)(x).norm(), x.norm())
    True
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        require_positive(in_features=in_features, out_features=out_features)
        self.matrix = NormalizedWeight(out_features, in_features)
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """The rotated vectors."""
        return F.linear(x, cayley(self.matrix()), self.bias)
