"""Activations that act on each entry separately: Abs, SoftHuber, the N-activation, CReLU."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from orthogonium.errors import ParameterError
from orthogonium.layers.activations.axes import ISOMETRY, along, check_channels, positive_axis
from orthogonium.layers.argument_names import also_named
from orthogonium.layers.guarantee import Guarantee
from orthogonium.layers.inversion import Inverse
from orthogonium.layers.whole import as_a_whole
from orthogonium.linalg.evaluation import widened


def soft_huber(x: Tensor, delta: float) -> Tensor:
    """`δ(√(1 + x²/δ²) − 1)`, computed in float32 or better."""
    scaled = widened(x) / delta
    return (delta * (torch.sqrt(1 + scaled * scaled) - 1)).to(x.dtype)


@as_a_whole
def n_activation(
    x: Tensor,
    thresholds: Tensor,  # (c, 2), in either order
    axis: int = 1,
) -> Tensor:
    """`x − 2·clamp(x, t₁, t₂)` for the thresholds `t₁ ≤ t₂` of each channel."""
    s, t = (along(column, x, axis, "NActivation") for column in thresholds.unbind(1))
    # A channel that starts as the identity (0, 0) must give each threshold the gradient of its own side: `minimum` and
    # `maximum` split it evenly at s = t, so s = t forever; `clamp` drops one half, and forwards swaps them.
    ordered = s <= t
    low, high = torch.where(ordered, s, t), torch.where(ordered, t, s)
    wide = x.to(low.dtype)
    clamped = torch.where(wide < low, low, torch.where(wide > high, high, wide))
    return (x - 2 * clamped).to(x.dtype)


@as_a_whole
def absolute(x: Tensor) -> Tensor:
    """`|x|` with slope +1 at 0."""
    sign = 2 * (x >= 0).to(x.dtype) - 1
    return x * sign


@as_a_whole
def concatenated_relu(x: Tensor, axis: int = 1) -> Tensor:
    """`(relu(x), relu(−x))` along `axis`."""
    axis = positive_axis(x, axis, "CReLU")
    negative = x < 0
    return torch.cat([torch.where(negative, 0.0, x), torch.where(negative, -x, 0.0)], dim=axis)


class Abs(nn.Module):
    """Absolute value.

    Guarantee: slopes ±1 at every input (+1 at 0), so the Jacobian is orthogonal. Do not use it inside SLL, CPL or
    Sandwich layers, which need slopes in [0, 1].

    >>> from orthogonium.layers.custom_activations import Abs
    >>> Abs()(torch.tensor([-2.0, 3.0]))
    tensor([2., 3.])
    """

    guarantee = ISOMETRY

    def forward(self, z: Tensor) -> Tensor:
        """Same shape as `z`."""
        return absolute(z)


class SoftHuber(nn.Module):
    """Smooth absolute value `δ(√(1 + x²/δ²) − 1)`, with slope `x/√(x² + δ²)`.

    Guarantee: 1-Lipschitz. Slopes approach ±1 away from 0 but vanish at 0 (0.2 at `x = δ/5`), so unlike `Abs` it
    does not preserve the norm of gradients there.

    Args:
        delta: width of the smooth part, positive.

    >>> from orthogonium.layers.custom_activations import SoftHuber
    >>> SoftHuber(delta=3.0)(torch.tensor([-4.0, 0.0, 4.0])).round(decimals=4)
    tensor([2., 0., 2.])
    """

    guarantee = Guarantee("lipschitz")

    def __init__(self, delta: float = 0.05) -> None:
        super().__init__()
        if not delta > 0:
            raise ParameterError(f"SoftHuber needs a positive width: got delta={delta}. For delta → 0 use Abs.")
        self.delta = delta

    def forward(self, z: Tensor) -> Tensor:
        """Same shape as `z`."""
        return soft_huber(z, self.delta)

    def extra_repr(self) -> str:
        """The width."""
        return f"delta={self.delta}"


class NActivation(nn.Module):
    """The N-activation: slopes 1, −1, 1, with two trainable thresholds per channel.

    `x − 2·clamp(x, t₁, t₂)`: `x − 2t₁` for `x < t₁`, `−x` between, `x − 2t₂` for `x > t₂`. The order of the thresholds
    does not matter. Channels start alternately as an N, thresholds (−1, 0), and as the identity, (0, 0).
    Prach, Lampert, "1-Lipschitz neural networks are more expressive with N-activations" (2023).

    Guarantee: slopes ±1 at every input, so the Jacobian is orthogonal.

    Args:
        channels: size of the axis.
        axis: the axis that holds the channels.
        device: where the thresholds live.
        dtype: data type of the thresholds.

    >>> from orthogonium.layers.custom_activations import NActivation
    >>> NActivation(2)(torch.tensor([[-1.5, 1.0], [-0.5, 2.0]])).tolist()
    [[0.5, 1.0], [0.5, 2.0]]
    """

    guarantee = ISOMETRY

    @also_named(in_channels="channels")
    def __init__(
        self,
        channels: int,
        axis: int = 1,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_channels(channels, "NActivation", even=False)
        self.channels = channels
        self.axis = axis
        self.thresholds = nn.Parameter(torch.empty(channels, 2, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Let channels be the letter N (thresholds −1 and 0) and the identity by turns."""
        with torch.no_grad():
            self.thresholds.zero_()
            self.thresholds[::2, 0] = -1

    def forward(self, z: Tensor) -> Tensor:
        """Same shape as `z`."""
        return n_activation(z, self.thresholds, self.axis)

    def extra_repr(self) -> str:
        """Channels, and the axis when it is not the default."""
        return f"{self.channels}" + ("" if self.axis == 1 else f", axis={self.axis}")


class CReLU(nn.Module):
    """Positive and negative parts side by side: `x ↦ (max(x, 0), max(−x, 0))`, with twice the channels.

    Guarantee: the Jacobian is an isometry at every input and `‖output‖ = ‖input‖`, without a factor 1/√2.

    Args:
        axis: the axis to concatenate along.

    >>> from orthogonium.layers.custom_activations import CReLU
    >>> CReLU()(torch.tensor([[3.0, -4.0]]))
    tensor([[3., 0., 0., 4.]])
    """

    guarantee = ISOMETRY

    def __init__(self, axis: int = 1) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, z: Tensor) -> Tensor:
        """Twice the size of `z` along the axis."""
        return concatenated_relu(z, self.axis)

    def inverse(self) -> Inverse:
        """The first half minus the second."""
        return Inverse(self, both_sides=False)

    @property
    def inverse_constant(self) -> float:
        """√2, the norm of the difference of two halves: the inverse moves points apart by up to this factor."""
        return math.sqrt(2)

    def undo(self, y: Tensor) -> Tensor:
        """Positive part minus negative part."""
        positive, negative = y.chunk(2, dim=self.axis)
        return positive - negative

    def extra_repr(self) -> str:
        """Arguments that are not the default."""
        return "" if self.axis == 1 else f"axis={self.axis}"
