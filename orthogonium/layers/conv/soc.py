"""Adaptive skew orthogonal convolutions (SOC) in 1-D, 2-D and 3-D, and their transposes; method in `methods/soc.py`.

Note [Padding of a grown kernel]
The kernel grows with the order of the series, but image sizes should not depend on how exact a layer is. So integers
given as `padding` are relative to a size that does not grow: that of order 3, 7×7 for a 3×3 kernel, as in 0.0.4
(`padding_to="series"`), or the requested one, as in torch (`padding_to="kernel"`; the layers named by method do that).
The layer adds half of the extra kernel size to each side. If that is odd, the strided sizes of torch still come out if
images are to keep their size (`padding = (k − 1)/2`: "same"), or with one pixel more or less of `output_padding`;
otherwise the padding is refused. An integer that keeps the image size at the layer's own order is accepted, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from orthogonium.errors import GeometryError, ParameterError
from orthogonium.kernels import ConvGeometry
from orthogonium.kernels.geometry import Size, to_tuple
from orthogonium.layers.conv.base import ConstrainedConv, ConstrainedConvTranspose
from orthogonium.linalg import DEFAULT_ORTHO_PARAMS, OrthoParams
from orthogonium.methods.kernel import Device
from orthogonium.methods.soc import SkewExponentialKernel

PaddingTo = Literal["series", "kernel"]


def _padding_of_grown(
    kernel: SkewExponentialKernel, padding: Size | str, padding_to: PaddingTo, output_padding: Size | None = None
) -> tuple[Size | str, Size]:
    """Padding of the grown kernel, and output padding (of a transposed one). Note [Padding of a grown kernel]."""
    if padding_to not in ("series", "kernel"):
        raise ParameterError(f"padding_to is 'series' or 'kernel', got {padding_to!r}.")
    g, own, convolves = kernel.geometry, kernel.kernel_size, output_padding is None
    seen = g.kernel_size if padding_to == "kernel" else kernel.size_of_order(3)
    outputs: Size = 0 if output_padding is None else output_padding
    padding = 0 if padding == "valid" else padding
    if isinstance(padding, str):
        return padding, outputs
    amount = to_tuple(padding, g.dims, "padding", minimum=0)
    if _keeps_image(g, amount, own):
        return amount, outputs
    given = to_tuple(outputs, g.dims, "output_padding", minimum=0)
    # Extra pixels that the grown kernel reaches on each axis, both sides together.
    extra = [d * (n - k) for n, k, d in zip(own, seen, g.dilation, strict=True)]
    if any(n % 2 and (convolves or s == 1) for n, s in zip(extra, g.stride, strict=True)):
        if convolves and _keeps_image(g, amount, seen):
            return "same", outputs
        remedy = "padding='same'" if convolves else "an odd kernel_size"
        raise GeometryError(
            f"The kernel of size {g.kernel_size} grows to {own} (a skew kernel has odd sizes): no padding gives the "
            f"images that {amount} would give with {seen}. Use {remedy}."
        )
    outputs = tuple(o if n % 2 == 0 else o - 1 if o else 1 for n, o in zip(extra, given, strict=True))
    axes = zip(amount, extra, given, outputs, strict=True)
    return tuple(p + (n + output - o) // 2 for p, n, o, output in axes), outputs


def _keeps_image(g: ConvGeometry, padding: Sequence[int], sizes: tuple[int, ...]) -> bool:
    """Whether this is half of what a kernel of these sizes takes away."""
    return all(2 * p == d * (k - 1) for p, k, d in zip(padding, sizes, g.dilation, strict=True))


class _SOCConv(ConstrainedConv):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = "same",
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "circular",
        ortho_params: OrthoParams = DEFAULT_ORTHO_PARAMS,
        device: Device = None,
        dtype: torch.dtype | None = None,
        order: int = 4,
        niter: int = 1,
        padding_to: PaddingTo = "series",
        lipschitz: float = 1.0,
    ) -> None:
        geometry = ConvGeometry.of(self.dims, in_channels, out_channels, kernel_size, stride, dilation, groups)
        kernel = SkewExponentialKernel(geometry, order, niter, ortho_params)
        own, _ = _padding_of_grown(kernel, padding, padding_to)
        super().__init__(kernel, own, padding_mode, bias, device, dtype, lipschitz)
        self.skew_kernel_size, self.order = kernel.skew_size, kernel.order


class _SOCConvTranspose(ConstrainedConvTranspose):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        output_padding: Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Size = 1,
        padding_mode: str = "zeros",
        ortho_params: OrthoParams = DEFAULT_ORTHO_PARAMS,
        device: Device = None,
        dtype: torch.dtype | None = None,
        order: int = 4,
        niter: int = 1,
        padding_to: PaddingTo = "series",
        lipschitz: float = 1.0,
    ) -> None:
        geometry = ConvGeometry.of(self.dims, out_channels, in_channels, kernel_size, stride, dilation, groups)
        kernel = SkewExponentialKernel(geometry, order, niter, ortho_params)
        own, extra = _padding_of_grown(kernel, padding, padding_to, output_padding)
        super().__init__(kernel, own, extra, padding_mode, bias, device, dtype, lipschitz)
        self.skew_kernel_size, self.order = kernel.skew_size, kernel.order


class AdaptiveSOCConv2d(_SOCConv, nn.Conv2d):
    """Nearly orthogonal 2-D convolution with the explicit kernel `Σ_{j ≤ order} Kʲ / j!` of a skew K; also depthwise.

    `kernel_size` k is that of K: the exponential has size `order·(k − 1) + 1` (9×9 for a 3×3 kernel and order 4).
    This grown kernel is `layer.weight`, its size is `layer.kernel_size` and its padding `layer.padding`;
    `layer.skew_kernel_size` is the size of K. A skew kernel has odd sizes: an even k gets one more tap. With a stride,
    an orthogonal kernel of size `e = min(stride, k)` follows (RKO), and K has size `k − e + 1`, or one more if that is
    even.

    | order | smallest singular value, at least | 3×3 grows to |
    |---|---|---|
    | 3 | 1 − 2.8e-2 | 7×7 |
    | 4 | 1 − 6.1e-3 | 9×9 |
    | 7 | 1 − 1.6e-5 | 15×15 |
    | 8 | 1 − 2.2e-6 | 17×17 |
    | 11 | 1 − 1.3e-9 | 23×23 |
    | 12 | 1 − 1.3e-10 | 25×25 |

    Guarantee: σ_max ≤ 1 (1e-6 in float32) for every image size, zero or circular padding; under circular padding that
    keeps every window, and if the stride divides the image size, the smallest singular value is as above.

    Other arguments are those of `AdaptiveOrthoConv2d`; one channel per group is fine.

    Args:
        padding: "same" (`⌈size / stride⌉` outputs, any stride), or integers ("valid" is 0): outputs are as large as
            with the kernel of order 3, whatever the order, so a 3×3 kernel keeps the image size with padding=3.
        ortho_params: how the matrix of the strided stage is made orthogonal; there is none for stride 1.
        order: where the series is truncated: 3, 4, 7, 8, 11 or 12, for which it cannot expand.
        niter: number of squarings in the bound on the norm of K. Each halves the logarithm of its looseness, so K can
            come closer to norm 1, and doubles the size of the Gram kernel behind the bound.
        padding_to: "kernel" to count integers of `padding` from `kernel_size`, as torch does, instead of the "series".

    >>> layer = AdaptiveSOCConv2d(8, 8, kernel_size=3, groups=8)
    >>> layer.weight.shape, layer.kernel_size, layer.skew_kernel_size
    (torch.Size([8, 1, 9, 9]), (9, 9), (3, 3))
    >>> x = torch.randn(1, 8, 16, 16)
    >>> ratio = (layer(x).norm() / x.norm()).item()
    >>> layer(x).shape, 0.99 < ratio < 1.00001
    (torch.Size([1, 8, 16, 16]), True)
    """


class AdaptiveSOCConv1d(_SOCConv, nn.Conv1d):
    """`AdaptiveSOCConv2d` in 1 dimension."""


class AdaptiveSOCConv3d(_SOCConv, nn.Conv3d):
    """`AdaptiveSOCConv2d` in 3 dimensions."""


class AdaptiveSOCConvTranspose2d(_SOCConvTranspose, nn.ConvTranspose2d):
    """The adjoint of `AdaptiveSOCConv2d`, with the arguments of `nn.ConvTranspose2d` and the extra ones of the former.

    Guarantee: that of `AdaptiveSOCConv2d`, where the stride must divide the output size.

    >>> layer = AdaptiveSOCConvTranspose2d(8, 4, kernel_size=3, stride=2, padding="same", padding_mode="circular")
    >>> layer(torch.randn(1, 8, 6, 6)).shape
    torch.Size([1, 4, 12, 12])
    """


class AdaptiveSOCConvTranspose1d(_SOCConvTranspose, nn.ConvTranspose1d):
    """`AdaptiveSOCConvTranspose2d` in 1 dimension."""


class AdaptiveSOCConvTranspose3d(_SOCConvTranspose, nn.ConvTranspose3d):
    """`AdaptiveSOCConvTranspose2d` in 3 dimensions."""
