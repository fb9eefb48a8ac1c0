"""How constrained convolutions treat the border of an image, and the adjoint operations for transposed ones.

Note [Circular padding and stride]
On a circle of n pixels, windows spaced by s tile evenly only if s divides n; otherwise the window that wraps around is
not spaced by s from the next one, and an orthogonal kernel expands. So the image is first extended by zeros to
`N = s⌈n/s⌉` pixels and wrapped on N: `⌈n/s⌉` outputs, no singular value above 1, and all equal to 1 when s divides n.

Note [Padding amounts]
`"same"` pads `max(extent − s, 0)` pixels in total (`extent = d(k−1) + 1`), the smaller half on the left. An integer p
pads p on each side, as in torch; the number of outputs is torch's, too. Circular windows repeat, and the operator
expands, if `2p ≥ extent`: this is rejected. If `2p < extent − s` some windows are missing, and the operator is a
contraction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from operator import add, sub
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from orthogonium.errors import GeometryError, ShapeError
from orthogonium.kernels.geometry import ConvGeometry, Size, to_tuple
from orthogonium.layers.whole import as_a_whole
from orthogonium.linalg.evaluation import has_values

PADDING_MODES = ("zeros", "circular")


@dataclass(frozen=True)
class Border:
    """Where the windows of a convolution lie: their spacing, and the pixels added left and right on each axis."""

    mode: Literal["zeros", "circular"]
    left: tuple[int, ...]
    right: tuple[int, ...]
    stride: tuple[int, ...]
    same: bool

    @classmethod
    def of(cls, geometry: ConvGeometry, padding: Size | str, mode: str) -> Border:
        """Validate and resolve the padding arguments of a layer."""
        if mode not in PADDING_MODES:
            reason = (
                f"{mode!r} repeats border pixels, which multiplies the norm by up to √2 per axis, so that no kernel "
                "keeps the guarantee on every image. "
                if mode in ("reflect", "replicate")
                else ""
            )
            raise GeometryError(f"padding_mode must be one of {PADDING_MODES}, got {mode!r}. {reason}Use 'circular'.")
        mode = cast(Literal["zeros", "circular"], mode)
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise GeometryError(f"padding must be 'same', 'valid', or integers, got {padding!r}.")
            axes = zip(geometry.extent, geometry.stride, strict=True)
            total = [max(x - s, 0) if padding == "same" else 0 for x, s in axes]
            left = tuple(t // 2 for t in total)
            right = tuple(t - v for t, v in zip(total, left, strict=True))
            return cls(mode, left, right, geometry.stride, padding == "same")
        amount = to_tuple(padding, geometry.dims, "padding", minimum=0)
        if mode == "circular" and any(2 * p >= x for p, x in zip(amount, geometry.extent, strict=True)):
            raise GeometryError(
                f"Circular padding of {amount} repeats windows of extent {geometry.extent} (kernel "
                f"{geometry.kernel_size}, dilation {geometry.dilation}), so that the layer would expand: needs "
                "2·padding < dilation·(kernel_size − 1) + 1 on every axis. Use padding='same'."
            )
        return cls(mode, amount, amount, geometry.stride, False)

    def covers(self, geometry: ConvGeometry) -> bool:
        """Whether every window of a circular image is kept: orthogonal kernels then give orthogonal operators."""
        axes = zip(self.left, self.right, geometry.extent, self.stride, strict=True)
        return self.mode == "circular" and all(a + b >= x - s for a, b, x, s in axes)

    def then(self, outer: Border) -> Border:
        """The border of `outer ∘ inner` as one convolution, where `self` is the inner one and has stride 1."""
        left, right = tuple(map(add, self.left, outer.left)), tuple(map(add, self.right, outer.right))
        return replace(outer, left=left, right=right)

    def moved(self, ahead: tuple[int, ...]) -> Border:
        """The same number of windows, each `ahead` pixels further to the left."""
        return replace(self, left=tuple(map(add, self.left, ahead)), right=tuple(map(sub, self.right, ahead)))

    def along_axes(self, shapes: Sequence[tuple[int, ...]]) -> tuple[Border, ...]:
        """What each of these weights adds to the image: on its own axis, and the last on axes with a single tap."""
        axes = [[axis for axis, k in enumerate(shape[2:]) if k > 1] for shape in shapes]
        if axes:
            axes[-1] += set(range(len(self.left))).difference(*axes)
        return tuple(replace(self, left=self._only(self.left, own), right=self._only(self.right, own)) for own in axes)

    @staticmethod
    def _only(amounts: tuple[int, ...], axes: Sequence[int]) -> tuple[int, ...]:
        return tuple(p if axis in axes else 0 for axis, p in enumerate(amounts))

    def adjoint(self) -> Border:
        """The border of the adjoint, for stride 1."""
        return replace(self, left=self.right, right=self.left)


def tiled_size(size: int, stride: int) -> int:
    """`N = s⌈n/s⌉` of Note [Circular padding and stride]."""
    return -(-size // stride) * stride


def _torch_padding(left: Sequence[int], right: Sequence[int]) -> list[int]:
    """Pairs for `F.pad`, which counts axes from the last."""
    return [p for pair in reversed(list(zip(left, right, strict=True))) for p in pair]


def _add_zeros(x: Tensor, left: Sequence[int], right: Sequence[int]) -> Tensor:
    return F.pad(x, _torch_padding(left, right)) if any(left) or any(right) else x


def zero_extend(x: Tensor, amounts: Sequence[int]) -> Tensor:
    """Add zeros behind each of the last axes; negative amounts crop."""
    return _add_zeros(x, [0] * len(amounts), amounts)


def _extend(x: Tensor, left: Sequence[int], right: Sequence[int]) -> Tensor:
    """Circular padding by at most the image size."""
    axes = [i for i, amounts in enumerate(zip(left, right, strict=True)) if any(amounts)]
    if len(axes) == 1:  # for any tensor; torch pads at most the last three axes of five
        axis = axes[0]
        dim, size = x.dim() - len(left) + axis, x.shape[axis - len(left)]
        return torch.cat((x.narrow(dim, size - left[axis], left[axis]), x, x.narrow(dim, 0, right[axis])), dim)
    return F.pad(x, _torch_padding(left, right), mode="circular")


def _fold(x: Tensor, left: Sequence[int], right: Sequence[int]) -> Tensor:
    """The adjoint of `_extend`: each piece of the margin is added to the one it was copied from."""
    first = x.dim() - len(left)
    axes = []  # for each axis: where centre, head and tail begin, where they belong in the centre, how long they are
    for a, b, size in zip(left, right, x.shape[first:], strict=True):
        n = size - a - b
        axes.append([(a, 0, n), (0, n - a, a), (a + n, 0, b)])
    y: Tensor | None = None
    for piece in product(*([part for part in axis if part[2]] for axis in axes)):  # the first is the centre
        source, target = x, y
        for dim, (begin, place, length) in enumerate(piece, first):
            source = source.narrow(dim, begin, length)
            target = None if target is None else target.narrow(dim, place, length)
        if target is None:
            y = source.clone(memory_format=torch.contiguous_format)
        else:
            target.add_(source)
    assert y is not None
    return y


class _Wrap(torch.autograd.Function):
    """`_extend`, or its adjoint `_fold`. Torch's derivative would copy the whole image once for every side."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, left: Sequence[int], right: Sequence[int], adjoint: bool) -> Tensor:
        ctx.left, ctx.right, ctx.adjoint = left, right, adjoint
        return (_fold if adjoint else _extend)(x, left, right)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _wrap(grad, ctx.left, ctx.right, not ctx.adjoint), None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        return (_fold if ctx.adjoint else _extend)(tangent, ctx.left, ctx.right)


def _wrap(x: Tensor, left: Sequence[int], right: Sequence[int], adjoint: bool) -> Tensor:
    if not any(left) and not any(right):
        return x
    axes = [(a, b, n - a - b if adjoint else n) for a, b, n in zip(left, right, x.shape[-len(left) :], strict=True)]
    if all(0 <= min(a, b) and max(a, b) <= n for a, b, n in axes):  # margins are copies of pieces of the image
        # Compilers and function transforms take the plain operators.
        recorded = x.requires_grad and torch.is_grad_enabled() and has_values(x)
        return _Wrap.apply(x, left, right, adjoint) if recorded else (_fold if adjoint else _extend)(x, left, right)
    for dim, (a, b, n) in enumerate(axes, x.dim() - len(left)):
        pixels = torch.arange(-a, n + b, device=x.device) % n  # of the circle, for each one of the padded axis
        if adjoint:
            x = x.new_zeros(*x.shape[:dim], n, *x.shape[dim + 1 :]).index_add(dim, pixels, x)
        else:
            x = x.index_select(dim, pixels)
    return x


def wrap(x: Tensor, left: Sequence[int], right: Sequence[int]) -> Tensor:
    """Circular padding by any amount, which may exceed the image or be negative."""
    return _wrap(x, left, right, adjoint=False)


@as_a_whole
def unwrap(x: Tensor, left: Sequence[int], right: Sequence[int]) -> Tensor:
    """The adjoint of `wrap`: pixels of the margins are added to those they were copied from."""
    return _wrap(x, left, right, adjoint=True)


def pad(x: Tensor, left: Sequence[int], right: Sequence[int], mode: str) -> Tensor:
    """Add pixels on both sides of each of the last axes."""
    return (wrap if mode == "circular" else _add_zeros)(x, left, right)


def tile(x: Tensor, strides: Sequence[int]) -> Tensor:
    """Extend images by zeros until the stride divides their size."""
    sizes = x.shape[-len(strides) :]
    return zero_extend(x, [tiled_size(n, s) - n for n, s in zip(sizes, strides, strict=True)])


def check_image(x: Tensor, dims: int, channels: int, name: str) -> None:
    """Reject what is not an image (or a batch of images) with these channels."""
    if x.dim() not in (dims + 1, dims + 2) or x.shape[-dims - 1] != channels or 0 in x.shape[-dims:]:
        sizes = ", ".join(["height", "width", "depth"][:dims] if dims > 1 else ["length"])
        raise ShapeError(
            f"{name} takes images of shape (batch, {channels}, {sizes}) or ({channels}, {sizes}), got {tuple(x.shape)}."
        )


def ahead_of_same(geometry: ConvGeometry, padding: Size | str, name: str) -> tuple[int, ...]:
    """How many pixels before those of "same" the windows begin, if the padding keeps the image size up to its stride.

    Integers place windows as torch does, around every s-th pixel; "same" pads the smaller half on the left. Integers
    that do not give `⌈size / stride⌉` outputs for every image size are refused.
    """
    if padding == "same":
        return (0,) * geometry.dims
    amount = padding if isinstance(padding, str) else to_tuple(padding, geometry.dims, "padding", minimum=0)
    if isinstance(amount, str) or any(2 * p != x - 1 for p, x in zip(amount, geometry.extent, strict=True)):
        raise GeometryError(
            f"{name} keeps the image, up to its stride: needs padding 'same', or integers with 2·padding = "
            f"dilation·(kernel_size − 1), got {amount} for a kernel of extent {geometry.extent}."
        )
    return tuple(map(sub, amount, Border.of(geometry, "same", "zeros").left))
