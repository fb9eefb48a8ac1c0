"""Cayley transform at each frequency of the image.

Trockman, Kolter (2021), "Orthogonalizing convolutional layers with the Cayley transform". The transform of `W = [U; V]`
with `A = U − Uᴴ + VᴴV` is `[(I − A)(I + A)⁻¹; −2V(I + A)⁻¹]`; wide matrices are transposed first. It depends on the
scale of W, which is a separate parameter: `α·W/‖W‖`. Eigenvalues −1 are approached, not reached.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from orthogonium.linalg.rotations import cayley
from orthogonium.methods.circle import CircleKernel, Grid, symbol
from orthogonium.methods.kernel import Device, Raw, unit_groups


class CayleyKernel(CircleKernel):
    """Raw parameters: taps `(out, in/g, *k)`, of any scale, and the scale α `(g,)` of each group."""

    group_axes = (0,)

    def initial(self, device: Device, dtype: torch.dtype) -> Raw:
        """Uniform taps as in `nn.Conv2d`, and their norms."""
        g = self.geometry
        wide = torch.promote_types(dtype, torch.float32)
        bound = 1 / math.sqrt(g.group_in * math.prod(g.kernel_size))
        taps = torch.empty(g.weight_shape, device=device, dtype=wide).uniform_(-bound, bound)
        return taps.to(dtype), torch.linalg.vector_norm(taps.unflatten(0, (g.groups, -1)).flatten(1), dim=1).to(dtype)

    def unitary(self, grid: Grid, *raw: Tensor) -> Tensor:
        g = self.geometry
        taps, _ = unit_groups(raw[0], g.groups)
        norm = torch.linalg.vector_norm(taps.flatten(1), dim=1)
        scale = raw[1] / torch.where(norm > 0, norm, torch.ones_like(norm))
        scaled = taps * scale.view(-1, *[1] * (taps.dim() - 1))
        return cayley(symbol(scaled, grid, g.stride))
