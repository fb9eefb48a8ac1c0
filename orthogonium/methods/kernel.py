"""What every method is: a differentiable function from raw parameters to a constrained kernel.

Kernels are mathematics only. What keeps, assigns and copies the weights they build is `layers/parametrization.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from orthogonium.errors import ConstraintError
from orthogonium.kernels import ConvGeometry

Device = torch.device | str | None


class Kernel(nn.Module):
    """Base of all methods. A module only for the sake of its orthogonalizers, which move with the layer.

    A kernel that can be applied without being built has `factors(*raw)`, too: Note [In turn] of `aoc.py`.
    """

    def initial(self, device: Device, dtype: torch.dtype) -> Tensor | tuple[Tensor, ...]:
        """Random raw parameters to start from."""
        raise NotImplementedError

    def build(self, *raw: Tensor) -> Tensor | tuple[Tensor, ...]:
        """The kernel of the raw parameters; for blocks with an activation inside, a tuple of kernels."""
        raise NotImplementedError

    def invert(self, weight: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Raw parameters that build `weight`, where the method has such a formula."""
        raise ConstraintError(
            f"{type(self).__name__} cannot recover its raw parameters from a weight. "
            "Load a state_dict, or remove the parametrization before assigning the weight."
        )


class ConvKernel(Kernel):
    """A method that builds the kernel of a convolution."""

    geometry: ConvGeometry
    trainable = True  # whether there is more than one such kernel
    smallest = 0.0  # what no singular value is below, on the infinite lattice

    @property
    def weight_geometry(self) -> ConvGeometry:
        """The geometry, with the size of the kernel that is built."""
        return self.geometry


class Kernels(Kernel):
    """A method that builds the kernels of a block `Sx + Cσ(Ax + b)`: A, C and, unless x is added as it is, S."""

    shapes: tuple[tuple[int, ...], ...]  # of the kernels
