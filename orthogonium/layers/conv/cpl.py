"""Convex potential convolutions with a certified step size, in 1-D, 2-D and 3-D."""

from __future__ import annotations

import torch

from orthogonium.kernels import ConvGeometry
from orthogonium.kernels.geometry import Size
from orthogonium.layers.argument_names import also_named
from orthogonium.layers.conv.block import ConvBlock
from orthogonium.layers.slopes import Activation
from orthogonium.methods.cpl import PotentialKernels
from orthogonium.methods.kernel import Device


class CPLConv2d(ConvBlock):
    """1-Lipschitz residual convolution `x − (2/β) Kᵀ⋆σ(K⋆x + b)`, `β ≥ ‖K‖²`: a step of descent on a convex potential.

    Meunier, Delattre, Araujo, Allauzen (2022), "A dynamical system perspective for Lipschitz neural networks", with a
    certified bound (Gram iteration on a grid of frequencies) where the paper uses power iteration.

    Guarantee: 1-Lipschitz (1e-5 in float32) for every image size, under both padding modes.

    Arguments not listed here are those of `SDPBasedLipschitzResBlock`.

    Args:
        in_channels: channels of the images and of the result; also `channels`.
        inner_channels: channels of the inner image; `in_channels` if None.
        groups: number of groups of channels that do not mix; each has its own β.
        niter: number of Gram steps that tighten β, at least 0. With 4 it is 1.07 ‖K‖² for random kernels of 3×3 taps.

    >>> block = CPLConv2d(4, 8)
    >>> x, y = torch.randn(2, 1, 4, 6, 6)
    >>> bool((block(x) - block(y)).norm() <= (x - y).norm())
    True
    """

    @also_named(channels="in_channels")
    def __init__(
        self,
        in_channels: int,
        inner_channels: int | None = None,
        kernel_size: Size = 3,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        activation: Activation = "relu",
        niter: int = 4,
        device: Device = None,
        dtype: torch.dtype | None = None,
        lipschitz: float = 1.0,
        padding: Size | str = "same",
    ) -> None:
        super().__init__(activation)
        inner = in_channels if inner_channels is None else inner_channels
        core = ConvGeometry.of(self.dims, in_channels, inner, kernel_size, 1, dilation, groups)
        self.set_residual(core, padding_mode, padding)
        self.constrain_weight(PotentialKernels(core, niter), bias, device, dtype, lipschitz)


class CPLConv1d(CPLConv2d, dims=1):
    """`CPLConv2d` in 1 dimension."""


class CPLConv3d(CPLConv2d, dims=3):
    """`CPLConv2d` in 3 dimensions."""
