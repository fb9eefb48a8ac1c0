"""Kernels of residual blocks `x − 2Uᵀσ(Wx + b)`; for SLL, `U = T⁻¹W` with the weighted row sums of AOL as T.

Araujo, Havens, Delattre, Allauzen, Hu (2023), "A unified algebraic perspective on Lipschitz neural networks". The
weights `e^q` of the row sums are trained: they appear on both axes; on only one they would cancel. As in multi-step
AOL, further steps make T smaller.

Note [Residual blocks]
For slopes D in [0, 1] and `U = T⁻¹W` with `WWᵀ ⪯ T` diagonal, the Jacobian `J = I − 2WᵀT⁻¹DW` obeys
`‖Jv‖² ≤ ‖v‖² − 4uᵀT⁻¹D(I − D)u ≤ ‖v‖²`, `u = Wv`. Zero padding crops the inner image, which is one more slope of 0.
The methods only differ in T: row sums (SLL), the identity for an orthogonal W, a bound on `‖W‖²` (CPL).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from orthogonium.kernels import ConvGeometry, adjoint
from orthogonium.kernels.dominance import check_steps, gram_diagonal
from orthogonium.linalg import OrthoParams
from orthogonium.methods.aoc import OrthogonalKernel
from orthogonium.methods.kernel import Device, Kernels


def split_scale(w: Tensor, groups: int) -> tuple[Tensor, Tensor]:  # (inner, channels/g, *k) → the same, (inner,)
    """`(W/a, a)` with the largest absolute entry a of each group (or `smallest_scale`), a constant for the gradient.

    T is quadratic in W and may leave the range of its dtype even if `T⁻¹W` does not; the T of `W/a` stays in range.
    """
    largest = w.detach().reshape(groups, -1).abs().amax(1).clamp_min(smallest_scale(w.dtype))
    scale = largest.repeat_interleave(w.shape[0] // groups)
    return w / scale.view(-1, *[1] * (w.dim() - 1)), scale


def smallest_scale(dtype: torch.dtype) -> float:
    """The scale below which the inverse square, with which the gradient of `T⁻¹W` grows, overflows the dtype."""
    return 4 * math.sqrt(torch.finfo(dtype).tiny)


def divide(unit: Tensor, scale: Tensor, t: Tensor) -> Tensor:  # (inner, channels/g, *k), 2 × (inner,)
    """`T⁻¹W` for `W = a·unit` and `T = a²·diag(t)`; if it would leave the range of its dtype, T is made larger."""
    smallest = smallest_scale(unit.dtype)
    return unit / (scale * t).clamp_min(smallest).view(-1, *[1] * (unit.dim() - 1))


class ResidualKernels(Kernels):
    """Base class: raw parameters → `(W, −2Uᵀ)`. Subclasses define `pair`; W has stride 1 (Note [Residual blocks])."""

    def __init__(self, geometry: ConvGeometry) -> None:
        super().__init__()
        self.geometry = geometry
        self.shapes = geometry.weight_shape, geometry.adjoint().weight_shape

    def pair(self, *raw: Tensor) -> tuple[Tensor, Tensor]:
        """W and U, both `(inner, channels/g, *k)`."""
        raise NotImplementedError

    def build(self, *raw: Tensor) -> tuple[Tensor, ...]:
        """The kernels of the inner and of the outer convolution."""
        w, u = self.pair(*raw)
        return w, -2 * adjoint(u, self.geometry.groups)


class SDPKernels(ResidualKernels):
    """Raw parameters: the kernel W `(inner, channels/g, *k)`, and q `(inner,)` if a group has more than one unit."""

    group_axes = (0,)

    def __init__(self, geometry: ConvGeometry, niter: int = 1) -> None:
        super().__init__(geometry)
        check_steps(niter, "SLL")
        self.niter = niter

    def initial(self, device: Device, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Xavier normal W, `q = 0`."""
        w = nn.init.xavier_normal_(torch.empty(self.geometry.weight_shape, device=device, dtype=dtype))
        weighted = self.geometry.group_out > 1  # else q cancels
        return (w, torch.zeros(self.geometry.out_channels, device=device, dtype=dtype)) if weighted else (w,)

    def pair(self, *raw: Tensor) -> tuple[Tensor, Tensor]:
        w, q = raw[0], raw[1] if len(raw) > 1 else None
        unit, scale = split_scale(w, self.geometry.groups)
        t = gram_diagonal(unit, q, self.niter, self.geometry.groups)
        return w, divide(unit, scale, t)


class OrthogonalResidual(ResidualKernels):
    """`U = W`, an AOC kernel: `T = I`."""

    group_axes = (0,)

    def __init__(self, geometry: ConvGeometry, ortho_params: OrthoParams) -> None:
        super().__init__(geometry)
        self.orthogonal = OrthogonalKernel(geometry, ortho_params)

    def initial(self, device: Device, dtype: torch.dtype) -> tuple[Tensor, ...]:
        return self.orthogonal.initial(device, dtype)

    def pair(self, *raw: Tensor) -> tuple[Tensor, Tensor]:
        w = self.orthogonal.build(*raw)
        return w, w
