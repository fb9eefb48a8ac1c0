"""HouseHolder activations of order 1 and 2: trainable reflections of pairs of channels.

Singla, Singla, Feizi, "Improved deterministic l2 robustness on CIFAR-10 and CIFAR-100" (2022). Each piece is a
rotation or a reflection of the plane and neighbouring pieces agree on their common ray, so the maps are continuous and
every Jacobian is orthogonal: there is no factor 1/√2 to correct.

Channel `i` is paired with channel `i + c/2`, as in MaxMin.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from orthogonium.layers.activations.axes import ISOMETRY, along, check_channels, halves
from orthogonium.layers.argument_names import also_named
from orthogonium.layers.whole import as_a_whole

_TURN = 2 * math.pi


@as_a_whole
def householder(
    x: Tensor,
    theta: Tensor,  # (c/2,)
    axis: int = 1,
) -> Tensor:
    """`z − 2 relu(vᵀz) v` for each pair `z`, with the unit vector `v = (sin θ/2, −cos θ/2)`.

    This is `z` on one side of the line orthogonal to `v`, its mirror image on the other.
    """
    a, b, axis = halves(x, axis, "HouseHolder")
    half_angle = along(theta, a, axis, "HouseHolder", 2) / 2
    sin, cos = torch.sin(half_angle), torch.cos(half_angle)
    excess = 2 * torch.relu(a * sin - b * cos)
    return torch.cat([a - excess * sin, b + excess * cos], dim=axis).to(x.dtype)


def _fold(angle: Tensor) -> Tensor:
    """Triangle wave into [0, 2π], the identity there. Unlike a clamp it has slope ±1 outside: no angle gets stuck."""
    wrapped = torch.remainder(angle, 2 * _TURN)
    return torch.where(wrapped <= _TURN, wrapped, 2 * _TURN - wrapped)


@as_a_whole
def householder_order_2(
    x: Tensor,
    theta: Tensor,  # (3, c/2)
    axis: int = 1,
) -> Tensor:
    """One of four orthogonal maps for each pair, chosen by the angle `φ` of the pair measured from `θ₀/2`.

    Identity for `φ < θ₁/2`, reflection `R(θ₀ + θ₁)` up to `(θ₁ + θ₂)/2`, rotation by `−θ₂` up to `π + θ₂/2`, reflection
    `R(θ₀)` beyond, where `R(t) = [[cos t, sin t], [sin t, −cos t]]`. Continuous for θ₁, θ₂ in [0, 2π]; other values
    are folded into that interval.
    """
    a, b, axis = halves(x, axis, "HouseHolder_Order_2")
    t0, t1, t2 = (along(row, a, axis, "HouseHolder_Order_2", 2) for row in theta.unbind(0))
    t1, t2 = _fold(t1), _fold(t2)
    half = t0.detach() / 2  # no_grad alone would leave forward derivatives on
    start = torch.atan2(torch.sin(half), torch.cos(half))  # without full turns: a large t0 has few digits left
    t0 = 2 * start + (t0 - t0.detach())
    with torch.no_grad():  # the angle only selects a piece; its own derivative is undefined at the origin
        phi = torch.remainder(torch.atan2(b, a) - start, _TURN)
        is_identity = phi < t1 / 2
        is_first = phi < (t1 + t2) / 2
        is_rotation = phi < math.pi + t2 / 2  # rounding may give φ = 2π: the last piece is whatever remains
        # Every piece is (a, b) ↦ (ca + sb, ±(sa − cb)), plus for the reflections.
        sign = torch.where(is_identity | (is_rotation & ~is_first), -1.0, 1.0).to(t0.dtype)

    def select(f: Tensor, rotation: Tensor, first: Tensor, identity: float) -> Tensor:
        rest = torch.where(is_first, first, torch.where(is_rotation, rotation, f))
        return torch.where(is_identity, torch.full_like(f, identity), rest)

    cos = select(torch.cos(t0), torch.cos(t2), torch.cos(t0 + t1), 1.0)
    sin = select(torch.sin(t0), torch.sin(t2), torch.sin(t0 + t1), 0.0)
    return torch.cat([cos * a + sin * b, sign * (sin * a - cos * b)], dim=axis).to(x.dtype)


class _HouseHolder(nn.Module):
    """Trainable angles for half the channels."""

    guarantee = ISOMETRY
    angles: tuple[int, ...] = ()  # of a pair of channels

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
        check_channels(channels, type(self).__name__, even=True)
        self.channels = channels
        self.axis = axis
        self.theta = nn.Parameter(torch.empty(*self.angles, channels // 2, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the initial angles, which each subclass chooses."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        """Channels, and the axis when it is not the default."""
        return f"{self.channels}" + ("" if self.axis == 1 else f", axis={self.axis}")


class HouseHolder(_HouseHolder):
    """Reflects every pair of channels that lies on one side of a trainable line through 0.

    `z ↦ z − 2 relu(vᵀz) v`, `v = (sin θ/2, −cos θ/2)`, for the pair `z` of channels `i` and `i + c/2`. The initial
    `θ = π/2` gives (min, max).

    Guarantee: every Jacobian is orthogonal, the map is continuous and keeps the shape, whatever the angles.

    Args:
        channels: size of the axis, even.
        axis: the axis that holds the channels.
        device: where the angles live.
        dtype: data type of the angles.

    >>> from orthogonium.layers.custom_activations import HouseHolder
    >>> HouseHolder(2)(torch.tensor([[4.0, 1.0], [1.0, 4.0]])).round(decimals=4)
    tensor([[1., 4.],
            [1., 4.]], grad_fn=...)
    """

    def reset_parameters(self) -> None:
        """θ = π/2."""
        nn.init.constant_(self.theta, math.pi / 2)

    def forward(self, z: Tensor) -> Tensor:
        """Same shape as `z`."""
        return householder(z, self.theta, self.axis)


class HouseHolder_Order_2(_HouseHolder):  # the published name
    """Four orthogonal pieces per pair of channels, with three trainable angles.

    With `φ` the angle of the pair measured from `θ₀/2`: identity for `φ < θ₁/2`, a reflection up to `(θ₁ + θ₂)/2`, the
    rotation by `−θ₂` up to `π + θ₂/2`, a reflection beyond (see `householder_order_2`). Angles start uniform in [0, π].

    Guarantee: every Jacobian is orthogonal, the map is continuous and keeps the shape, whatever the angles.

    Args:
        channels: size of the axis, even.
        axis: the axis that holds the channels.
        device: where the angles live.
        dtype: data type of the angles.

    >>> from orthogonium.layers.custom_activations import HouseHolder_Order_2
    >>> x = torch.randn(3, 8, 5, 5)
    >>> y = HouseHolder_Order_2(8)(x)
    >>> y.shape == x.shape and torch.allclose(y.norm(), x.norm())
    True
    """

    angles = (3,)

    def reset_parameters(self) -> None:
        """Uniform in [0, π]."""
        nn.init.uniform_(self.theta, 0, math.pi)

    def forward(self, z: Tensor) -> Tensor:
        """Same shape as `z`."""
        return householder_order_2(z, self.theta, self.axis)
