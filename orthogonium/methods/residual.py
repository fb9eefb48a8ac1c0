"""Kernels of residual blocks `x − 2Uᵀσ(Wx + b)`, alone or between two orthogonal convolutions.

Note [Residual blocks]
For slopes D in [0, 1] and `U = T⁻¹W` with `WWᵀ ⪯ T` diagonal, the Jacobian `J = I − 2WᵀT⁻¹DW` obeys
`‖Jv‖² ≤ ‖v‖² − 4uᵀT⁻¹D(I − D)u ≤ ‖v‖²`, `u = Wv`. Zero padding crops the inner image, which is one more slope of 0.
The methods differ in T only: row sums (SLL), the identity for an orthogonal W, a bound of `‖W‖²` (CPL).

Note [Fusion]
`K_post ∘ block ∘ K_pre` is `Sx − 2Cσ(Ax + b)` with the kernels `A = W ⊛ K_pre`, `C = K_post ⊛ Uᵀ` and the skip
`S = K_post ⊛ K_pre`, composed once per step. A stride of K_post becomes the stride of C and S.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from orthogonium.kernels import ConvGeometry, adjoint, block_conv
from orthogonium.linalg import OrthoParams
from orthogonium.methods.aoc import OrthogonalKernel
from orthogonium.methods.packing import Device, PackedConstraint, Packing


def split_scale(w: Tensor) -> tuple[Tensor, Tensor]:
    """`(W/a, a)` with the largest absolute entry a (or `smallest_scale`), a constant for the gradient.

    T is quadratic in W and may leave the range of its dtype where `T⁻¹W` does not; that of `W/a` stays within.
    """
    scale = w.detach().abs().amax().clamp_min(smallest_scale(w.dtype))
    return w / scale, scale


def smallest_scale(dtype: torch.dtype) -> float:
    """Below it the inverse square, by which the gradient of `T⁻¹W` grows, leaves the range of the dtype."""
    return 4 * math.sqrt(torch.finfo(dtype).tiny)


def divide(unit: Tensor, scale: Tensor, t: Tensor) -> Tensor:  # (inner, channels/g, *k), (), (inner,)
    """`T⁻¹W` for `W = a·unit` and `T = a²·diag(t)`; where it would leave the range of its dtype, T is made larger."""
    smallest = smallest_scale(unit.dtype)
    return unit / (scale * t).clamp_min(smallest).view(-1, *[1] * (unit.dim() - 1))


class ResidualKernels(PackedConstraint):
    """Base: raw parameters → `(W, −2Uᵀ)`, packed. Subclasses give `pair`; W is stride 1 (Note [Residual blocks])."""

    def __init__(self, geometry: ConvGeometry) -> None:
        super().__init__()
        self.geometry = geometry
        inner, channels, groups = geometry.out_channels, geometry.in_channels, geometry.groups
        self.packing = Packing(geometry.weight_shape, (channels, inner // groups, *geometry.kernel_size))

    def pair(self, *raw: Tensor) -> tuple[Tensor, Tensor]:
        """W and U, both `(inner, channels/g, *k)`."""
        raise NotImplementedError

    def build(self, *raw: Tensor) -> Tensor:
        """The packed kernels of the inner and of the outer convolution."""
        w, u = self.pair(*raw)
        return self.packing.pack(w, -2 * adjoint(u, self.geometry.groups))


class OrthogonalResidual(ResidualKernels):
    """`U = W`, an AOC kernel: `T = I`."""

    def __init__(self, geometry: ConvGeometry, ortho_params: OrthoParams) -> None:
        super().__init__(geometry)
        self.kernel = OrthogonalKernel(geometry, ortho_params)

    def initial(self, device: Device, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """A random orthogonal kernel."""
        return self.kernel.initial(device, dtype)

    def pair(self, *raw: Tensor) -> tuple[Tensor, Tensor]:
        """The kernel, twice."""
        w = self.kernel.build(*raw)
        return w, w


class FusedKernels(PackedConstraint):
    """`(A, −2C, S)` of a residual block between orthogonal convolutions, packed (Note [Fusion])."""

    def __init__(
        self,
        residual: ResidualKernels,
        pre: OrthogonalKernel | None,  # in → channels, stride 1; None for the identity
        post: OrthogonalKernel,  # channels → out, may stride
    ) -> None:
        super().__init__()
        self.residual, self.pre, self.post = residual, pre, post
        core, last = residual.geometry, post.geometry
        first_in, first_size = (
            (core.in_channels, (1,) * core.dims)
            if pre is None
            else (pre.geometry.in_channels, pre.geometry.kernel_size)
        )
        groups = core.groups

        def shape(out: int, inputs: int, *sizes: tuple[int, ...]) -> tuple[int, ...]:
            return (out, inputs // groups, *(sum(axis) - len(sizes) + 1 for axis in zip(*sizes, strict=True)))

        self.packing = Packing(
            shape(core.out_channels, first_in, first_size, core.kernel_size),
            shape(last.out_channels, core.out_channels, core.kernel_size, last.kernel_size),
            shape(last.out_channels, first_in, first_size, last.kernel_size),
        )

    def initial(self, device: Device, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Those of the parts: pre, post, block."""
        pre = () if self.pre is None else self.pre.initial(device, dtype)
        post = self.post.initial(device, dtype) if self.post.trainable else ()
        return (*pre, *post, *self.residual.initial(device, dtype))

    def parts(self, *raw: Tensor) -> tuple[Tensor | None, Tensor, Tensor, Tensor]:
        """K_pre (None for the identity), W, U and K_post."""
        first = 0 if self.pre is None else len(self.pre.shapes)
        last = first + len(self.post.shapes) * self.post.trainable
        # With one channel per group K_post may be a constant: its raw parameters are empty, and not among ours.
        empty = [raw[-1].new_empty(shape) for shape in self.post.shapes]
        post = self.post.build(*(raw[first:last] if self.post.trainable else empty))
        pre = None if self.pre is None else self.pre.build(*raw[:first])
        return pre, *self.residual.pair(*raw[last:]), post

    def build(self, *raw: Tensor) -> Tensor:
        """Compose the three kernels."""
        groups = self.residual.geometry.groups
        pre, w, u, post = self.parts(*raw)
        outer = block_conv(-2 * adjoint(u, groups), post, groups)
        if pre is None:
            return self.packing.pack(w, outer, post)
        return self.packing.pack(block_conv(pre, w, groups), outer, block_conv(pre, post, groups))
