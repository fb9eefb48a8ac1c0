"""Sandwich kernels: `√2 AᵀΨ σ(√2 Ψ⁻¹Bx + b)` with `AAᵀ + BBᵀ = I` and `Ψ = diag(e^d)`.

Wang, Manchester (2023), "Direct parameterization of Lipschitz-bounded deep networks"; with an explicit orthogonal
kernel in place of the Fourier domain as proposed by Boissin et al. (2025), so the cost of the kernels does not depend
on the image. Unlike in the algorithm printed there, Ψ⁻¹ comes before the activation and the adjoint of A after it.

Note [Sandwich]
For `w = ΨΔz`, slopes in [0, 1] give `‖w‖² ≤ √2 wᵀBΔx`, hence `‖Δx‖² − ‖Δy‖² ≥ ‖Δx − √2Bᵀw‖² ≥ 0`. Masks (zero padding)
are slopes of 0.

Note [Strided sandwich]
Only B may stride: A acts on the coarse grid, on which an image of p channels has `p·∏f` channels, `f = min(s, k)`
pixels along each axis of a tile. So `[A B′]` is one row-orthonormal kernel of size `⌊k/s⌋` (at least 1) from
`q + p·∏f` to q channels, and B is B′ after a map from tiles of pixels to channels: the mere rearrangement if
`k = s·⌊k/s⌋` or `k < s`, otherwise an orthogonal convolution of stride s and size `s + k mod s`, so B reaches k
pixels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from orthogonium.kernels import ConvGeometry, adjoint, block_conv, dilate
from orthogonium.kernels.phases import unstack_phases
from orthogonium.linalg import OrthoParams
from orthogonium.methods.aoc import OrthogonalKernel
from orthogonium.methods.kernel import Device, Kernels


class SandwichKernels(Kernels):
    """`(√2 Ψ⁻¹B, √2 AᵀΨ)` of a geometry. Raw parameters: those of the kernels, then d `(q,)` if `scaled`."""

    group_axes = (0,)

    def __init__(self, geometry: ConvGeometry, ortho_params: OrthoParams, scaled: bool) -> None:
        super().__init__()
        self.geometry, self.scaled = geometry, scaled
        p, q, dims = geometry.in_channels, geometry.out_channels, geometry.dims
        axes = list(zip(geometry.kernel_size, geometry.stride, strict=True))
        self.tile = tuple(min(k, s) for k, s in axes)  # f of Note [Strided sandwich]
        self.coarse_size = tuple(max(k // s, 1) for k, s in axes)
        lifted = p * math.prod(self.tile)
        coarse = ConvGeometry.of(dims, q + lifted, q, self.coarse_size, 1, 1, geometry.groups)
        self.pair = OrthogonalKernel(coarse, ortho_params)
        self.lift: OrthogonalKernel | None = None
        if any(k > s and k % s for k, s in axes):
            size = tuple(f + (k % s if k > s else 0) for f, (k, s) in zip(self.tile, axes, strict=True))
            lift = ConvGeometry.of(dims, p, lifted, size, geometry.stride, 1, geometry.groups)
            self.lift = OrthogonalKernel(lift, ortho_params)
        self.shapes = geometry.weight_shape, (q, q // geometry.groups, *self.coarse_size)

    def initial(self, device: Device, dtype: torch.dtype) -> tuple[Tensor, ...]:
        lift = () if self.lift is None else self.lift.initial(device, dtype)
        d = (torch.zeros(self.geometry.out_channels, device=device, dtype=dtype),) if self.scaled else ()
        return (*self.pair.initial(device, dtype), *lift, *d)

    def guess(self, weight: Tensor) -> tuple[Tensor, ...]:
        """Kernels of one tile: `A = I/√2` and B in the direction of the weight, which is exact for a rotation."""
        shape = self.pair.geometry.weight_shape
        g = self.geometry
        fits = weight.shape[:2] == g.weight_shape[:2] and weight.numel() == math.prod(g.weight_shape)  # or is a matrix
        if self.lift is not None or not fits or math.prod(shape[2:]) > 1:
            return super().guess(weight)
        w = weight.double().flatten(1)  # channels of a tile, as `unstack_phases` has them
        u, _, vh = torch.linalg.svd(w.unflatten(0, (g.groups, -1)), full_matrices=False)
        identity = torch.eye(g.group_out, dtype=w.dtype, device=w.device).expand(g.groups, -1, -1)
        pair = torch.cat((identity, u @ vh), 2).mul(math.sqrt(0.5)).reshape(shape)
        return (*self.pair.invert(pair), *([w.new_zeros(g.out_channels)] if self.scaled else []))

    def build(self, *raw: Tensor) -> tuple[Tensor, ...]:
        """Split one orthogonal kernel into A and B, and scale them."""
        g, count = self.geometry, len(self.pair.raw_shapes)
        sizes = [g.group_out, self.pair.geometry.group_in - g.group_out]
        a, b = self.pair.build(*raw[:count]).split(sizes, 1)  # (q, q/g, *coarse), (q, p/g·∏f, *coarse)
        if self.lift is None:
            b = unstack_phases(b[None], self.tile)[0]  # channels of a tile back to its pixels
        else:
            lift = self.lift.build(*raw[count : count + len(self.lift.raw_shapes)])
            b = block_conv(lift, dilate(b, g.stride), g.groups)
        root = math.sqrt(2)
        if not self.scaled:
            return root * b, adjoint(root * a, g.groups)
        # Bounded to e^±5: beyond that, rounding would dominate, and one large step would end in infinities.
        psi = (5 * torch.tanh(raw[-1] / 5)).exp().view(-1, *[1] * (g.dims + 1))
        return root / psi * b, adjoint(root * psi * a, g.groups)
