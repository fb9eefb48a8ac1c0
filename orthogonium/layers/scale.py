"""Multiplication by a number, fixed or trained below a limit, and a constant shared among the layers of a network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from orthogonium.errors import ParameterError
from orthogonium.layers.guarantee import Guarantee, check_constant
from orthogonium.layers.inversion import Inverse
from orthogonium.layers.parametrization import Constrained
from orthogonium.linalg.evaluation import widened

_START = 0.9  # of the limit, where a trained factor starts


class Scale(nn.Module):
    """Multiplies by `lipschitz`, or by a trained factor that never exceeds it.

    Guarantee: all singular values are `lipschitz`; if `learnable`, they are equal, positive and at most `lipschitz`,
    whatever the optimizer does: the factor is `lipschitz · sigmoid(α)` and starts at 0.9 times the limit.

    Args:
        lipschitz: the factor, or its limit; any positive number.
        learnable: whether the factor is trained.
        device: where α lives.
        dtype: data type of α.

    >>> Scale(3.0)(torch.ones(2))
    tensor([3., 3.])
    >>> trained = Scale(3.0, learnable=True)
    >>> round(trained.factor.item(), 4)
    2.7
    """

    alpha: nn.Parameter | None

    def __init__(
        self,
        lipschitz: float,
        learnable: bool = False,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.lipschitz = lipschitz
        self.register_parameter(
            "alpha", nn.Parameter(torch.empty(1, device=device, dtype=dtype)) if learnable else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset the factor to its initial value."""
        if self.alpha is not None:
            nn.init.constant_(self.alpha, math.log(_START / (1 - _START)))

    @property
    def lipschitz(self) -> float:
        """The factor, or its limit."""
        return self._lipschitz

    @lipschitz.setter
    def lipschitz(self, value: float) -> None:
        self._lipschitz = check_constant(value, "Scale")

    @property
    def factor(self) -> Tensor | float:
        """The number by which inputs are multiplied, in float32 or better."""
        if self.alpha is None:
            return self.lipschitz
        gate = torch.sigmoid(widened(self.alpha))
        return self.lipschitz * gate.squeeze(0)  # without axes, so that every input keeps its shape

    @property
    def guarantee(self) -> Guarantee:
        """All singular values are the factor."""
        if self.alpha is None:
            return Guarantee("orthogonal", self.lipschitz)
        return Guarantee("lipschitz", self.lipschitz)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        return (x * self.factor).to(x.dtype)

    def inverse(self) -> Inverse:
        """Division by the factor."""
        return Inverse(self)

    @property
    def inverse_constant(self) -> float | None:
        """1 over the factor; None for a trained factor, which may come arbitrarily close to 0."""
        return 1 / self.lipschitz if self.alpha is None else None

    def undo(self, y: Tensor) -> Tensor:
        """`y` divided by the factor."""
        return (y / self.factor).to(y.dtype)

    def extra_repr(self) -> str:
        """The factor, or its limit."""
        return f"{self.lipschitz:.6g}" + ("" if self.alpha is None else ", learnable=True")


def spread_constant(model: nn.Module, lipschitz: float) -> nn.Module:
    """Multiply the constant of a network by `lipschitz`, an equal share in each layer of its chain, and return it.

    The chain consists of the layers of an `nn.Sequential`, nested to any depth. Each of its n constrained layers gets
    the factor `lipschitz^(1/n)`, so activations grow or shrink evenly along the way. Layers inside wrappers (such as
    residual ones, for which constants do not simply multiply) keep their constants, even if they also appear in the
    chain. So do plain layers: a network with an `nn.Linear` of norm 7.5 had the constant 7.5 before, and has
    `7.5 · lipschitz` afterwards (as `orthogonium.lipschitz_bound` computes).

    For a module that is not an `nn.Sequential`, use `nn.Sequential(module, Scale(lipschitz))`.

    >>> from orthogonium.layers import MaxMin, OrthoLinear, spread_constant
    >>> model = spread_constant(nn.Sequential(OrthoLinear(4, 4), MaxMin(), OrthoLinear(4, 4)), 0.5)
    >>> [round(layer.lipschitz, 6) for layer in (model[0], model[2])]
    [0.707107, 0.707107]
    """
    lipschitz = check_constant(lipschitz, "spread_constant")
    if lipschitz == 1:
        return model
    layers = _chain(model)
    if not layers:
        raise ParameterError(
            f"{type(model).__name__} is no chain (nn.Sequential) with constrained layers that are nowhere else in it, "
            f"so that there is nothing to give the constant {lipschitz:.6g} to. Put a `Scale({lipschitz:.6g})` before "
            "or after it: `nn.Sequential(module, Scale(…))`."
        )
    multiply_constants(layers, lipschitz)
    return model


def multiply_constants(passed: Sequence[Constrained], lipschitz: float) -> None:
    """Give each of the layers through which everything passes an equal share of the factor; one entry for each call."""
    share = lipschitz ** (1 / len(passed))
    for layer in dict.fromkeys(passed):  # a layer that is applied twice counts twice, but is scaled once
        layer.lipschitz *= share


def parts(module: nn.Module) -> set[nn.Module]:
    """The modules inside a module: their constants need not multiply that of the whole."""
    return set(module.modules()) - {module}


def _chain(model: nn.Module) -> list[Constrained]:
    """The constrained layers of a chain, once for each call, without those that are also part of something else."""
    links = list(_links(model))
    beside = set[nn.Module]().union(*map(parts, links))
    return [link for link in links if isinstance(link, Constrained) and link not in beside]


def _links(module: nn.Module) -> Iterator[nn.Module]:
    """What a chain of chains applies in turn."""
    if not isinstance(module, nn.Sequential) or type(module).forward is not nn.Sequential.forward:
        yield module
        return
    for child in module:
        yield from _links(child)
