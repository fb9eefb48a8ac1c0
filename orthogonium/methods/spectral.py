"""Matrices and kernels divided by a norm: by a certified bound on the spectral norm, or row by row by the Euclidean.

Delattre, Barthélemy, Araujo, Allauzen (2023), "Efficient bound of Lipschitz constant for convolutional layers by Gram
iteration". Kernels are bounded at the points of a grid of frequencies (Note [Frequencies] of
`kernels/frequency_bound.py`), strided ones as the stride-1 kernels of their phases (Note [Stride] of
`kernels/phases.py`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from orthogonium.errors import GeometryError
from orthogonium.kernels import ConvGeometry, identity
from orthogonium.kernels.dominance import check_steps
from orthogonium.kernels.frequency_bound import squared_norm_bound
from orthogonium.kernels.phases import stack_phases
from orthogonium.linalg import random_orthogonal, spectral_normalize, unit_norm
from orthogonium.methods.aol import central_tap
from orthogonium.methods.kernel import ConvKernel, Device, Kernel, unit_groups


class Matrix(Kernel):
    """Base class: the raw parameter is any matrix of the shape of the weight."""

    projects = True
    weight_shape: tuple[int, ...]

    def __init__(self, weight_shape: tuple[int, int]) -> None:
        super().__init__()
        self.weight_shape = weight_shape

    def initial(self, device: Device, dtype: torch.dtype) -> Tensor:
        return random_orthogonal(self.weight_shape, device, dtype)

    def invert(self, weight: Tensor) -> Tensor:
        return weight.clone()


class UnitRows(Matrix):
    """Each row has Euclidean norm 1, so each output is 1-Lipschitz by itself."""

    group_axes = ()

    def build(self, *raw: Tensor) -> Tensor:
        return unit_norm(raw[0], dim=-1)


class UnitBall(Matrix):
    """The spectral norm is at most 1, certified (Gram bound)."""

    group_axes = ()

    def __init__(self, weight_shape: tuple[int, int], niter: int) -> None:
        super().__init__(weight_shape)
        self.niter = niter

    def build(self, *raw: Tensor) -> Tensor:
        return spectral_normalize(raw[0], self.niter)


class SpectralKernel(ConvKernel):
    """A kernel divided by a certified bound on its norm, each group by its own. The raw parameter has its shape.

    The bound is at most `1.0080^axes · min(out, in·∏e)^(2^-(niter+2))` times the norm, for effective strides e and
    counting axes with more than one tap. With `residual` the kernel `I + K` is divided, where K is the raw parameter:
    the identity sits where "same" padding places it.
    """

    projects = True
    group_axes = (0,)

    def __init__(self, geometry: ConvGeometry, niter: int, residual: bool = False) -> None:
        super().__init__()
        check_steps(niter, "Spectral", "Gram steps", least=0)
        odd = all(k % 2 for k in geometry.kernel_size)
        if residual and (geometry.in_channels != geometry.out_channels or geometry.is_strided or not odd):
            raise GeometryError(
                "residual=True adds the identity, which needs as many outputs as inputs, stride 1 and an odd kernel: "
                f"got {geometry.in_channels}→{geometry.out_channels} channels, stride {geometry.stride} and kernel "
                f"{geometry.kernel_size}."
            )
        self.geometry, self.niter, self.residual = geometry, niter, residual

    def initial(self, device: Device, dtype: torch.dtype) -> Tensor:
        """An orthogonal tap in the middle plus a little noise; with `residual`, noise alone."""
        g = self.geometry
        if self.residual:
            spread = 0.5 / math.sqrt(g.group_in * math.prod(g.kernel_size))
            return (torch.randn(g.weight_shape, device=device, dtype=torch.float32) * spread).to(dtype)
        return central_tap(g, device, dtype)

    def invert(self, weight: Tensor) -> Tensor:
        """The weight itself, without the identity."""
        return weight - self._identity(weight) if self.residual else weight.clone()

    def _identity(self, like: Tensor) -> Tensor:
        g = self.geometry
        return identity(g.in_channels, g.kernel_size, g.groups, like.dtype, like.device)

    def build(self, *raw: Tensor) -> Tensor:
        """Divide by the certified bound; zero stays zero."""
        g = self.geometry
        kernel = raw[0] + self._identity(raw[0]) if self.residual else raw[0]
        unit, largest = unit_groups(kernel, g.groups)
        stacked = stack_phases(unit, g.effective_stride).flatten(0, 1)
        squared = squared_norm_bound(stacked, self.niter, g.groups, oversampling=12)
        bound = squared.sqrt().view_as(largest)
        return (unit / torch.where(largest > 0, bound, torch.ones_like(bound))).flatten(0, 1)
