"""Blocks with an activation inside, `y = Sx + Cσ(Ax + b)`, that are 1-Lipschitz as a whole.

Their kernels A, C (and S, if the skip connection is not the identity) are built together, once per training step and
once in eval, and stored one after another in the vector `weight`.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orthogonium.annotations import as_int
from orthogonium.errors import ParameterError, ShapeError
from orthogonium.layers.guarantee import Guarantee
from orthogonium.layers.parametrization import Constrained, Packing, constrain
from orthogonium.layers.slopes import Activation, bounded_slopes
from orthogonium.layers.whole import as_a_whole
from orthogonium.methods.kernel import Device, Kernels


class LipschitzBlock(Constrained):
    """Base of the blocks: bias, activation and packed `weight`."""

    weight: Tensor
    bias: Tensor | None
    residual = True  # whether x is added if there is no S

    def __init__(self, activation: Activation) -> None:
        super().__init__()
        self.activation = bounded_slopes(activation, type(self).__name__)

    def constrain_weight(
        self, kernels: Kernels, bias: bool, device: Device, dtype: torch.dtype | None, lipschitz: float
    ) -> None:
        """Parametrize `weight`, and add the bias of the inner units, uniform within 1/√fan_in."""
        self.packing = Packing(*kernels.shapes)
        dtype = dtype or torch.get_default_dtype()
        self.weight = nn.Parameter(torch.empty(sum(self.packing.sizes), device=device, dtype=dtype))
        constrain(self, kernels, lipschitz)
        inner, *fan_in = self.packing.shapes[0]
        self.bias = None
        if bias:
            bound = 1 / math.sqrt(math.prod(fan_in))
            self.bias = nn.Parameter(torch.empty(inner, device=device, dtype=dtype).uniform_(-bound, bound))

    @property
    def guarantee(self) -> Guarantee:
        """`lipschitz`-Lipschitz."""
        return Guarantee("lipschitz", self.lipschitz)

    def skip(self, x: Tensor) -> Tensor:
        """The output of a skip connection without a kernel."""
        return x if self.lipschitz == 1 else self.lipschitz * x


class DenseBlock(LipschitzBlock):
    """Block on vectors: kernels have size 1."""

    in_features: int

    @as_a_whole
    def forward(self, x: Tensor) -> Tensor:  # (..., in) → (..., out)
        """Apply the block to vectors."""
        if x.shape[-1:] != (self.in_features,):
            raise ShapeError(
                f"{type(self).__name__} takes vectors (..., {self.in_features}), got shape {tuple(x.shape)}."
            )
        inner, outer, *skip = (kernel.flatten(1) for kernel in self.packing.unpack(self.weight))
        y = F.linear(self.activation(F.linear(x, inner, self.bias)), outer)
        if skip:
            return y + F.linear(x, skip[0])
        return y + self.skip(x) if self.residual else y


def check_sizes(name: str, **sizes: int) -> None:
    """Reject sizes that are not positive integers."""
    for key, size in sizes.items():
        if isinstance(size, bool) or not isinstance(as_int(size), int) or size < 1:
            raise ParameterError(f"{name}: {key} must be a positive integer, got {size!r}.")
