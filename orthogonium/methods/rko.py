"""Reshaped kernel orthogonalization: an orthogonal matrix read as a kernel.

Serrurier et al. (2021), "Achieving robustness in classification using optimal transport with hinge regularization".
The matrix `out × (in·∏k)` has all singular values 1. If windows do not overlap (`k ≤ e`, the effective stride), so does
the convolution; otherwise each pixel is seen by at most `∏⌈k/e⌉` windows, and dividing by the root of that number makes
the convolution 1-Lipschitz.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from orthogonium.kernels import ConvGeometry
from orthogonium.linalg import OrthoParams, check_ortho_params, random_orthogonal
from orthogonium.methods.kernel import ConvKernel, Device, Raw
from orthogonium.methods.spectral import Matrix


def polar_factor(matrix: Tensor) -> Tensor:
    """The orthogonal matrix closest to a matrix, even if that is rank-deficient; in float64."""
    u, _, vh = torch.linalg.svd(matrix.double(), full_matrices=False)
    return u @ vh


def polar_raw(matrix: Tensor, orthogonalize: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...] | None:
    """The polar factor as the raw matrix, if the orthogonalizer leaves orthogonal matrices as they are."""
    polar = polar_factor(matrix)
    kept = orthogonalize(polar)
    return (polar,) if torch.allclose(kept, polar, rtol=0, atol=1e-5) else None


class ReshapedKernel(ConvKernel):
    """RKO kernel: the raw parameter is the matrix, `(g, out/g, in/g·∏k)`."""

    projects = True
    group_axes = (0,)

    def __init__(self, geometry: ConvGeometry, ortho_params: OrthoParams) -> None:
        super().__init__()
        check_ortho_params(ortho_params)
        self.geometry = geometry
        self.raw_shape = (geometry.groups, geometry.group_out, geometry.group_in * math.prod(geometry.kernel_size))
        axes = zip(geometry.kernel_size, geometry.effective_stride, strict=True)
        seen = math.prod(-(-k // e) for k, e in axes)  # largest number of windows that see a pixel
        self.scale = seen**-0.5
        # Windows must not overlap, nor skip pixels if columns are to be orthonormal.
        rows = geometry.group_out <= self.raw_shape[2]
        self.smallest = float(seen == 1 and (rows or geometry.effective_stride == geometry.stride))
        self.orthogonalize = ortho_params.build(self.raw_shape)

    def initial(self, device: Device, dtype: torch.dtype) -> Raw:
        return (random_orthogonal(self.raw_shape, device, dtype),)

    def build(self, *raw: Tensor) -> Tensor:
        return self.scale * self.orthogonalize(raw[0]).reshape(self.geometry.weight_shape)

    def invert(self, weight: Tensor) -> tuple[Tensor, ...]:
        return ((weight / self.scale).reshape(self.raw_shape),)

    def nearest(self, weight: Tensor) -> tuple[Tensor, ...] | None:
        return polar_raw(weight.reshape(self.raw_shape), self.orthogonalize)


class OrthogonalMatrix(Matrix):
    """All singular values are 1: `σ(W) = 1` by the method of `ortho_params`."""

    group_axes = ()

    def __init__(self, weight_shape: tuple[int, int], ortho_params: OrthoParams) -> None:
        super().__init__(weight_shape)
        check_ortho_params(ortho_params)
        self.orthogonalize = ortho_params.build(weight_shape)

    def build(self, *raw: Tensor) -> Tensor:
        return self.orthogonalize(raw[0])

    def nearest(self, weight: Tensor) -> tuple[Tensor, ...] | None:
        return polar_raw(weight, self.orthogonalize)
