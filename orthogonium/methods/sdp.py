"""SLL kernels: `U = T⁻¹W` with the weighted row sums of AOL as T.

Araujo, Havens, Delattre, Allauzen, Hu (2023), "A unified algebraic perspective on Lipschitz neural networks". The
weights `e^q` of the row sums train: they stand on both axes, not on one where they would cancel. As in multi-step AOL,
further steps make T smaller.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from orthogonium.kernels import ConvGeometry
from orthogonium.methods.aol import check_steps, gram_diagonal
from orthogonium.methods.packing import Device
from orthogonium.methods.residual import ResidualKernels, divide, split_scale


class SDPKernels(ResidualKernels):
    """Raw parameters: the kernel W `(inner, channels/g, *k)`, and q `(inner,)` if a group has more than one unit."""

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
        """W and `T⁻¹W`."""
        w, q = raw[0], raw[1] if len(raw) > 1 else None
        unit, scale = split_scale(w)
        t = gram_diagonal(unit, q, self.niter, self.geometry.groups)
        return w, divide(unit, scale, t)
