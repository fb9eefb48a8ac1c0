"""Channel shuffle: lets the groups of two grouped layers exchange channels. A permutation, hence an isometry."""

from __future__ import annotations

from torch import Tensor, nn

from orthogonium.errors import ParameterError, ShapeError
from orthogonium.layers.guarantee import Guarantee
from orthogonium.layers.inversion import check_as_written


class ChannelShuffle(nn.Module):
    """Gives each of `group_out` groups an equal share of each of `group_in` groups.

    Channels indexed `(i, j, k)`, `i < group_in`, `j < group_out`, become `(j, i, k)`. With `group_out = c/group_in`
    this is `torch.nn.ChannelShuffle(group_in)`. The inverse is `ChannelShuffle(group_out, group_in)`.

    Guarantee: a permutation.

    Args:
        group_in: groups of the preceding layer.
        group_out: groups of the following layer.
        dim: the axis to shuffle; `group_in · group_out` must divide its size.

    >>> from orthogonium.layers.channel_shuffle import ChannelShuffle
    >>> ChannelShuffle(2, 3)(torch.arange(6).reshape(1, 6))
    tensor([[0, 3, 1, 4, 2, 5]])
    """

    guarantee = Guarantee("orthogonal")

    def __init__(self, group_in: int, group_out: int, dim: int = 1) -> None:
        super().__init__()
        if group_in < 1 or group_out < 1:
            raise ParameterError(f"ChannelShuffle needs at least one group on each side: got {group_in}, {group_out}.")
        self.group_in = group_in
        self.group_out = group_out
        self.dim = dim

    def inverse(self) -> ChannelShuffle:
        """The shuffle that undoes this one."""
        check_as_written(self, "inverse")
        return ChannelShuffle(self.group_out, self.group_in, self.dim)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        if not -x.dim() <= self.dim < x.dim() or x.shape[self.dim] % (self.group_in * self.group_out):
            raise ShapeError(
                f"ChannelShuffle needs axis {self.dim} to exist and its size to be a multiple of group_in · group_out "
                f"= {self.group_in} · {self.group_out}: got shape {tuple(x.shape)}. Change the groups or the channels."
            )
        dim = self.dim % x.dim()
        blocks = x.unflatten(dim, (self.group_in, self.group_out, x.shape[dim] // (self.group_in * self.group_out)))
        return blocks.transpose(dim, dim + 1).flatten(dim, dim + 2)

    def extra_repr(self) -> str:
        """Groups, and the axis when it is not the default."""
        return f"{self.group_in}, {self.group_out}" + ("" if self.dim == 1 else f", dim={self.dim}")
