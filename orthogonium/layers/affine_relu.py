"""Activations as affine maps and one ReLU, which is all that network verifiers read.

Note [Residual form]
Each of these activations is `x + O relu(Ix + i) + o` with matrices that act on the channels:
- MaxMin, GroupSort(2): `max = a + relu(b − a)`, `min = b − relu(b − a)`;
- Abs: `x + 2 relu(−x)`;
- HouseHolder: `z − 2v relu(vᵀz)` on each pair of channels;
- NActivation: `x − 2 clamp(x, s, t)`, and `clamp(x, s, t) = s + relu(x − s) − relu(x − t)`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orthogonium.errors import ExportError
from orthogonium.kernels.algebra import CONV
from orthogonium.layers.activations import Abs, GroupSort, HouseHolder, MaxMin, NActivation

Affine = tuple[Tensor, Tensor, Tensor, Tensor]  # I (m, c), i (m,), O (c, m), o (c,)


class AffineReLU(nn.Module):
    """`x + O relu(Ix + i) + o` on an axis: 1×1 convolutions on images, dense layers on vectors. Note [Residual form].

    It has the constant of the activation it replaces, but its parts do not show this: certify before rewriting.
    """

    inner: Tensor
    inner_bias: Tensor
    outer: Tensor
    outer_bias: Tensor

    def __init__(self, affine: Affine, axis: int) -> None:
        super().__init__()
        for name, value in zip(("inner", "inner_bias", "outer", "outer_bias"), affine, strict=True):
            self.register_buffer(name, value)
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        if self.axis % x.dim() == x.dim() - 1:
            return x + F.linear(F.relu(F.linear(x, self.inner, self.inner_bias)), self.outer, self.outer_bias)
        dims = x.dim() - 2
        if self.axis % x.dim() != 1 or dims not in CONV:
            raise ExportError(
                f"AffineReLU acts on axis 1 of images or on the last axis: got axis {self.axis} of {tuple(x.shape)}."
            )
        ones = (1,) * dims
        y = CONV[dims](x, self.inner.view(*self.inner.shape, *ones), self.inner_bias)
        return x + CONV[dims](F.relu(y), self.outer.view(*self.outer.shape, *ones), self.outer_bias)

    def extra_repr(self) -> str:
        """Channels and units."""
        return f"{self.outer.shape[0]}, units={self.inner.shape[0]}"


def _pairs(first: Tensor, second: Tensor) -> Affine:  # rows of the identity
    """`max` at the first of each pair of channels, `min` at the second."""
    difference = second - first
    return difference, difference.new_zeros(len(difference)), -difference.mT, difference.new_zeros(first.shape[1])


@torch.no_grad()
def affine_relu(activation: nn.Module, channels: int, like: Tensor) -> AffineReLU | None:
    """The activation in this form, in the dtype of `like`; None if it has no such form."""
    eye = torch.eye(channels, dtype=like.dtype, device=like.device)
    zero = eye.new_zeros(channels)
    if isinstance(activation, MaxMin):
        return AffineReLU(_pairs(*eye.chunk(2)), activation.axis)
    if isinstance(activation, GroupSort) and activation.group_size == 2:
        return AffineReLU(_pairs(eye[1::2], eye[::2]), activation.axis)
    if isinstance(activation, Abs):
        return AffineReLU((-eye, zero, 2 * eye, zero), 1)
    if isinstance(activation, HouseHolder):
        half = activation.theta.double() / 2
        first, second = eye.chunk(2)
        v = half.sin().to(eye)[:, None] * first - half.cos().to(eye)[:, None] * second
        return AffineReLU((v, v.new_zeros(len(v)), -2 * v.mT, zero), activation.axis)
    if isinstance(activation, NActivation):
        low, high = activation.thresholds.aminmax(dim=1)
        inner = torch.cat((eye, eye))
        bias = -torch.cat((low, high)).to(eye)
        return AffineReLU((inner, bias, torch.cat((-2 * eye, 2 * eye), 1), -2 * low.to(eye)), activation.axis)
    return None
