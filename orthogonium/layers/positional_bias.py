"""A trainable bias for each pixel and channel: tells translation-invariant layers where they are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from orthogonium.errors import ParameterError, ShapeError
from orthogonium.layers.guarantee import Guarantee


class PositionalBias(nn.Module):
    """`x + b`, with an entry of b for each entry of a sample; b starts at 0 and is for one image size.

    Guarantee: a translation, hence an isometry.

    Args:
        shape: shape of a sample, such as (channels, height, width).
        device: where b lives.
        dtype: data type of b.

    >>> from orthogonium.layers.positional_bias import PositionalBias
    >>> PositionalBias((8, 4, 4))(torch.zeros(2, 8, 4, 4)).shape
    torch.Size([2, 8, 4, 4])
    """

    guarantee = Guarantee("orthogonal", note="of the Jacobian, the identity")

    def __init__(
        self,
        shape: Sequence[int],
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.shape = tuple(shape)
        if not self.shape or min(self.shape) < 1:
            raise ParameterError(f"PositionalBias needs the shape of a sample, of positive sizes: got {self.shape}.")
        self.bias = nn.Parameter(torch.zeros(self.shape, device=device, dtype=dtype))

    def reset_parameters(self) -> None:
        """Set b to 0."""
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`, (n, *shape)."""
        if x.shape[1:] != self.shape:
            raise ShapeError(
                f"PositionalBias belongs to samples of shape {self.shape}: got {tuple(x.shape)}. Networks with it are "
                "made for one size of images."
            )
        return x + self.bias.to(x.dtype)

    def extra_repr(self) -> str:
        """The shape of a sample."""
        return f"{self.shape}"
