"""Circular shifts of channels mix space without a convolution. A permutation of the entries, hence an isometry."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from orthogonium.errors import ParameterError, ShapeError
from orthogonium.layers.guarantee import Guarantee
from orthogonium.layers.inversion import check_as_written


class ChannelShift(nn.Module):
    """Shifts parts of the channels of an image by some pixels, one part in each direction, wrapping at the border.

    The channels are cut into `2·axes + 1` parts, equal except for the last one, which gets the rest and stays in place:
    along each spatial axis one part moves forwards and one backwards. Sequences and volumes work as well. Wu et al.,
    "Shift: a zero FLOP, zero parameter alternative to spatial convolutions" (2018), with a border that loses nothing.

    Guarantee: a permutation; `inverse()` undoes it.

    Args:
        pixels: shift in pixels; negative for the opposite directions.

    >>> from orthogonium.layers.channel_shift import ChannelShift
    >>> ChannelShift()(torch.tensor([[[1, 2, 3], [1, 2, 3], [1, 2, 3]]]))
    tensor([[[3, 1, 2],
             [2, 3, 1],
             [1, 2, 3]]])
    """

    guarantee = Guarantee("orthogonal")

    def __init__(self, pixels: int = 1) -> None:
        super().__init__()
        if not isinstance(pixels, int) or pixels == 0:
            raise ParameterError(f"ChannelShift moves channels by a whole number of pixels, not 0: got {pixels!r}.")
        self.pixels = pixels

    def inverse(self) -> ChannelShift:
        """The layer that shifts back."""
        check_as_written(self, "inverse")
        return ChannelShift(-self.pixels)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`, (n, c, …)."""
        axes = range(2, x.dim())
        if not axes or x.shape[1] < 2 * len(axes):
            raise ShapeError(
                "ChannelShift needs inputs (n, c, …) with a spatial axis and at least two channels for each: got "
                f"{tuple(x.shape)}."
            )
        share = x.shape[1] // (2 * len(axes) + 1) or 1
        moves = [(step, axis) for axis in axes for step in (self.pixels, -self.pixels)]
        *moved, kept = x.split([share] * len(moves) + [x.shape[1] - share * len(moves)], dim=1)
        rolled = [part.roll(step, axis) for part, (step, axis) in zip(moved, moves, strict=True)]
        return torch.cat([*rolled, kept], dim=1)

    def extra_repr(self) -> str:
        """The shift."""
        return f"{self.pixels}"
