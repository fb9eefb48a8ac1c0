"""Functions multiplied by a constant, so that they are 1-Lipschitz."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Scaled(nn.Module):
    """`factor · fn(unit · x) / unit`: a module used in other units than it was made for.

    For functions with `fn(ux) = u fn(x)` the unit does not matter and is 1. Both numbers depend on the weights that a
    conversion kept, so they are part of the state.
    """

    def __init__(self, fn: nn.Module, factor: float = 1.0, unit: float = 1.0) -> None:
        super().__init__()
        self.fn, self.factor, self.unit = fn, factor, unit

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function in its own units, and scale what it gives."""
        y = self.fn(x if self.unit == 1 else x * self.unit)
        scale = self.factor / self.unit
        return y if scale == 1 else y * scale

    def get_extra_state(self) -> Tensor:
        """The two numbers as a tensor, which every format can save."""
        return torch.tensor([self.factor, self.unit], dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Restore the two numbers of a saved network."""
        self.factor, self.unit = state.tolist()

    def extra_repr(self) -> str:
        """The factor, and the unit unless it is 1."""
        return f"factor={self.factor:.6g}" + ("" if self.unit == 1 else f", unit={self.unit:.6g}")
