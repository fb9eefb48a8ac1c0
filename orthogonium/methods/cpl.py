"""CPL kernels: `U = W/β` with a certified bound `β ≥ ‖W‖²`, for a step of descent on a convex potential.

Meunier, Delattre, Araujo, Allauzen (2022), "A dynamical system perspective for Lipschitz neural networks". The paper
estimates ‖W‖ by power iteration, from below and for one image size; here it is bounded from above, without state
(Note [Frequencies] of `kernels/frequency_bound.py`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from orthogonium.kernels import ConvGeometry
from orthogonium.kernels.dominance import check_steps
from orthogonium.kernels.frequency_bound import squared_norm_bound
from orthogonium.methods.kernel import Device
from orthogonium.methods.sll import ResidualKernels, divide, split_scale


class PotentialKernels(ResidualKernels):
    """Raw parameter: the kernel W `(inner, channels/g, *k)`. Each group has its own bound."""

    group_axes = (0,)

    def __init__(self, geometry: ConvGeometry, niter: int) -> None:
        super().__init__(geometry)
        check_steps(niter, "CPL", "Gram steps", least=0)
        self.niter = niter

    def initial(self, device: Device, dtype: torch.dtype) -> tuple[Tensor, ...]:
        w = torch.empty(self.geometry.weight_shape, device=device, dtype=dtype)
        return (nn.init.kaiming_uniform_(w, a=math.sqrt(5)),)

    def pair(self, *raw: Tensor) -> tuple[Tensor, Tensor]:
        """W and `W/β`; zero stays zero."""
        unit, scale = split_scale(raw[0], self.geometry.groups)
        beta = squared_norm_bound(unit, self.niter, self.geometry.groups).repeat_interleave(self.geometry.group_out)
        return raw[0], divide(unit, scale, beta)
