"""Invertible residual blocks, `x + fn(x)` with a contraction `fn`.

Behrmann, Grathwohl, Chen, Duvenaud, Jacobsen (2019), "Invertible residual networks", with constants that are known
instead of estimated: those that the layers of `fn` promise.

Note [Contractions]
`fn` is a chain of modules that promise their constants (`guarantee`) or are 1-Lipschitz torch activations; the product
of these constants, times the factor that `fn` is multiplied by, is at most `lipschitz` < 1. So `x + s·fn(x)` is undone
by `x ← y − s·fn(x)`; `fixed_point.py` has its error and derivatives. A forward pass takes the constants as the parts
state them; whatever relies on the contraction (construction, `inverse`, `solve`, `log_det`) also checks that they hold.

Note [Logarithm of the determinant]
`log det(I + J) = Σ_k (−1)^(k+1) tr(Jᵏ)/k`, J the Jacobian of `s·fn`. The sum is truncated after `terms`, which leaves
out at most `d·lipschitz^(terms+1) / ((terms + 1)(1 − lipschitz))` for inputs of d numbers: the bias. Traces are
estimated by random signs v, `vᵀJᵏv` (Hutchinson): their mean is the truncated sum.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from orthogonium.errors import ParameterError, ShapeError
from orthogonium.layers.fixed_point import FixedPoint
from orthogonium.layers.guarantee import Guarantee
from orthogonium.layers.inversion import Inverse
from orthogonium.layers.promises import lapse, stated_constant
from orthogonium.layers.residual import apply_branch
from orthogonium.linalg.evaluation import has_values

_SMALL = 256  # numbers in an input up to which the determinant is computed from the whole Jacobian


class LogDet(NamedTuple):
    """The log-determinant of each sample, and a bound on the bias of its mean: 0 if it is exact."""

    value: Tensor
    bias: float


class iResidual(nn.Module):  # noqa: N801, the name of the paper's architecture
    """`x + s·fn(x)`, where `s·fn` is a contraction, so the block is invertible.

    `fn` is multiplied by `s = lipschitz / c`, with the constant c that its layers promise (or `constant`), if c is
    larger than `lipschitz`; otherwise s = 1.

    Guarantee: invertible, with constant `1 + lipschitz`; the inverse has constant `1 / (1 − lipschitz)`.

    Args:
        fn: a module that keeps the shape of its input: a chain (`nn.Sequential`) of constrained layers and activations.
        lipschitz: the constant of the branch, between 0 and 1.
        constant: a Lipschitz constant of `fn`, if its parts do not promise one. It is not verified.
        tolerance: error of the inverse, relative to the largest entry, below which iterations stop; for its
            derivatives, relative to their norm.
        max_iterations: largest number of iterations of the inverse.

    >>> from orthogonium.layers import MaxMin, OrthoLinear
    >>> block = iResidual(nn.Sequential(OrthoLinear(6, 6), MaxMin(), OrthoLinear(6, 6)), lipschitz=0.5)
    >>> x = torch.randn(3, 6)
    >>> torch.allclose(block.inverse()(block(x)), x, atol=1e-5)
    True
    """

    def __init__(
        self,
        fn: nn.Module,
        lipschitz: float = 0.9,
        constant: float | None = None,
        tolerance: float = 1e-6,
        max_iterations: int = 1000,
    ) -> None:
        super().__init__()
        if not tolerance > 0 or max_iterations < 1:
            raise ParameterError(
                f"iResidual needs a positive tolerance, and iterations: got {tolerance}, {max_iterations}."
            )
        if constant is not None and not 0 <= constant < float("inf"):
            raise ParameterError(f"iResidual: `constant`, of fn, must be finite and not negative: got {constant}.")
        self.fn, self.lipschitz, self.constant = fn, lipschitz, constant
        self.tolerance, self.max_iterations = tolerance, max_iterations
        self._check_promise(next((p.dtype for p in self.parameters()), torch.get_default_dtype()))

    @property
    def lipschitz(self) -> float:
        """The constant of the branch."""
        return self._lipschitz

    @lipschitz.setter
    def lipschitz(self, value: float) -> None:
        if isinstance(value, bool) or not isinstance(value, float | int) or not 0 < value < 1:
            raise ParameterError(f"iResidual: lipschitz, of the branch, must be between 0 and 1, got {value!r}.")
        self._lipschitz = float(value)

    @property
    def guarantee(self) -> Guarantee:
        """Invertible, and expands by at most this much."""
        return Guarantee("lipschitz", 1 + self.lipschitz)

    @property
    def inverse_constant(self) -> float:
        """`1 / (1 − lipschitz)`, since distances shrink at most by the factor `1 − lipschitz`."""
        return 1 / (1 - self.lipschitz)

    def branch(self, x: Tensor) -> Tensor:
        """`s·fn(x)`, a contraction."""
        return self._scaled(x, self._factor(x.dtype))

    def _scaled(self, x: Tensor, factor: float, state: dict[str, Tensor] | None = None) -> Tensor:
        fn = partial(torch.func.functional_call, self.fn, state) if state else self.fn
        y = apply_branch(fn, x, "iResidual")
        if y.shape != x.shape:
            raise ShapeError(f"iResidual needs fn to keep the shape: got {tuple(y.shape)} for {tuple(x.shape)}.")
        return y if factor == 1 else y * factor

    def _factor(self, dtype: torch.dtype) -> float:
        constant = stated_constant(self.fn, dtype) if self.constant is None else self.constant
        if isinstance(constant, str):
            raise self._no_promise(constant)
        return 1.0 if constant <= self.lipschitz else self.lipschitz / constant

    def _check_promise(self, dtype: torch.dtype) -> None:
        """Check that the branch is a contraction, Note [Contractions]; a given `constant` is trusted."""
        if self.constant is None:
            reason = lapse(self.fn)
            if reason is not None:
                raise self._no_promise(reason)
            self._factor(dtype)

    @staticmethod
    def _no_promise(reason: str) -> ParameterError:
        return ParameterError(
            "iResidual: fn must be a chain (nn.Sequential) of layers that promise their constant, so that the branch "
            f"is a contraction whatever the optimizer does: {reason.rstrip('.')}. Pass `constant`, if you know one."
        )

    def _check_fixed(self) -> None:
        """Check that the branch is one fixed function of each sample by itself."""
        for name, module in self.named_modules():
            if module.training and getattr(module, "running_mean", None) is not None:
                raise ParameterError(
                    f"iResidual: in training mode, {type(module).__name__} ({name}) subtracts a mean that "
                    "depends on the batch and moves with each call, so that there is no one function to undo. Use "
                    "eval()."
                )

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        return x + self.branch(x)

    def inverse(self) -> Inverse:
        """The module that undoes this one."""
        return Inverse(self)

    def undo(self, y: Tensor) -> Tensor:
        """The input that gives this output, by a fixed-point iteration."""
        if torch.compiler.is_dynamo_compiling():  # the loops of `solve` end where values say so
            return torch.compiler.disable(self.solve)(y)[0]
        if has_values(y):
            return self.solve(y)[0]
        self._check_contraction(y.dtype)
        factor = self._factor(y.dtype)
        return self._fixed_point.unrolled(lambda x: self._scaled(x, factor), y)

    @property
    def _fixed_point(self) -> FixedPoint:
        return FixedPoint(self.lipschitz, self.tolerance, self.max_iterations)

    def _check_contraction(self, dtype: torch.dtype) -> None:
        self._check_promise(dtype)
        self._check_fixed()

    def solve(self, y: Tensor) -> tuple[Tensor, float]:
        """The input that gives this output, and a bound on its error (Euclidean, of each sample; up to rounding).

        Raises:
            ParameterError: if `max_iterations` is too small for `tolerance`, or if steps refute the constant.
        """
        if not has_values(y):
            raise ParameterError(
                "iResidual.solve reads values for the bound of its error, which it cannot inside transforms and "
                "traces. Use `inverse()` there."
            )
        if y.dim() < 2:
            raise ShapeError(f"iResidual.solve takes a batch of outputs, (n, …): got shape {tuple(y.shape)}.")
        self._check_contraction(y.dtype)
        if not y.numel():
            return y, 0.0
        factor = self._factor(y.dtype)
        # Whoever differentiates the derivative may do so after the end of a `functional_call`.
        tensors = itertools.chain(self.named_parameters(), self.named_buffers())
        state = {name.removeprefix("fn."): tensor for name, tensor in tensors}

        def b(x: Tensor) -> Tensor:
            return self._scaled(x, factor)

        x, error = self._fixed_point.solve(b, y)
        return self._fixed_point.attach(b, y, x, lambda x: self._scaled(x, factor, state)), error

    def log_det(self, x: Tensor, terms: int = 20, probes: int = 1, exact: bool | None = None) -> LogDet:
        """`log |det|` of the Jacobian at each input of a batch.

        Args:
            x: inputs, (batch, …).
            terms: number of terms of the series, if not exact.
            probes: number of random vectors for each sample, whose estimates are averaged.
            exact: whether to take the determinant of the whole Jacobian; None does so for inputs of up to 256 numbers.
        """
        self._check_contraction(x.dtype)
        size = x[0].numel()
        if size <= _SMALL if exact is None else exact:
            jacobian = torch.func.vmap(torch.func.jacrev(lambda v: self(v[None])[0]))(x)
            return LogDet(torch.linalg.slogdet(jacobian.reshape(len(x), size, size)).logabsdet, 0.0)
        if terms < 1 or probes < 1:
            raise ParameterError(f"log_det needs at least one term and one probe: got {terms} and {probes}.")
        total = x.new_zeros(len(x))
        for _ in range(probes):
            signs = torch.randint(2, x.shape, device=x.device).to(x.dtype) * 2 - 1
            pull: Any = torch.func.vjp(self.branch, x)[1]
            v = signs
            for k in range(1, terms + 1):
                (v,) = pull(v)
                total = total + (-1) ** (k + 1) / k * (v * signs).flatten(1).sum(1)
        bias = size * self.lipschitz ** (terms + 1) / ((terms + 1) * (1 - self.lipschitz))
        return LogDet(total / probes, bias)

    def extra_repr(self) -> str:
        """The constant of the branch."""
        return f"lipschitz={self.lipschitz}"
