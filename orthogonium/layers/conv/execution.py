"""The ways to convolve images with a constrained weight, in the order they are tried; all give the same result.

`select_execution(layer, x)` tells which one a layer uses, as `select_method(geometry)` tells its construction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from operator import sub
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from orthogonium.kernels.algebra import CONV, CONV_TRANSPOSE
from orthogonium.layers.conv.frequencies import convolve_frequencies
from orthogonium.layers.conv.padding import Border, pad, unwrap, wrap, zero_extend
from orthogonium.layers.parametrization import Source, standard_strides
from orthogonium.linalg.evaluation import autocasts, exports_to_onnx, replaces, waits
from orthogonium.linalg.in_turn import apply_orthonormal_rows, are_few, inverse_gram, needs_no_rows
from orthogonium.linalg.multiply import multiply
from orthogonium.methods.aoc import OrthogonalKernel
from orthogonium.methods.batches import kind
from orthogonium.methods.bcop.images import Span, apply_in_turn, apply_to_tiles, reflect
from orthogonium.methods.kernel import Kernel
from orthogonium.methods.soc import SkewExponentialKernel

# Note [In turn] of `methods/aoc.py`
MOST_PIXELS = 32  # for each channel, over all intermediate images: with more, building the weight is faster
MOST_FOR_BUILDS = 12  # the same if factors save hardly any products, but only those of builds
FEWEST_CHANNELS = 48  # with fewer, operators cost more than their arithmetic
FEWEST_ALONG_AXES = 32  # the same of convolutions along axes
FEWEST_SAVED = 2**19  # products of an image: with fewer, another convolution costs more than it saves
FEWEST_IN_SERIES = 16  # channels of a series: with fewer, its operators cost more than their arithmetic
_BUILD = 285  # products of a 3×3 exponential, in units of c³
MOST_FOR_SPANS = 1  # pixels for each channel: with more, orthonormal bases and a dense rotation are faster
FEWEST_FOR_SPANS = 128  # channels: with fewer, they are faster, too
MOST_NUMBERS = 2**26  # in all images of a series, or along an axis: limits the memory they take

# What builds a kernel and an instance may replace.
_KERNELS = (OrthogonalKernel, SkewExponentialKernel)
REPLACEABLE = frozenset(name for cls in _KERNELS for name, value in vars(cls).items() if callable(value))


class Execution(NamedTuple):
    """One way to apply a convolution or a transposed convolution (see `conv/base.py`)."""

    name: str
    when: Callable[[Any, Tensor, Any], bool]  # of the layer, the images and the source of its weight
    how: Callable[..., Tensor]  # of these, and what `forward` says of sizes
    instead_of: type[Kernel] | None = None  # whose weight need not be built; None for ways to apply any weight


def select_execution(layer: Any, x: Tensor) -> Execution:
    """The first execution whose condition holds for these images.

    >>> from orthogonium.layers import AdaptiveOrthoConv2d
    >>> layer = AdaptiveOrthoConv2d(64, 64, 3)
    >>> [select_execution(layer, torch.randn(1, 64, n, n)).name for n in (4, 32)]
    ['factors in turn', 'along axes']
    """
    return _select(layer, x, layer.source())


def execute(layer: Any, x: Tensor, *sizes: Any) -> Tensor:
    """Apply the layer to images that its `forward` has checked and tiled."""
    source = layer.source()
    return _select(layer, x, source).how(layer, x, source, *sizes)


def _select(layer: Any, x: Tensor, source: Source | None) -> Execution:
    # Adjoints are applied as a whole. Which way is cheaper depends on the batch, which graphs may leave open.
    whole = layer.transposed or torch.compiler.is_compiling() or torch.jit.is_tracing()
    own = None if source is None or whole else type(source[0].kernel)
    for execution in EXECUTIONS:
        if execution.instead_of in (None, own) and execution.when(layer, x, source):
            return execution
    raise AssertionError("The last execution is for every layer.")


def add_bias(layer: Any, y: Tensor) -> Tensor:
    """The images plus the bias of the layer, in their dtype."""
    return y if layer.bias is None else y + layer.bias.to(y.dtype).view(-1, *[1] * layer.geometry.dims)


# ── the factors of the weight, one after the other ──


def _pays_in_turn(layer: Any, x: Tensor, source: Source) -> bool:
    """Whether applying the factors of the weight in turn is cheaper than applying the weight."""
    kernel: Any = source[0].kernel
    pixels = x.numel() // layer.in_channels
    most = MOST_PIXELS if kernel.factors_save and not _has_axes(kernel, x) else MOST_FOR_BUILDS
    pays = 0 < kernel.factor_count * pixels <= most * kernel.channels
    pays = pays or (kernel.is_rotation and _are_few(pixels, kernel))
    if kernel.channels < FEWEST_CHANNELS or not pays or not _goes_without_weight(layer, x, source):
        return False
    dims, border = layer.dims, layer.border
    image = x.dim() in (dims + 1, dims + 2) and x.shape[-dims - 1] == layer.in_channels
    axes = zip(x.shape[-dims:], border.left, border.right, layer.geometry.extent, strict=False)
    return image and all(n > 0 and n + a + b >= extent and max(a, b) <= n for n, a, b, extent in axes)


def _goes_without_weight(layer: Any, x: Tensor, source: Source) -> bool:
    """Whether the weight has not been built yet, and intermediate images are neither rounded nor lost."""
    unbuilt = source[0].must_build(source[1])
    return unbuilt and x.is_contiguous() and _may_be_applied_apart(layer, x, source)  # other formats would be lost


def _may_be_applied_apart(layer: Any, x: Tensor, source: Source) -> bool:
    """Whether parts of the weight do the same as the weight, and intermediate images are not rounded."""
    # Half precision would round after each factor.
    if x.dtype.itemsize < 4 or autocasts(x) or x.layout != torch.strided:
        return False
    # What torch refuses goes through the weight, so torch raises its own error.
    if source[1][0].dtype != x.dtype or (layer.bias is not None and layer.bias.dtype != x.dtype):
        return False
    # Where something else builds the weight, its parts say nothing.
    return not replaces(source[0].kernel, REPLACEABLE)


def _apply_in_turn(layer: Any, x: Tensor, source: Source) -> Tensor:
    constraint, raw = source
    g, border, kernel = layer.geometry, layer.border, cast(OrthogonalKernel, constraint.kernel)

    def pad_axis(x: Tensor, axis: int) -> Tensor:  # up to the last window
        left, right = border.left[axis], border.right[axis]
        unused = (x.shape[2] + left + right - g.extent[axis]) % g.stride[axis]
        others = [0] * (x.dim() - 3)
        return pad(x, [left, *others], [right - unused, *others], border.mode)

    pixels = x.numel() // layer.in_channels
    few = _are_few(pixels, kernel)
    as_they_are = few and kind(kernel) is not None and needs_no_rows(kernel.orthonormalize, x, raw[0])
    inverse = inverse_gram(raw[0].detach().flatten(0, 1)) if as_they_are else None
    # The same of the RKO matrix, which is applied to one column for each tile.
    without_rows = as_they_are and kernel.has_rko and g.groups == 1
    without_rows = without_rows and are_few(pixels // math.prod(kernel.plan.rko_size), raw[-1].shape[-1])
    without_rows = without_rows and needs_no_rows(kernel.orthogonalize, x, raw[-1])
    by = partial(kernel.factors, reflects=few, orthonormal=(inverse is None, not without_rows))
    bases, *dense = constraint.parts(by, raw)
    inverses = [None] * bases.shape[1] if inverse is None else inverse.unflatten(0, bases.shape[:2]).unbind(1)
    spans: Iterator[Span] = zip(bases.unbind(1), inverses, strict=True)
    if dense:
        matrix = partial(_apply_rows, dense[0]) if without_rows else partial(multiply, dense[0])
        apply_dense = partial(apply_to_tiles, tile=kernel.plan.rko_size, matrix=matrix)
    else:
        p, q = next(spans), next(spans)
        apply_dense = partial(reflect, spans=(q, p) if kernel.dense_first else (p, q), out=g.group_out)
    axes = [list(islice(spans, k - 1)) for k in kernel.plan.bcop_size]
    grouped = x.reshape(-1, g.groups, g.group_in, *x.shape[-g.dims :])
    y = apply_in_turn(grouped, apply_dense, axes, kernel.dense_first, g.dilation, pad_axis)
    y = y if constraint.lipschitz == 1 else constraint.lipschitz * y
    return add_bias(layer, standard_strides(y.reshape(*x.shape[: -g.dims - 1], g.out_channels, *y.shape[3:])))


def _apply_rows(raw: Tensor, columns: Tensor) -> Tensor:  # (1, r, c), (1, c, p) → (1, r, p)
    """The orthonormal rows of one matrix, which are not formed."""
    return apply_orthonormal_rows(columns[0].mT, raw[0]).mT[None]


def _are_few(pixels: int, kernel: OrthogonalKernel) -> bool:
    """Whether bases are better applied to the images as they are than made orthonormal and multiplied."""
    return kernel.channels >= FEWEST_FOR_SPANS and 0 < pixels <= MOST_FOR_SPANS * kernel.channels


# ── one axis of the weight after the other ──


def _pays_along_axes(layer: Any, x: Tensor, source: Source) -> bool:
    """Whether convolving along one axis after the other takes fewer products. Note [Along axes] of aoc."""
    constraint, raw = source
    kernel: Any = constraint.kernel
    if not _has_axes(kernel, x):
        return False
    if constraint.supplied(raw) is not None and not constraint.supply.along_axes:
        return False
    if math.prod(x.shape[-layer.dims :]) * kernel.axis_savings < FEWEST_SAVED:
        return False
    # Where the weight is kept, the batch must not decide: a bound is that of the weights that run, for any batch.
    numbers = kernel.channels * layer.groups * x.numel() // layer.in_channels
    return (numbers <= MOST_NUMBERS or constraint.keeps(raw)) and _may_be_applied_apart(layer, x, source)


def _has_axes(kernel: OrthogonalKernel, x: Tensor) -> bool:
    """Whether the kernel is worth taking apart. Other devices may need fewer products for 3×3 (Winograd)."""
    return bool(kernel.axis_shapes) and kernel.channels >= FEWEST_ALONG_AXES and not waits(x)


def _convolve_along_axes(layer: Any, x: Tensor, source: Source) -> Tensor:
    constraint, raw = source
    borders = layer.border.along_axes(constraint.kernel.axis_shapes)
    *others, last = zip(constraint.along_axes(raw), borders, strict=True)
    for weight, border in others:
        x = convolve(x, weight, None, border, layer.dilation, layer.groups)
    weight, border = last
    return convolve(x, weight, layer.bias, border, layer.dilation, layer.groups)


# ── the series of a skew kernel, term by term ──


def _pays_in_series(layer: Any, x: Tensor, source: Source) -> bool:
    """Whether the series takes fewer products than building and applying its sum. Note [Series] of soc."""
    g, kernel = layer.geometry, cast(SkewExponentialKernel, source[0].kernel)
    if not layer.covers or (g.is_strided and not kernel.has_rko):
        return False
    pixels, channels = x.numel() // layer.in_channels, kernel.channels * g.groups
    if channels < FEWEST_IN_SERIES or kernel.order * channels * pixels > MOST_NUMBERS:
        return False
    in_turn = kernel.order * math.prod(kernel.skew_size) * kernel.channels * channels * pixels
    windows = pixels / math.prod(g.stride)
    at_once = math.prod(g.kernel_size) * g.group_in * g.out_channels * windows + _BUILD * g.groups * kernel.channels**3
    return in_turn < at_once and _goes_without_weight(layer, x, source)


def _apply_series(layer: Any, x: Tensor, source: Source) -> Tensor:
    g, border, kernel = layer.geometry, layer.border, cast(SkewExponentialKernel, source[0].kernel)
    skew, *strided = source[0].parts(kernel.stages, source[1])
    batch = x if x.dim() == g.dims + 2 else x[None]
    # A kernel with fewer outputs is the adjoint of one with more: that of K is −K.
    narrows = not strided and g.group_out < g.group_in
    skew = -skew if narrows else skew
    if g.group_in < kernel.channels:
        missing = [0, 0] * g.dims + [0, kernel.channels - g.group_in]
        batch = F.pad(batch.unflatten(1, (g.groups, -1)), missing).flatten(1, 2)
    around = [d * (k - 1) // 2 for d, k in zip(g.dilation, kernel.skew_size, strict=True)]
    y = batch
    for j in range(kernel.order, 0, -1):
        y = batch + CONV[g.dims](wrap(y, around, around), skew / j, None, 1, 0, g.dilation, g.groups)
    if strided:
        reached = tuple(kernel.order * a for a in around)
        rest = replace(border, left=tuple(map(sub, border.left, reached)), right=tuple(map(sub, border.right, reached)))
        y = convolve(y, strided[0], None, rest, g.dilation, g.groups)
    elif narrows:
        y = y.unflatten(1, (g.groups, -1))[:, :, : g.group_out].flatten(1, 2)
    y = add_bias(layer, y if layer.lipschitz == 1 else layer.lipschitz * y)
    return y if x.dim() == g.dims + 2 else y[0]


# ── a kernel as large as the image ──


def _multiplies_frequencies(layer: Any, x: Tensor, source: Source | None) -> bool:
    if not layer.spans_image:
        return False
    # ONNX has convolutions instead; other images than those of the weight need another kernel.
    return not (exports_to_onnx() and tuple(x.shape[-layer.dims :]) == layer.geometry.kernel_size)


def _multiply_frequencies(layer: Any, x: Tensor, source: Source | None) -> Tensor:
    y = _through_frequencies(layer, x, layer.weight_for(tuple(x.shape[-layer.dims :]), source), adjoint=False)
    # As torch's convolutions do.
    y = y.to(torch.get_autocast_dtype(x.device.type) if autocasts(x) and x.dtype != torch.float64 else x.dtype)
    return add_bias(layer, y)


def _through_frequencies(layer: Any, x: Tensor, weight: Tensor, adjoint: bool) -> Tensor:
    """The convolution, or its adjoint, of a batch or of a single image; without bias."""
    g = layer.geometry
    if x.dim() == g.dims + 2:
        return convolve_frequencies(x, weight, g.stride, g.groups, adjoint)
    return convolve_frequencies(x[None], weight, g.stride, g.groups, adjoint)[0]


# ── the weight ──


def convolve(
    x: Tensor, kernel: Tensor, bias: Tensor | None, border: Border, dilation: Sequence[int], groups: int
) -> Tensor:
    """Pad images as the border says and convolve them."""
    left, right = border.left, border.right
    amount: Sequence[int] = [0] * len(left)
    if border.mode == "zeros" and left == right:
        amount = left  # torch adds these without a copy of the image
    else:
        x = pad(x, left, right, border.mode)
    return CONV[len(left)](x, kernel, bias, border.stride, amount, dilation, groups)


def _convolve_padded(layer: Any, x: Tensor, source: Source | None) -> Tensor:
    return convolve(x, layer.weight_of(source), layer.bias, layer.border, layer.dilation, layer.groups)


def _convolve_folded(layer: Any, x: Tensor, source: Source | None, padded: Sequence[int]) -> Tensor:
    """The adjoint of `_convolve_padded`, without bias: from the windows of an image of size `padded`."""
    g, border = layer.geometry, layer.border
    y = CONV_TRANSPOSE[g.dims](x, layer.weight_of(source), None, g.stride, 0, 0, g.groups, g.dilation)
    y = zero_extend(y, [n - m for n, m in zip(padded, y.shape[-g.dims :], strict=True)])
    return unwrap(y, border.left, border.right)


def adjoint(layer: Any, y: Tensor) -> Tensor:
    """The adjoint of a layer, without bias, from outputs to images that its stride divides."""
    g, border, source = layer.geometry, layer.border, layer.source()
    if layer.spans_image:
        sizes = tuple(m * s for m, s in zip(y.shape[-g.dims :], g.stride, strict=True))
        return _through_frequencies(layer, y, layer.weight_for(sizes, source), adjoint=True).to(y.dtype)
    if layer.transposed:
        return convolve(y, layer.weight_of(source), None, border, g.dilation, g.groups)
    axes = zip(y.shape[-g.dims :], g.stride, border.left, border.right, strict=True)
    return _convolve_folded(layer, y, source, [n * s + a + b for n, s, a, b in axes])


EXECUTIONS = (
    Execution("factors in turn", _pays_in_turn, _apply_in_turn, OrthogonalKernel),
    Execution("along axes", _pays_along_axes, _convolve_along_axes, OrthogonalKernel),
    Execution("series", _pays_in_series, _apply_series, SkewExponentialKernel),
    Execution("frequencies", _multiplies_frequencies, _multiply_frequencies),
    Execution("padded", lambda layer, x, source: not layer.transposed, _convolve_padded),
    Execution(
        "torch",
        lambda layer, x, source: layer.pads_as_torch,
        lambda layer, x, source, sizes: layer.forward_of_torch(x, sizes),
    ),
    Execution("folded", lambda layer, x, source: True, _convolve_folded),
)
"""In the order of preference."""
