"""Fixed points of contractions, `x = y − b(x)`, and their derivatives.

Note [Error of a fixed point]
If b is a contraction with constant λ, the error of `x ← y − b(x)` shrinks by λ in each step: after a step of length
δ it is at most `δ·λ/(1 − λ)`. After n steps from y it is at most `λⁿ/(1 − λ)` times the first step, whatever the
values are: where values cannot be read, n is chosen from this bound.

Note [Derivative of a fixed point]
`dx = (I + J)⁻¹(dy − db)`, where J is the Jacobian of b at x and db the change of b at fixed x. So one step `y − b(x)`,
with x as a constant, has the value x and is differentiated; incoming gradients g are first replaced by the u with
`u + Jᵀu = g`, a fixed point of a contraction with the same λ. It does not matter how x was found, nor in how many
steps. The derivative of u is again that of a fixed point, so the derivative with respect to y can be differentiated;
that with respect to parameters of b, and third derivatives, would lack the change of x and are refused. Compilers,
function transforms and forward derivatives take plain steps instead, which torch differentiates to any order: n of them
from x leave out `λⁿ/(1 − λ)` of a derivative.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from orthogonium.errors import DerivativeError, ParameterError
from orthogonium.linalg.evaluation import has_values

Map = Callable[[Tensor], Tensor]


def _norms(x: Tensor) -> Tensor:  # (batch, …) → (batch,)
    return torch.linalg.vector_norm(x.detach().flatten(1), dim=1)


@dataclass(frozen=True)
class FixedPoint:
    """How fixed points are found: λ, the requested error relative to the largest entry, and the most steps allowed."""

    lipschitz: float
    tolerance: float
    max_iterations: int

    @property
    def _factor(self) -> float:
        return self.lipschitz / (1 - self.lipschitz)

    def _steps(self, tolerance: float) -> int:
        """How many steps bring the error down to this fraction of the first step."""
        return max(1, math.ceil(math.log(tolerance * (1 - self.lipschitz)) / math.log(self.lipschitz)))

    @torch.no_grad()
    def solve(self, b: Map, y: Tensor) -> tuple[Tensor, float]:
        """The fixed point, without a graph, and a bound on its error. Note [Error of a fixed point]."""
        x, error, lipschitz = y.detach(), math.inf, self.lipschitz
        scale = max(float(x.abs().max()), torch.finfo(y.dtype).tiny)
        if not math.isfinite(scale):
            raise ParameterError("iResidual: the output to undo has entries that are NaN or infinite.")
        # The rounding error of a step cannot be undone: no smaller error is requested.
        smallest = 8 * torch.finfo(y.dtype).eps * scale * max(y[0].numel(), 1) ** 0.5 / (1 - lipschitz)
        before: Tensor | None = None
        for _ in range(self.max_iterations):
            following = (y - b(x)).detach()
            steps = _norms(following - x)
            if before is not None and not bool((steps <= lipschitz * 1.00001 * before + 8 * smallest).all()):
                worst = int((steps - lipschitz * before).argmax())
                raise self._refuted(float(before[worst]), float(steps[worst]))
            x, error, before = following, self._factor * float(steps.max()), steps
            if error <= max(self.tolerance * scale, smallest):
                return x, error
        raise self._too_few(f"after {self.max_iterations} iterations the inverse is known to {error:.1e} only")

    def attach(self, b: Map, y: Tensor, x: Tensor, again: Map) -> Tensor:
        """The fixed point x as a function of y and of what b depends on. Note [Derivative of a fixed point].

        Args:
            b: the contraction.
            y: the right-hand side of the fixed-point equation.
            x: the value of the fixed point.
            again: the contraction, for later calls, in the derivative of a derivative.
        """
        image = b(x)
        if not has_values(image):  # parameters with tangents
            return self._unroll(b, y, x)
        return self._implicit(b, y, image, x, again)

    def unrolled(self, b: Map, y: Tensor) -> Tensor:
        """The fixed point by plain operators, without reading values."""
        x = y.detach()
        with torch.no_grad():
            for _ in range(self._steps_to_rounding(y)):
                x = (y - b(x)).detach()
        return self._unroll(b, y, x)

    def _unroll(self, b: Map, y: Tensor, x: Tensor) -> Tensor:
        for _ in range(self._steps_to_rounding(y)):
            x = y - b(x)
        return x

    def _steps_to_rounding(self, y: Tensor) -> int:
        count = self._steps(torch.finfo(y.dtype).eps)
        if count > self.max_iterations:
            raise self._too_few(f"where values cannot be read, the inverse takes {count} iterations")
        return count

    def _implicit(self, b: Map, y: Tensor, image: Tensor, x: Tensor, again: Map) -> Tensor:
        step = y - _Once.apply(image)
        if not step.requires_grad:
            return x
        leaf = x.detach().requires_grad_()
        with torch.enable_grad():
            image = b(leaf)
        return _Implicit.apply(step, image, leaf, x, again, self)

    def pulled(self, pull: Map, grad: Tensor) -> Tensor:
        """The u with `u + pull(u) = grad`, for each sample to the tolerance relative to its gradient."""
        eps = torch.finfo(grad.dtype).eps
        tolerance = max(self.tolerance, eps)
        u, errors = grad, None  # relative ones, where values can be read
        for _ in range(self._steps(tolerance)):
            following = grad - pull(u)
            if has_values(grad):
                errors = self._factor * _norms(following - u) / _norms(grad).clamp_min(torch.finfo(grad.dtype).tiny)
            u = following
            if errors is not None and bool((errors <= tolerance).all()):
                return u
        # A contraction has converged by now, up to rounding.
        rounding = 8 * eps * max(grad[0].numel(), 1) ** 0.5 / (1 - self.lipschitz) ** 2
        if errors is not None and not bool((errors <= tolerance + rounding).all()):
            raise self._refuted(1.0, float(errors.max()) / self._factor)
        return u

    def _refuted(self, before: float, after: float) -> ParameterError:
        return ParameterError(
            f"iResidual: the branch is no contraction with the constant {self.lipschitz}: steps of a length of "
            f"{before:.3g} became {after:.3g}. Its `constant`, the guarantee of one of its layers, or a hook is wrong."
        )

    def _too_few(self, what: str) -> ParameterError:
        return ParameterError(
            f"iResidual: {what}; allowed are {self.max_iterations}, for an error of {self.tolerance:.1e}, relative to "
            f"the largest entry. Allow more iterations, or take a smaller `lipschitz` than {self.lipschitz}."
        )


def _pull(image: Tensor, x: Tensor, v: Tensor, again: bool = False) -> Tensor:
    """`Jᵀv`, with the graph of the derivative if it is to be differentiated `again`."""
    if not image.requires_grad:  # it does not depend on x
        return torch.zeros_like(v)
    options: dict[str, Any] = {"create_graph": True} if again else {"retain_graph": True}
    return torch.autograd.grad(image, x, v, materialize_grads=True, **options)[0]


class _Once(torch.autograd.Function):
    """`b(x)` with x held constant: its gradients cannot be differentiated again, since they depend on x."""

    @staticmethod
    def forward(ctx: Any, image: Tensor) -> Tensor:
        return image.view_as(image)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise DerivativeError(
                "iResidual: derivatives of its inverse with respect to parameters (and second ones with respect to its "
                "outputs) cannot be differentiated once more with create_graph=True. Use transforms of functions: "
                "torch.func.hessian, or jacrev of jacrev, of torch.func.functional_call."
            )
        return grad


class _Implicit(torch.autograd.Function):
    """The value x of the step `y − b(x)`, whose gradients are replaced. Note [Derivative of a fixed point]."""

    @staticmethod
    def forward(ctx: Any, step: Tensor, image: Tensor, leaf: Tensor, x: Tensor, b: Map, rule: FixedPoint) -> Tensor:
        value = x.clone()
        ctx.save_for_backward(image, leaf, value)
        ctx.b, ctx.rule = b, rule
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        image, leaf, x = ctx.saved_tensors
        with torch.no_grad():
            u = ctx.rule.pulled(lambda v: _pull(image, leaf, v), grad)
        if torch.is_grad_enabled():
            slope = ctx.b(x)

            def pull(v: Tensor) -> Tensor:
                return _pull(slope, x, v, again=True)

            u = ctx.rule._implicit(pull, grad, pull(u), u, pull)
        return u, None, None, None, None, None
