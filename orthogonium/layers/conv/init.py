"""Orthogonal initialization of ordinary convolutions."""

from __future__ import annotations

import torch
from torch import Tensor

from orthogonium.kernels import ConvGeometry
from orthogonium.kernels.algebra import spatial_dims
from orthogonium.kernels.geometry import Size
from orthogonium.linalg import DEFAULT_ORTHO_PARAMS, OrthoParams
from orthogonium.linalg.evaluation import full_precision
from orthogonium.methods.aoc import OrthogonalKernel


def conv_orthogonal_(
    tensor: Tensor,  # (out, in/groups, *kernel_size), 1-D to 3-D
    *,
    stride: Size = 1,
    groups: int = 1,
    gain: float = 1.0,
    ortho_params: OrthoParams = DEFAULT_ORTHO_PARAMS,
    generator: torch.Generator | None = None,
    dilation: Size = 1,
) -> Tensor:
    """Fill the weight of a convolution, in place, with `gain` times a random orthogonal kernel; returns the tensor.

    Under circular padding that keeps every window, all singular values of the convolution are then `gain`. A transposed
    convolution has the weight of the convolution whose adjoint it is, with the same stride, groups and dilation.

    >>> conv = torch.nn.Conv2d(8, 16, 3, stride=2, padding=1, padding_mode="circular", bias=False)
    >>> _ = conv_orthogonal_(conv.weight, stride=2)
    >>> x = torch.randn(1, 8, 6, 6)
    >>> bool(conv(x).norm() <= x.norm() * 1.00001)
    True
    """
    dims = spatial_dims(tensor)
    geometry = ConvGeometry.of(
        dims, tensor.shape[1] * groups, tensor.shape[0], tuple(tensor.shape[2:]), stride, dilation, groups
    )
    kernel = OrthogonalKernel(geometry, ortho_params)
    with torch.no_grad():
        weight = full_precision(kernel.build)(*kernel.initial(tensor.device, tensor.dtype, generator))
        return tensor.copy_(gain * weight)
