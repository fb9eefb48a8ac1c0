"""How constrained convolutions meet the border of an image, and the adjoints of it for transposed ones.

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
from dataclasses import dataclass
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from orthogonium.errors import GeometryError, ShapeError
from orthogonium.kernels.geometry import ConvGeometry, Size, to_tuple

PADDING_MODES = ("zeros", "circular")


@dataclass(frozen=True)
class Border:
    """The padding of a convolution: a mode, and the pixels added left and right on each axis."""

    mode: Literal["zeros", "circular"]
    left: tuple[int, ...]
    right: tuple[int, ...]
    same: bool

    @classmethod
    def of(cls, geometry: ConvGeometry, padding: Size | str, mode: str) -> Border:
        """Validate and resolve the padding arguments of a layer."""
        if mode not in PADDING_MODES:
            reason = (
                f"{mode!r} repeats border pixels, which multiplies the norm by up to √2 per axis, so that no kernel keeps "
                "the guarantee on every image. "
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
            return cls(mode, left, tuple(t - v for t, v in zip(total, left, strict=True)), padding == "same")
        amount = to_tuple(padding, geometry.dims, "padding", minimum=0)
        if mode == "circular":
            for p, extent in zip(amount, geometry.extent, strict=True):
                if 2 * p >= extent:
                    raise GeometryError(
                        f"Circular padding of {amount} repeats windows of extent {geometry.extent} (kernel "
                        f"{geometry.kernel_size}, dilation {geometry.dilation}), so that the layer would expand: needs "
                        "2·padding < dilation·(kernel_size − 1) + 1 on every axis. Use padding='same'."
                    )
        return cls(mode, amount, amount, False)

    def covers(self, geometry: ConvGeometry) -> bool:
        """Whether every window of a circular image is there, so that an orthogonal kernel gives an orthogonal operator."""
        axes = zip(self.left, self.right, geometry.extent, geometry.stride, strict=True)
        return self.mode == "circular" and all(a + b >= x - s for a, b, x, s in axes)


def tiled_size(size: int, stride: int) -> int:
    """`N = s⌈n/s⌉` of Note [Circular padding and stride]."""
    return -(-size // stride) * stride


def _torch_padding(left: Sequence[int], right: Sequence[int]) -> list[int]:
    """Pairs for `F.pad`, which counts axes from the last."""
    return [p for pair in reversed(list(zip(left, right, strict=True))) for p in pair]


def zero_extend(x: Tensor, left: Sequence[int], right: Sequence[int]) -> Tensor:
    """Zeros on both sides of each of the last axes; negative amounts cut."""
    return F.pad(x, _torch_padding(left, right)) if any(left) or any(right) else x


def wrap(x: Tensor, left: Sequence[int], right: Sequence[int]) -> Tensor:
    """Circular padding by any amount, also by more than the image."""
    sizes = x.shape[-len(left) :]
    if all(max(a, b) <= n for a, b, n in zip(left, right, sizes, strict=True)):
        return F.pad(x, _torch_padding(left, right), mode="circular") if any(left) or any(right) else x
    for axis, (a, b, n) in enumerate(zip(left, right, sizes, strict=True)):
        index = torch.arange(-a, n + b, device=x.device) % n
        x = x.index_select(x.dim() - len(left) + axis, index)
    return x


def unwrap(x: Tensor, left: Sequence[int], right: Sequence[int]) -> Tensor:
    """The adjoint of `wrap`: pixels of the margins are added to those they were copied from."""
    for axis, (a, b) in enumerate(zip(left, right, strict=True)):
        if a == b == 0:
            continue
        dim = x.dim() - len(left) + axis
        n = x.shape[dim] - a - b
        if max(a, b) <= n:
            head, centre, tail = x.split([a, n, b], dim)
            x = (
                centre
                + F.pad(head.transpose(dim, -1), (n - a, 0)).transpose(dim, -1)
                + F.pad(tail.transpose(dim, -1), (0, n - b)).transpose(dim, -1)
            )
        else:
            index = torch.arange(-a, n + b, device=x.device) % n
            x = x.new_zeros(*x.shape[:dim], n, *x.shape[dim + 1 :]).index_add(dim, index, x)
    return x


def check_image(x: Tensor, dims: int, channels: int, name: str) -> None:
    """Reject what is not an image (or a batch of images) with these channels."""
    if x.dim() not in (dims + 1, dims + 2) or x.shape[-dims - 1] != channels or 0 in x.shape[-dims:]:
        sizes = ", ".join(["height", "width", "depth"][:dims] if dims > 1 else ["length"])
        raise ShapeError(
            f"{name} takes images of shape (batch, {channels}, {sizes}) or ({channels}, {sizes}), got {tuple(x.shape)}."
        )
