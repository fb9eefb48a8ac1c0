"""SDP-based Lipschitz residual blocks (SLL), which stride and change channels by orthogonal kernels (SLL-AOC).

Araujo, Havens, Delattre, Allauzen, Hu (2023), "A unified algebraic perspective on Lipschitz neural networks"; fused
with adaptive orthogonal convolutions as in Boissin et al. (2025).
"""

from __future__ import annotations

import math

import torch

from orthogonium.kernels import ConvGeometry
from orthogonium.kernels.geometry import Size
from orthogonium.layers.argument_names import also_named
from orthogonium.layers.conv.base import warn_depthwise
from orthogonium.layers.conv.block import ConvBlock, inner_channels
from orthogonium.layers.conv.padding import Border, ahead_of_same
from orthogonium.layers.slopes import Activation
from orthogonium.linalg import DEFAULT_ORTHO_PARAMS, OrthoParams
from orthogonium.methods.aoc import OrthogonalKernel
from orthogonium.methods.kernel import Device
from orthogonium.methods.sll import OrthogonalResidual, SDPKernels
from orthogonium.methods.sll_aoc import FusedKernels


class SDPBasedLipschitzResBlock(ConvBlock):
    """1-Lipschitz residual convolution `x − 2Kᵀ⋆T⁻¹σ(K⋆x + b)`, `T_i = Σ_j Σ_lag |KKᵀ|_ij e^(q_j − q_i)`.

    Guarantee: 1-Lipschitz (1e-5 in float32) for every image size, under both padding modes.

    Args:
        cin: channels of the images and of the result; also `in_channels`.
        inner_dim_factor: inner channels, as a multiple of `cin`.
        kernel_size: of K, odd or even, an integer or one for each axis.
        groups: number of groups of channels that do not mix.
        dilation: spacing of the taps.
        bias: whether the inner units have a bias.
        padding_mode: "zeros" or "circular".
        activation: an activation with slopes in [0, 1], by name or as a module.
        niter: number of steps that tighten T (one in the original).
        lipschitz: Lipschitz constant of the block, any positive number; multiplies its output.
        padding: only "same", or the integers that give equally many outputs for every image size.

    >>> block = SDPBasedLipschitzResBlock(4, 2)
    >>> x, y = torch.randn(2, 1, 4, 6, 6)
    >>> bool((block(x) - block(y)).norm() <= (x - y).norm())
    True
    """

    @also_named(in_channels="cin")
    def __init__(
        self,
        cin: int,
        inner_dim_factor: float,
        kernel_size: Size = 3,
        groups: int = 1,
        dilation: Size = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        activation: Activation = "relu",
        niter: int = 1,
        device: Device = None,
        dtype: torch.dtype | None = None,
        lipschitz: float = 1.0,
        padding: Size | str = "same",
    ) -> None:
        super().__init__(activation)
        inner = inner_channels(type(self).__name__, cin, inner_dim_factor, groups)
        core = ConvGeometry.of(self.dims, cin, inner, kernel_size, 1, dilation, groups)
        self.set_residual(core, padding_mode, padding)
        self.constrain_weight(SDPKernels(core, niter), bias, device, dtype, lipschitz)


SDPBasedLipschitzConv = SDPBasedLipschitzResBlock


class SLLxAOCLipschitzResBlock(ConvBlock):
    """SLL between two orthogonal convolutions, to stride and change channels: `S⋆x − 2C⋆σ(A⋆x + b)`.

    The kernels `A = K ⊛ K_pre`, `C = K_post ⊛ KᵀT⁻¹` and `S = K_post ⊛ K_pre` are composed once per step; K_post has
    the stride. With b = min(stride, kernel_size), K_pre and K_post have b taps per axis and K `kernel_size − b + 1`, so
    both convolutions of the branch, A and C, have `kernel_size` taps, and the skip connection S has 2b − 1. There are
    `cin` channels between K_pre and K_post, or more if no orthogonal K_post has `cin` (1×1 kernels that stride and
    widen). With one channel per group, K_pre could only shift: it is left out and K has `kernel_size` taps.

    Guarantee: 1-Lipschitz (1e-5 in float32) for every image size, under both padding modes.

    Arguments not listed here are those of `SDPBasedLipschitzResBlock`.

    Args:
        cin: channels of the images; also `in_channels`.
        cout: channels of the result; also `out_channels`.
        inner_dim_factor: inner channels, as a multiple of `cin`.
        kernel_size: of A and C, odd or even, an integer or one for each axis.
        stride: of the block: the result has `⌈size / stride⌉` pixels.
        ortho_params: how matrices are made orthogonal.

    >>> block = SLLxAOCLipschitzResBlock(4, 8, inner_dim_factor=2)
    >>> x, y = torch.randn(2, 1, 4, 6, 6)
    >>> block(x).shape
    torch.Size([1, 8, 3, 3])
    >>> bool((block(x) - block(y)).norm() <= (x - y).norm())
    True
    """

    @also_named(in_channels="cin", out_channels="cout")
    def __init__(
        self,
        cin: int,
        cout: int,
        inner_dim_factor: float,
        kernel_size: Size = 3,
        stride: Size = 2,
        groups: int = 1,
        dilation: Size = 1,
        bias: bool = True,
        padding_mode: str = "circular",
        activation: Activation = "relu",
        niter: int = 1,
        ortho_params: OrthoParams = DEFAULT_ORTHO_PARAMS,
        device: Device = None,
        dtype: torch.dtype | None = None,
        lipschitz: float = 1.0,
        padding: Size | str = "same",
    ) -> None:
        super().__init__(activation)
        geometry = ConvGeometry.of(self.dims, cin, cout, kernel_size, stride, dilation, groups)
        ahead = ahead_of_same(geometry, padding, type(self).__name__)
        inner = inner_channels(type(self).__name__, cin, inner_dim_factor, groups)
        outside = tuple(min(k, s) for k, s in zip(geometry.kernel_size, geometry.stride, strict=True))
        inside = tuple(k - b + 1 for k, b in zip(geometry.kernel_size, outside, strict=True))
        channels = _middle_channels(ConvGeometry.of(self.dims, cin, cout, outside, stride, dilation, groups))
        shift_only = cin == channels == groups
        if shift_only:
            inside = geometry.kernel_size
        pre = ConvGeometry.of(self.dims, cin, channels, 1 if shift_only else outside, 1, dilation, groups)
        core = ConvGeometry.of(self.dims, channels, inner, inside, 1, dilation, groups)
        post = ConvGeometry.of(self.dims, channels, cout, outside, stride, dilation, groups)
        kernels = FusedKernels(
            SDPKernels(core, niter),
            None if shift_only else OrthogonalKernel(pre, ortho_params),
            OrthogonalKernel(post, ortho_params),
        )
        first, middle, last = (Border.of(g, "same", padding_mode) for g in (pre, core, post))
        last = last.moved(ahead)
        self.set_geometry(geometry, (first.then(middle), middle.adjoint().then(last), first.then(last)))
        self.constrain_weight(kernels, bias, device, dtype, lipschitz)


def _middle_channels(post: ConvGeometry) -> int:
    """Channels between K_pre and K_post: `cin`, or as many as it takes for an orthogonal K_post to exist."""
    volume = math.prod(post.effective_stride)
    if post.group_out <= post.group_in * volume or post.effective_stride == post.stride:
        return post.in_channels
    return -(-post.group_out // volume) * post.groups


class AOCLipschitzResBlock(ConvBlock):
    """1-Lipschitz residual convolution on an orthogonal kernel: `x − 2Kᵀ⋆σ(K⋆x + b)`.

    Guarantee: 1-Lipschitz (1e-5 in float32) for every image size, under both padding modes.

    Arguments not listed here are those of `SDPBasedLipschitzResBlock`.

    Args:
        in_channels: channels of the images and of the result.
        inner_dim_factor: inner channels, as a multiple of `in_channels`.
        ortho_params: how matrices are made orthogonal.

    >>> block = AOCLipschitzResBlock(4, 2, kernel_size=3)
    >>> x, y = torch.randn(2, 1, 4, 6, 6)
    >>> bool((block(x) - block(y)).norm() <= (x - y).norm() * 1.00001)
    True
    """

    def __init__(
        self,
        in_channels: int,
        inner_dim_factor: float,
        kernel_size: Size,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "circular",
        ortho_params: OrthoParams = DEFAULT_ORTHO_PARAMS,
        activation: Activation = "relu",
        device: Device = None,
        dtype: torch.dtype | None = None,
        lipschitz: float = 1.0,
        padding: Size | str = "same",
    ) -> None:
        super().__init__(activation)
        inner = inner_channels(type(self).__name__, in_channels, inner_dim_factor, groups)
        core = ConvGeometry.of(self.dims, in_channels, inner, kernel_size, 1, dilation, groups)
        kernels = OrthogonalResidual(core, ortho_params)
        if not kernels.orthogonal.trainable:
            warn_depthwise(type(self).__name__, core)
        self.set_residual(core, padding_mode, padding)
        self.constrain_weight(kernels, bias, device, dtype, lipschitz)


class SDPBasedLipschitzResBlock1d(SDPBasedLipschitzResBlock, dims=1):
    """`SDPBasedLipschitzResBlock` in 1 dimension."""


class SDPBasedLipschitzResBlock3d(SDPBasedLipschitzResBlock, dims=3):
    """`SDPBasedLipschitzResBlock` in 3 dimensions."""


class SLLxAOCLipschitzResBlock1d(SLLxAOCLipschitzResBlock, dims=1):
    """`SLLxAOCLipschitzResBlock` in 1 dimension."""


class SLLxAOCLipschitzResBlock3d(SLLxAOCLipschitzResBlock, dims=3):
    """`SLLxAOCLipschitzResBlock` in 3 dimensions."""


class AOCLipschitzResBlock1d(AOCLipschitzResBlock, dims=1):
    """`AOCLipschitzResBlock` in 1 dimension."""


class AOCLipschitzResBlock3d(AOCLipschitzResBlock, dims=3):
    """`AOCLipschitzResBlock` in 3 dimensions."""
