"""Pooling over windows with a Lipschitz constant of exactly 1, overlapping windows included.

Each layer is torch's pooling divided by its Lipschitz constant. Networks that keep torch's own layers can account for
these constants with the functions `avg_pool_constant` and `max_pool_constant`.

Note [Overlap]
A window of size `k` moved by `s` covers a pixel up to `⌈k/s⌉` times per axis; with dilation `d`, `⌈k/s′⌉` times,
`s′ = s/gcd(s, d)`.
Max and L2-norm pooling do not expand within a window, so their squared constant is the number of windows over a pixel.
Averaging is linear and separable; on an infinite row its norm is `√(r(a+1)² + (s−r)a²)/k` with `k = a·s + r`, which is
smaller: 1 instead of √3 for `k = 3, s = 1`. Zero padding only removes pixels, so both stay valid bounds.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orthogonium.errors import ParameterError, ShapeError
from orthogonium.layers.guarantee import Guarantee
from orthogonium.linalg.evaluation import widened

Size = int | tuple[int, ...]

_AVG_POOL = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
_MAX_POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}


def per_axis(value: Size | list[int], dims: int, name: str) -> tuple[int, ...]:
    """A size for each axis: a single one, even in a tuple, is that of all of them, as for torch's operators."""
    sizes = (value,) if isinstance(value, int) else tuple(value)
    sizes = sizes * dims if len(sizes) == 1 else sizes
    if len(sizes) != dims:
        raise ParameterError(f"{name} needs one int or {dims}, one for each axis: got {value}.")
    return sizes


def _axes(*values: Size | None) -> int:
    return max((len(v) for v in values if isinstance(v, tuple)), default=1)


def avg_pool_constant(kernel_size: Size, stride: Size | None = None) -> float:
    """Lipschitz constant of average pooling (linear: its spectral norm). Note [Overlap].

    Pass a tuple with one entry per axis; an int means a single axis. Valid without padding and for zero padding that is
    counted (`count_include_pad=True`, torch's default) without `ceil_mode`; attained on large images.

    >>> from orthogonium.layers.pooling import avg_pool_constant
    >>> avg_pool_constant((2, 2)), round(avg_pool_constant((3, 3), (2, 2)), 4)
    (0.5, 0.5556)
    """
    stride = kernel_size if stride is None else stride
    dims = _axes(kernel_size, stride)
    kernel, steps = per_axis(kernel_size, dims, "kernel_size"), per_axis(stride, dims, "stride")
    squared = 1
    for k, s in zip(kernel, steps, strict=True):
        a, r = divmod(k, s)
        squared *= r * (a + 1) ** 2 + (s - r) * a**2
    return math.sqrt(squared) / math.prod(kernel)


def max_pool_constant(kernel_size: Size, stride: Size | None = None, dilation: Size = 1) -> float:
    """Lipschitz constant of max pooling, and of L2-norm pooling: `√∏⌈k/s′⌉`, attained. Note [Overlap].

    Pass a tuple with one entry per axis; an int means a single axis. Valid for any padding and `ceil_mode`.

    >>> from orthogonium.layers.pooling import max_pool_constant
    >>> max_pool_constant((2, 2)), max_pool_constant((3, 3), (2, 2))
    (1.0, 2.0)
    """
    stride = kernel_size if stride is None else stride
    dims = _axes(kernel_size, stride, dilation)
    windows = 1
    for k, s, d in zip(
        per_axis(kernel_size, dims, "kernel_size"),
        per_axis(stride, dims, "stride"),
        per_axis(dilation, dims, "dilation"),
        strict=True,
    ):
        windows *= math.ceil(k * math.gcd(s, d) / s)
    return math.sqrt(windows)


def root_of_sum(squares: Tensor, scale: float = 1.0) -> Tensor:
    """`scale · √squares`. Below the smallest normal number the derivative is 0 instead of infinite."""
    return squares.clamp(min=torch.finfo(squares.dtype).tiny).sqrt() * scale


class _WindowPool(nn.Module):
    """Sizes of the windows, checked once."""

    dims: int

    def __init_subclass__(cls, dims: int | None = None) -> None:
        super().__init_subclass__()
        if dims is not None:
            cls.dims = dims

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0) -> None:
        super().__init__()
        name = type(self).__name__
        self.kernel_size = per_axis(kernel_size, self.dims, f"{name}: kernel_size")
        self.stride = self.kernel_size if stride is None else per_axis(stride, self.dims, f"{name}: stride")
        self.padding = per_axis(padding, self.dims, f"{name}: padding")
        if min(self.kernel_size + self.stride) < 1:
            raise ParameterError(f"{name} needs kernel_size and stride ≥ 1: got {kernel_size} and {stride}.")
        if any(not 0 <= 2 * p <= k for p, k in zip(self.padding, self.kernel_size, strict=True)):
            raise ParameterError(
                f"{name} needs 0 ≤ padding ≤ kernel_size/2, or windows see padding only: got padding {self.padding} "
                f"for kernel_size {self.kernel_size}."
            )

    def _check(self, x: Tensor) -> None:
        if x.dim() not in (self.dims + 1, self.dims + 2):
            raise ShapeError(
                f"{type(self).__name__} pools inputs ([n,] c, …) with {self.dims} spatial axes: got {tuple(x.shape)}."
            )

    def extra_repr(self) -> str:
        """Window, and whatever is not the default."""
        parts = [f"kernel_size={self.kernel_size}", f"stride={self.stride}"]
        return ", ".join(parts + ([f"padding={self.padding}"] if any(self.padding) else []))


class ScaledAvgPool(_WindowPool):
    """Average pooling divided by its spectral norm: 1-Lipschitz, and no smaller constant would do.

    For windows that do not overlap this is the mean times `√∏k`. Padded zeros are counted in the mean.

    Guarantee: 1-Lipschitz; orthonormal rows if windows do not overlap and there is no padding.

    Args:
        kernel_size: size of the window.
        stride: step of the window, by default its size.
        padding: zeros on each side, at most half the window.

    >>> from orthogonium.layers.pooling import ScaledAvgPool2d
    >>> ScaledAvgPool2d(2)(torch.ones(1, 1, 4, 4))  # twice the mean
    tensor([[[[2., 2.],
              [2., 2.]]]])
    """

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0) -> None:
        super().__init__(kernel_size, stride, padding)
        self.scale = 1 / avg_pool_constant(self.kernel_size, self.stride)

    @property
    def guarantee(self) -> Guarantee:
        """Orthogonal without overlap and padding, else 1-Lipschitz."""
        disjoint = all(k <= s for k, s in zip(self.kernel_size, self.stride, strict=True))
        return Guarantee("orthogonal" if disjoint and not any(self.padding) else "lipschitz")

    def forward(self, x: Tensor) -> Tensor:
        """Pooled `x`."""
        self._check(x)
        return _AVG_POOL[self.dims](x, self.kernel_size, self.stride, self.padding) * self.scale


class L2NormPool(_WindowPool):
    """Euclidean norm of each window, `√Σx²`, divided by the constant that overlap costs. Note [Overlap].

    Without overlap (and with every pixel in a window) the norm of the image is preserved.

    Guarantee: 1-Lipschitz; without overlap the Jacobian has orthonormal rows where no window is all zero.

    Args:
        kernel_size: size of the window.
        stride: step of the window, by default its size.
        padding: zeros on each side, at most half the window.

    >>> from orthogonium.layers.pooling import L2NormPool1d
    >>> L2NormPool1d(2)(torch.tensor([[[3.0, 4.0, -5.0, 12.0]]]))
    tensor([[[ 5., 13.]]])
    """

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0) -> None:
        super().__init__(kernel_size, stride, padding)
        self.scale = 1 / max_pool_constant(self.kernel_size, self.stride)

    @property
    def guarantee(self) -> Guarantee:
        """Orthogonal without overlap, else 1-Lipschitz."""
        if self.scale == 1:
            return Guarantee("orthogonal", note="of the Jacobian where no window is all zero")
        return Guarantee("lipschitz")

    def forward(self, x: Tensor) -> Tensor:
        """Pooled `x`, nonnegative."""
        self._check(x)
        squares = widened(x).square()
        mean = _AVG_POOL[self.dims](squares, self.kernel_size, self.stride, self.padding)
        return root_of_sum(mean * math.prod(self.kernel_size), self.scale).to(x.dtype)


class ScaledMaxPool(_WindowPool):
    """Max pooling divided by the constant that overlap costs, `√∏⌈k/s⌉`: plain max pooling without overlap.

    Guarantee: 1-Lipschitz; without overlap the Jacobian has orthonormal rows.

    Args:
        kernel_size: size of the window.
        stride: step of the window, by default its size.
        padding: pixels on each side, which never attain the maximum, at most half the window.
        dilation: spacing of the pixels of a window.
        ceil_mode: whether a last, partial window counts.

    >>> from orthogonium.layers.pooling import ScaledMaxPool1d
    >>> ScaledMaxPool1d(2)(torch.tensor([[[3.0, 4.0, -5.0, 12.0]]]))
    tensor([[[ 4., 12.]]])
    """

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        dilation: Size = 1,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__(kernel_size, stride, padding)
        self.dilation = per_axis(dilation, self.dims, f"{type(self).__name__}: dilation")
        if min(self.dilation) < 1:
            raise ParameterError(f"{type(self).__name__} needs dilation ≥ 1: got {dilation}.")
        self.ceil_mode = ceil_mode
        self.scale = 1 / max_pool_constant(self.kernel_size, self.stride, self.dilation)

    @property
    def guarantee(self) -> Guarantee:
        """Orthogonal without overlap, else 1-Lipschitz."""
        if self.scale == 1:
            return Guarantee("orthogonal", note="of the Jacobian at every input")
        return Guarantee("lipschitz")

    def forward(self, x: Tensor) -> Tensor:
        """Pooled `x`."""
        self._check(x)
        pool = _MAX_POOL[self.dims]
        return pool(x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode) * self.scale

    def extra_repr(self) -> str:
        """Window, and whatever is not the default."""
        extra = [] if set(self.dilation) == {1} else [f"dilation={self.dilation}"]
        return ", ".join([super().extra_repr(), *extra, *(["ceil_mode=True"] if self.ceil_mode else [])])


class ScaledAvgPool1d(ScaledAvgPool, dims=1):
    """`ScaledAvgPool` of sequences (n, c, w)."""


class ScaledAvgPool2d(ScaledAvgPool, dims=2):
    """`ScaledAvgPool` of images (n, c, h, w)."""


class ScaledAvgPool3d(ScaledAvgPool, dims=3):
    """`ScaledAvgPool` of volumes (n, c, t, h, w)."""


class L2NormPool1d(L2NormPool, dims=1):
    """`L2NormPool` of sequences (n, c, w)."""


class L2NormPool2d(L2NormPool, dims=2):
    """`L2NormPool` of images (n, c, h, w)."""


class L2NormPool3d(L2NormPool, dims=3):
    """`L2NormPool` of volumes (n, c, t, h, w)."""


class ScaledMaxPool1d(ScaledMaxPool, dims=1):
    """`ScaledMaxPool` of sequences (n, c, w)."""


class ScaledMaxPool2d(ScaledMaxPool, dims=2):
    """`ScaledMaxPool` of images (n, c, h, w)."""


class ScaledMaxPool3d(ScaledMaxPool, dims=3):
    """`ScaledMaxPool` of volumes (n, c, t, h, w)."""
