"""Invertible residual blocks, `x + fn(x)` with a contraction `fn`.

Behrmann, Grathwohl, Chen, Duvenaud, Jacobsen (2019), "Invertible residual networks", with constants that are known
instead of estimated: those that the layers of `fn` promise.

Note [Contractions]
`fn` is a chain of modules that promise their constants (`guarantee`) or are 1-Lipschitz activations of torch; the
product of these, times the factor that `fn` is multiplied by, is at most `lipschitz` < 1. So `x + s·fn(x)` is undone by
`x ← y − s·fn(x)`, whose error shrinks by `lipschitz` in each step: after a step of length δ it is at most
`δ·lipschitz/(1 − lipschitz)`.

Note [Logarithm of the determinant]
`log det(I + J) = Σ_k (−1)^(k+1) tr(Jᵏ)/k`, J the Jacobian of `s·fn`. The sum is cut after `terms`, which leaves out at
most `d·lipschitz^(terms+1) / ((terms + 1)(1 − lipschitz))` for inputs of d numbers: the bias. Traces are estimated by
random signs v, `vᵀJᵏv` (Hutchinson): their mean is the sum that was cut.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from orthogonium.errors import ParameterError, ShapeError
from orthogonium.layers.guarantee import Guarantee
from orthogonium.layers.inversion import Inverse
from orthogonium.layers.residual import IF_FN_IS_1_LIPSCHITZ

_SMALL = 256  # numbers in an input up to which the determinant is computed from the whole Jacobian
_NOT_EXPANDING = (
    nn.Identity,
    nn.ReLU,
    nn.Tanh,
    nn.Hardtanh,
    nn.Softplus,
    nn.Sigmoid,
    nn.Flatten,
    nn.Unflatten,
)


class LogDet(NamedTuple):
    """A logarithm of a determinant for each sample, and what may be missing from its mean: 0 if it is exact."""

    value: Tensor
    bias: float


def promised_constant(module: nn.Module) -> float | None:
    """The product of the constants that the parts of a chain promise; None if one of them does not."""
    if type(module) is nn.Sequential:
        constant = 1.0
        for child in module:
            own = promised_constant(child)
            if own is None:
                return None
            constant *= own
        return constant
    guarantee = getattr(module, "guarantee", None)
    if guarantee is IF_FN_IS_1_LIPSCHITZ:
        inner = promised_constant(module.fn) if isinstance(module.fn, nn.Module) else None
        return 1.0 if inner is not None and inner <= 1 else None
    if isinstance(guarantee, Guarantee) and not guarantee.each_output:
        return guarantee.constant
    return 1.0 if type(module) in _NOT_EXPANDING else None


class iResidual(nn.Module):  # noqa: N801, the name of the paper's architecture
    """`x + s·fn(x)`, where `s·fn` is a contraction, so that the block can be undone.

    `fn` is multiplied by `s = lipschitz / c`, with the constant c that its layers promise (or `constant`), if c is
    larger than `lipschitz`; else s = 1.

    Guarantee: invertible, with constant `1 + lipschitz`; distances shrink by `1 − lipschitz` at most.

    Args:
        fn: a module that keeps the shape of its input: a chain (`nn.Sequential`) of constrained layers and activations.
        lipschitz: the constant of the branch, between 0 and 1.
        constant: a Lipschitz constant of `fn`, where its parts do not promise one. It is believed.
        tolerance: of the inverse, relative to the largest entry: iterations end when their error is bounded by it.
        max_iterations: of the inverse, at most.

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
        promised = promised_constant(fn) if constant is None else constant
        if promised is None or not 0 <= promised < float("inf"):
            raise ParameterError(
                "iResidual: fn must be a chain (nn.Sequential) of layers that promise their constant, so that the "
                f"branch is a contraction whatever the optimizer does: got {type(fn).__name__}. Pass `constant`, if "
                "you know one."
            )
        self.fn, self.lipschitz, self.constant = fn, lipschitz, constant
        self.tolerance, self.max_iterations = tolerance, max_iterations

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
        """Invertible, and it expands by this much at most."""
        return Guarantee("lipschitz", 1 + self.lipschitz)

    def branch(self, x: Tensor) -> Tensor:
        """`s·fn(x)`, a contraction."""
        promised = promised_constant(self.fn) if self.constant is None else self.constant
        assert promised is not None  # as it was known at construction
        y = self.fn(x)
        if y.shape != x.shape:
            raise ShapeError(f"iResidual needs fn to keep the shape: got {tuple(y.shape)} for {tuple(x.shape)}.")
        return y if promised <= self.lipschitz else y * (self.lipschitz / promised)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        return x + self.branch(x)

    def inverse(self) -> Inverse:
        """The module that undoes this one."""
        return Inverse(self)

    def undo(self, y: Tensor) -> Tensor:
        """The input of this output, by a fixed point."""
        return self.solve(y)[0]

    def solve(self, y: Tensor) -> tuple[Tensor, float]:
        """The input of this output, and a bound of its error (Euclidean, of each sample; but for rounding).

        Raises:
            ParameterError: if `max_iterations` are not enough for `tolerance`, or if steps refute the constant.
        """
        x, factor, error = y, self.lipschitz / (1 - self.lipschitz), float("inf")
        scale = max(float(y.detach().abs().max()), torch.finfo(y.dtype).tiny) if y.numel() else 1.0
        # What rounding adds in a step is never undone: no smaller error is asked for.
        smallest = 8 * torch.finfo(y.dtype).eps * scale * max(y[0].numel(), 1) ** 0.5 / (1 - self.lipschitz)
        before: Tensor | None = None
        for _ in range(self.max_iterations):
            following = y - self.branch(x)
            steps = (following - x).detach().flatten(1).norm(dim=1)
            if before is not None and not bool((steps <= self.lipschitz * 1.00001 * before + 8 * smallest).all()):
                worst = int((steps - self.lipschitz * before).argmax())
                raise ParameterError(
                    f"iResidual: the branch is no contraction with the constant {self.lipschitz}: points at a distance "
                    f"of {before[worst]:.3g} have images at {steps[worst]:.3g}. Its `constant`, the guarantee of one "
                    "of its layers, or a hook is wrong."
                )
            x, error, before = following, factor * float(steps.max()), steps
            if error <= max(self.tolerance * scale, smallest):
                return x, error
        raise ParameterError(
            f"iResidual: after {self.max_iterations} iterations the inverse is known to {error:.1e} only, asked for "
            f"{self.tolerance * scale:.1e}. Allow more iterations, or take a smaller `lipschitz` than {self.lipschitz}."
        )

    def log_det(self, x: Tensor, terms: int = 20, probes: int = 1, exact: bool | None = None) -> LogDet:
        """`log |det|` of the Jacobian at each input of a batch.

        Args:
            x: inputs, (batch, …).
            terms: of the series, if it is not exact.
            probes: random vectors for each sample, whose estimates are averaged.
            exact: whether to take the determinant of the whole Jacobian; None for up to 256 numbers in an input.
        """
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
