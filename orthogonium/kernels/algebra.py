"""Kernels as operators: composition ⊛, adjoint, identity, dilation, for any number of groups in 1-D, 2-D and 3-D.

Kernels have torch's layout `(out, in/groups, *size)` and act by cross-correlation, `(K ⋆ x)[i] = Σ_j K[j] x[i + j]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from orthogonium.errors import ShapeError

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
CONV_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def spatial_dims(kernel: Tensor) -> int:
    """Number of spatial axes of a kernel: 1, 2 or 3."""
    dims = kernel.dim() - 2
    if dims not in CONV:
        raise ShapeError(f"A kernel has shape (out, in/groups, *size) with 1 to 3 sizes, got {tuple(kernel.shape)}.")
    return dims


def block_conv(
    inner: Tensor,  # (c2, c1/g, *k)
    outer: Tensor,  # (c3, c2/g, *l)
    groups: int = 1,
) -> Tensor:  # (c3, c1/g, *(k+l-1))
    """Kernel of `outer ∘ inner`: applying the result equals applying `inner`, then `outer` (stride 1).

    With a strided outer convolution, the result has its stride.

    >>> inner, outer, x = torch.randn(4, 3, 3, 3), torch.randn(5, 4, 2, 2), torch.randn(1, 3, 8, 8)
    >>> composed = torch.conv2d(x, block_conv(inner, outer))
    >>> torch.testing.assert_close(composed, torch.conv2d(torch.conv2d(x, inner), outer), rtol=1e-4, atol=1e-4)
    """
    dims = spatial_dims(inner)
    if spatial_dims(outer) != dims or outer.shape[1] * groups != inner.shape[0] or outer.shape[0] % groups:
        raise ShapeError(
            f"block_conv: the outer kernel {tuple(outer.shape)} does not take what the inner kernel "
            f"{tuple(inner.shape)} gives, with groups={groups}."
        )
    if inner.device.type != "cpu":  # whose convolutions may be in TF32, by default
        return _multiply_taps(inner, outer, groups)
    # The taps convolve: correlate with the flipped outer kernel, with the input channels of `inner` as the batch.
    flipped = outer.flip(tuple(range(2, 2 + dims)))
    padding = [size - 1 for size in outer.shape[2:]]
    return CONV[dims](inner.transpose(0, 1), flipped, padding=padding, groups=groups).transpose(0, 1)


def _multiply_taps(inner: Tensor, outer: Tensor, groups: int) -> Tensor:
    """`block_conv` by one product of matrices: all taps of `outer` times all taps of `inner`, added where they meet."""
    dims = inner.dim() - 2
    outer = outer.unflatten(0, (groups, -1)).movedim(2, -1)  # (g, c3/g, *l, c2/g)
    inner = inner.unflatten(0, (groups, -1))  # (g, c2/g, c1/g, *k)
    x = torch.bmm(outer.flatten(1, -2), inner.flatten(2))
    x = x.view(*outer.shape[:-1], *inner.shape[2:])  # (g, c3/g, *l, c1/g, *k)
    for axis in range(dims):
        x = x.movedim((2, x.dim() - dims + axis), (-2, -1))
        a, b = x.shape[-2:]
        # Row i must move i places to the right: rows padded by a entries are read as rows shorter by one.
        x = F.pad(x, (0, a)).flatten(-2)[..., : a * (a + b - 1)].unflatten(-1, (a, a + b - 1)).sum(-2)
        x = x.movedim(-1, x.dim() - dims + axis)
    return x.flatten(0, 1)


def adjoint(kernel: Tensor, groups: int = 1) -> Tensor:  # (co, ci/g, *k) → (ci, co/g, *k)
    """Kernel of the adjoint of a stride-1 convolution: channels swapped, taps flipped.

    If the convolution pads ℓ on the left, its adjoint pads `k − 1 − ℓ`.
    """
    dims = spatial_dims(kernel)
    if groups < 1 or kernel.shape[0] % groups:
        raise ShapeError(f"adjoint: {kernel.shape[0]} output channels do not split into {groups} groups.")
    per_group = kernel.unflatten(0, (groups, -1)).transpose(1, 2)  # (g, ci/g, co/g, *k)
    return per_group.flip(tuple(range(3, 3 + dims))).flatten(0, 1)


def identity(
    channels: int,
    size: Sequence[int] = (1, 1),
    groups: int = 1,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:  # (channels, channels/g, *size)
    """Kernel that returns its input under left padding `(size − 1) // 2`."""
    if groups < 1 or channels % groups:
        raise ShapeError(f"identity: {channels} channels do not split into {groups} groups.")
    eye = torch.eye(channels // groups, dtype=dtype, device=device).repeat(groups, 1)
    around = [amount for k in reversed(size) for amount in ((k - 1) // 2, k // 2)]
    return F.pad(eye.view(*eye.shape, *[1] * len(size)), around)


def dilate(kernel: Tensor, dilation: Sequence[int]) -> Tensor:
    """The kernel with zeros between its taps that acts like `kernel` with this dilation."""
    sizes = [d * (k - 1) + 1 for k, d in zip(kernel.shape[2:], dilation, strict=True)]
    dilated = kernel.new_zeros(*kernel.shape[:2], *sizes)
    taps: tuple[Any, ...] = (..., *(slice(None, None, d) for d in dilation))
    dilated[taps] = kernel
    return dilated
