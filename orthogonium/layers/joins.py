"""Where branches of a network meet: sums and concatenations that do not expand distances.

`a + b` of two 1-Lipschitz branches has constant 2, `cat(a, b)` has √2. Weights that sum to 1, or whose squares do,
bring both back to 1; they are learned or fixed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from orthogonium.errors import ParameterError, ShapeError
from orthogonium.layers.guarantee import Guarantee
from orthogonium.linalg.evaluation import widened


class _Join(nn.Module):
    """Several inputs with a positive weight for each: a parameter, or a buffer if not learned."""

    guarantee = Guarantee("lipschitz", note="for 1-Lipschitz branches")
    raw: Tensor

    def __init__(
        self,
        weights: int | Sequence[float],
        learnable: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        start = [1.0] * weights if isinstance(weights, int) else [float(w) for w in weights]
        if len(start) < 2 or not all(0 < w < float("inf") for w in start):
            raise ParameterError(
                f"{type(self).__name__} joins two or more inputs, by positive weights: got {weights!r}."
            )
        logarithms = torch.tensor(start, dtype=torch.float64).log()
        logarithms = logarithms.to(device=device, dtype=dtype or torch.get_default_dtype())
        if learnable:
            self.raw = nn.Parameter(logarithms)
        else:
            self.register_buffer("raw", logarithms)

    def _check(self, inputs: tuple[Tensor, ...]) -> None:
        if len(inputs) != len(self.raw):
            raise ShapeError(f"{type(self).__name__} was built for {len(self.raw)} inputs, got {len(inputs)}.")

    def extra_repr(self) -> str:
        """The number of inputs, and whether the weights are fixed."""
        return f"{len(self.raw)}" + ("" if isinstance(self.raw, nn.Parameter) else ", learnable=False")


class ConvexSum(_Join):
    """`Σ gᵢ xᵢ` with gates `g = softmax(α)`: positive, and 1 in total.

    Guarantee: 1-Lipschitz if each branch is, for any gates.

    Args:
        weights: number of inputs, or a positive weight for each; the gates are the weights divided by their sum.
        learnable: whether the gates are trained.
        device: where the gates live.
        dtype: data type of the gates.

    >>> from orthogonium.layers import ConvexSum
    >>> ConvexSum([1, 3], learnable=False)(torch.tensor([4.0]), torch.tensor([8.0])).round()
    tensor([7.])
    """

    def __init__(
        self,
        weights: int | Sequence[float] = 2,
        learnable: bool = True,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(weights, learnable, device, dtype)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Same shape as each input."""
        self._check(inputs)
        if any(x.shape != inputs[0].shape for x in inputs):
            raise ShapeError(
                "ConvexSum needs inputs of one shape, since broadcasting expands: got "
                f"{[tuple(x.shape) for x in inputs]}."
            )
        gates = widened(self.raw).softmax(0)
        total = gates[0] * inputs[0]
        for gate, x in zip(gates[1:], inputs[1:], strict=True):
            total = total + gate * x
        return total.to(inputs[0].dtype)


class UnitConcat(_Join):
    """`cat(w₁x₁, w₂x₂, …)` with weights of norm 1, `w = e^α / ‖e^α‖`.

    Guarantee: 1-Lipschitz if each branch is, for any weights.

    Args:
        weights: number of inputs, or a positive weight for each, up to a common factor.
        dim: the axis along which the inputs are joined.
        learnable: whether the weights are trained.
        device: where the weights live.
        dtype: data type of the weights.

    >>> from orthogonium.layers import UnitConcat
    >>> UnitConcat([3, 4], learnable=False)(torch.ones(1, 1), torch.ones(1, 2))
    tensor([[0.6000, 0.8000, 0.8000]])
    """

    def __init__(
        self,
        weights: int | Sequence[float] = 2,
        dim: int = 1,
        learnable: bool = True,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(weights, learnable, device, dtype)
        self.dim = dim

    def forward(self, *inputs: Tensor) -> Tensor:
        """The inputs, weighted, side by side."""
        self._check(inputs)
        weights = (2 * widened(self.raw)).softmax(0).sqrt()
        return torch.cat([(w * x).to(x.dtype) for w, x in zip(weights, inputs, strict=True)], self.dim)

    def extra_repr(self) -> str:
        """The number of inputs, and what is not the default."""
        return super().extra_repr() + ("" if self.dim == 1 else f", dim={self.dim}")
