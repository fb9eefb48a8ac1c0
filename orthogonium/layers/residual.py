"""Residual wrappers: skip connections that keep a Lipschitz constant of 1, which `x + fn(x)` (constant 2) does not.

Each wrapper is 1-Lipschitz for every 1-Lipschitz `fn`, whatever its gate; `lipschitz_bound(L)` is the constant for an
`L`-Lipschitz `fn`, attained for each wrapper.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from orthogonium.errors import ParameterError, ShapeError
from orthogonium.layers.guarantee import Guarantee
from orthogonium.layers.inversion import InversionError, check_as_written, inverse
from orthogonium.linalg.evaluation import has_values, widened


def _same_shape(x: Tensor, y: Tensor, wrapper: str) -> Tensor:
    """`y`, unless its shape differs from that of `x`: broadcasting would break the bound, not just the shape."""
    if x.shape != y.shape:
        raise ShapeError(
            f"{wrapper} needs fn to keep the shape of its input: fn received {tuple(x.shape)} and returned "
            f"{tuple(y.shape)}. Use stride 1, 'same' padding and equal channels inside, or leave the layer outside."
        )
    return y


def apply_branch(fn: Callable[[Tensor], Tensor], x: Tensor, wrapper: str) -> Tensor:
    """`fn(x)`, for wrappers that read x again: fn must not write into x.

    Where torch does not count writes (compilers, transforms, inference mode), fn receives a copy of x.
    """
    if not has_values(x) or x.is_inference():
        return fn(x.clone())
    version = x._version
    y = fn(x)
    if x._version != version:
        raise ParameterError(
            f"{wrapper}: fn writes into its input, which the skip connection reads. Use inplace=False in its first "
            "layers."
        )
    return y


IF_FN_IS_1_LIPSCHITZ = Guarantee("lipschitz", note="for every 1-Lipschitz fn")


class _Residual(nn.Module):
    guarantee = IF_FN_IS_1_LIPSCHITZ

    def __init__(self, fn: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.fn = fn

    def lipschitz_bound(self, fn_bound: float = 1.0) -> float:
        """Lipschitz constant of the wrapper when that of `fn` is `fn_bound`."""
        raise NotImplementedError


class ConcatResidual(_Residual):
    """Leaves one half of the channels alone and applies `fn` to the other: `(a, b) ↦ (a, fn(b))`.

    Guarantee: constant `max(1, L)`, so 1-Lipschitz for a 1-Lipschitz `fn`; every Jacobian is orthogonal if those of
    `fn` are. Mix channels between such blocks with `ChannelShuffle` or a convolution.

    Args:
        fn: a function that keeps the shape of its input, which has half the channels.
        dim: the axis to halve; its size must be even.

    >>> from orthogonium.layers.residual import ConcatResidual
    >>> ConcatResidual(torch.abs)(torch.tensor([[-1.0, -2.0]]))
    tensor([[-1.,  2.]])
    """

    def __init__(self, fn: Callable[[Tensor], Tensor], dim: int = 1) -> None:
        super().__init__(fn)
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        if not -x.dim() <= self.dim < x.dim() or x.shape[self.dim] % 2:
            raise ShapeError(
                f"ConcatResidual halves axis {self.dim}, which must exist and have an even size: got shape "
                f"{tuple(x.shape)}. Use an even number of channels."
            )
        kept, changed = x.split(x.shape[self.dim] // 2, dim=self.dim)
        return torch.cat([kept, _same_shape(changed, self.fn(changed), "ConcatResidual")], dim=self.dim)

    def inverse(self) -> ConcatResidual:
        """The wrapper that undoes `fn`, if it can be undone."""
        check_as_written(self, "inverse")
        if not isinstance(self.fn, nn.Module):
            raise InversionError("ConcatResidual: fn is no module, so that nothing is known of its inverse.")
        return ConcatResidual(inverse(self.fn), self.dim)

    def lipschitz_bound(self, fn_bound: float = 1.0) -> float:
        """`max(1, L)`."""
        return max(1.0, fn_bound)


class L2NormResidual(_Residual):
    """Root mean square of both branches: `√(½x² + ½fn(x)² + ε)`, entry by entry.

    The output is positive: the signs of both branches are lost.

    Guarantee: constant `√((1 + L²)/2)`, so 1-Lipschitz for a 1-Lipschitz `fn`; `ε` only lowers it.

    Args:
        fn: a function that keeps the shape of its input.
        eps: the `ε` that makes the root smooth at 0, positive.

    >>> from orthogonium.layers.residual import L2NormResidual
    >>> L2NormResidual(lambda x: 7 * x)(torch.tensor([[1.0, -2.0]])).round(decimals=2)
    tensor([[ 5., 10.]])
    """

    def __init__(self, fn: Callable[[Tensor], Tensor], eps: float = 1e-6) -> None:
        super().__init__(fn)
        if not eps > 0:
            raise ParameterError(f"L2NormResidual needs a positive eps, or the root has no derivative at 0: got {eps}.")
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        y = _same_shape(x, apply_branch(self.fn, x, "L2NormResidual"), "L2NormResidual")
        a, b = widened(x), widened(y)
        return torch.sqrt(0.5 * (a * a + b * b) + self.eps).to(x.dtype)

    def lipschitz_bound(self, fn_bound: float = 1.0) -> float:
        """`√((1 + L²)/2)`."""
        return math.sqrt((1 + fn_bound**2) / 2)


class _GatedResidual(_Residual):
    """A residual with one trainable number, of shape (1,): sharded training does not accept parameters without axes."""

    def __init__(
        self,
        fn: Callable[[Tensor], Tensor],
        init_val: float = 1.0,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(fn)
        if not math.isfinite(init_val):
            raise ParameterError(f"{type(self).__name__} needs a finite gate: got init_val={init_val}.")
        self.alpha = nn.Parameter(torch.full((1,), float(init_val), device=device, dtype=dtype))

    def _gate(self) -> Tensor:  # without axes, so that every input keeps its shape
        return widened(self.alpha).squeeze(0)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Accept gates without axes, too."""
        gate = state_dict.get(f"{prefix}alpha")
        if isinstance(gate, Tensor) and gate.dim() == 0:
            state_dict[f"{prefix}alpha"] = gate.unsqueeze(0)
        super()._load_from_state_dict(state_dict, prefix, *args)


class AdditiveResidual(_GatedResidual):
    """Trainable convex combination `g·x + (1 − g)·fn(x)` with `g = sigmoid(α)`.

    Guarantee: constant `g + (1 − g)L`, so 1-Lipschitz for a 1-Lipschitz `fn` and any gate.

    Args:
        fn: a function that keeps the shape of its input.
        init_val: initial `α`, before the sigmoid; large values favour the skip connection.
        device: where the gate lives.
        dtype: data type of the gate.

    >>> from orthogonium.layers.residual import AdditiveResidual
    >>> AdditiveResidual(torch.abs, init_val=0.0)(torch.tensor([-1.0, 3.0]))
    tensor([0., 3.], grad_fn=...)
    """

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        y = _same_shape(x, apply_branch(self.fn, x, "AdditiveResidual"), "AdditiveResidual")
        alpha = self._gate()
        # Both weights are computed by a sigmoid: 1 − sigmoid(α) would cancel for large α. In bfloat16 they might add up
        # to more than 1.
        return (torch.sigmoid(alpha) * widened(x) + torch.sigmoid(-alpha) * widened(y)).to(x.dtype)

    def lipschitz_bound(self, fn_bound: float = 1.0) -> float:
        """`g + (1 − g)L` for the current gate."""
        gate = torch.sigmoid(self.alpha.double()).item()
        return gate + (1 - gate) * fn_bound


class PrescaledAdditiveResidual(_GatedResidual):
    """Trainable scale inside the branch: `(x + fn(αx)) / (1 + |α|)`.

    Guarantee: constant `(1 + |α|L)/(1 + |α|)`, so 1-Lipschitz for a 1-Lipschitz `fn` and any `α`.

    Args:
        fn: a function that keeps the shape of its input.
        init_val: initial `α`; 0 reduces the branch to the constant fn(0).
        device: where `α` lives.
        dtype: data type of `α`.

    >>> from orthogonium.layers.residual import PrescaledAdditiveResidual
    >>> PrescaledAdditiveResidual(torch.abs, init_val=-3.0)(torch.tensor([-1.0, 1.0])).tolist()
    [0.5, 1.0]
    """

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        alpha = self._gate()
        scaled = (alpha * widened(x)).to(x.dtype)
        y = _same_shape(scaled, self.fn(scaled), "PrescaledAdditiveResidual")
        return ((widened(x) + widened(y)) / (1 + alpha.abs())).to(x.dtype)

    def lipschitz_bound(self, fn_bound: float = 1.0) -> float:
        """`(1 + |α|L)/(1 + |α|)` for the current `α`."""
        alpha = self.alpha.double().abs().item()
        return (1 + alpha * fn_bound) / (1 + alpha)
