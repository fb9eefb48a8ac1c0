"""Whether a layer is orthogonal or Lipschitz, judged by what it computes, not by what it or its gradient claims.

Note [Judged twice]
A module is judged as the function it is, by its copy in float64 (`exact_twin`) where there is one, and as the program
it is, in its own dtype: that finds outputs that are not finite, and code that depends on the dtype. There, what
rounding may have added is deducted, as estimated from the difference from the twin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from orthogonium.errors import ParameterError
from orthogonium.spectral import (
    Quotient,
    exact_twin,
    is_affine,
    jacobian,
    operator_singular_values,
    steepest_quotient,
)
from orthogonium.spectral.operator import as_function

Function = Callable[[Tensor], Tensor] | nn.Module
# Deviation of a singular value that the arithmetic of a dtype explains.
TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
# Relative error of an evaluation if there is no twin to compare with: fast convolutions lose digits.
_NOISE = {torch.float64: 2.0**-40, torch.float32: 2.0**-15}


def _tolerance(tolerance: float | None, dtype: torch.dtype) -> float:
    if tolerance is None:
        return TOLERANCES.get(dtype, 1e-4)
    if not tolerance >= 0:
        raise ParameterError(f"A tolerance is a number ≥ 0: got {tolerance}.")
    return tolerance


def _name(fn: Function) -> str:
    return type(fn).__name__ if isinstance(fn, nn.Module) else getattr(fn, "__name__", repr(fn))


def _points(input_shape: Sequence[int], count: int, fn: Function, seed: int) -> Tensor:
    """Random points, of sizes 1, 10 and 1/10 in turn."""
    _, dtype, device = as_function(fn)
    points = torch.randn(count, *input_shape, generator=torch.Generator().manual_seed(seed))
    for k, scale in enumerate((1.0, 10.0, 0.1)):
        points[k::3] *= scale
    return points.to(device, dtype)


def _check_parameters(fn: Function) -> None:
    for name, parameter in fn.named_parameters() if isinstance(fn, nn.Module) else ():
        if not parameter.isfinite().all():
            raise AssertionError(f"{_name(fn)} has the parameter {name} with values that are not finite.")


@torch.no_grad()
def _noise(fn: Function, twin: Callable[[Tensor], Tensor] | None, points: Tensor) -> float | None:
    """Relative error of an evaluation in the dtype of the function."""
    if twin is None:
        return _NOISE.get(points.dtype)
    wide, size = twin(points.double()), 1e-300
    error = (fn(points).double() - wide).reshape(len(points), -1).norm(dim=1)
    sizes = points.double().reshape(len(points), -1).norm(dim=1) + wide.reshape(len(points), -1).norm(dim=1)
    return max(8 * torch.finfo(points.dtype).eps, 8 * float((error / sizes.clamp_min(size)).max()))


def _steepest(fn: Function, input_shape: Sequence[int], budget: int, points: Tensor, seed: int) -> list[Quotient]:
    """The steepest quotients of the function and of the program. Note [Judged twice]."""
    _, dtype, device = as_function(fn)
    twin = exact_twin(fn, input_shape)
    noise = _noise(fn, twin, points)
    found = [steepest_quotient(fn, input_shape, budget=120 if twin else budget, noise=noise, seed=seed)]
    if twin is not None:
        found.append(steepest_quotient(twin, input_shape, dtype=torch.float64, device=device, budget=budget, seed=seed))
    for quotient in found:
        if not quotient.finite:
            raise AssertionError(
                f"{_name(fn)} has an output that is not finite on inputs {tuple(input_shape)}, at one with entries up "
                f"to {float(quotient.x.abs().max()):.3g}."
            )
    return found


def _check_quotients(found: list[Quotient], allowed: float, claim: str) -> None:
    for quotient in found:
        if not quotient.lower <= allowed:
            distance = float((quotient.x.double() - quotient.y.double()).norm())
            raise AssertionError(
                f"{claim}: two inputs at distance {distance:.3g} are moved apart by a factor of {quotient.value:.6g}, "
                f"of which rounding explains at most {quotient.rounding:.1g}."
            )


def assert_orthogonal(
    layer: Function, input_shape: Sequence[int], *, tolerance: float | None = None, points: int = 8, seed: int = 0
) -> None:
    """Fail unless all singular values are 1: those of the operator of a linear layer, or of the Jacobians of any other.

    A linear map is judged exactly, by the SVD of its impulse responses. A non-linear one is judged by its Jacobians at
    random points, and by whether its values move accordingly: a failure is certain, a pass is evidence.

    Args:
        layer: a module or a function on batches.
        input_shape: shape of one sample, small enough for an SVD.
        tolerance: allowed deviation from 1; by default what the dtype explains (1e-4 in float32, 1e-8 in float64).
        points: number of points at which a non-linear layer is tested.
        seed: seed of the random points.

    >>> from orthogonium.layers import AdaptiveOrthoConv2d
    >>> from orthogonium.testing import assert_orthogonal
    >>> assert_orthogonal(AdaptiveOrthoConv2d(2, 4, 3, stride=2), (2, 6, 6))
    """
    allowed = _tolerance(tolerance, as_function(layer)[1])
    _check_parameters(layer)
    where = _points(input_shape, points, layer, seed)
    found = _steepest(layer, input_shape, 240, where, seed)
    if is_affine(layer, input_shape):
        sigma, what = operator_singular_values(layer, input_shape), "operator"
    else:
        sigma, what = _moving(layer, input_shape, where, allowed, seed), "Jacobian"
    claim = f"{_name(layer)} is not orthogonal on inputs {tuple(input_shape)}"
    low, high = float(sigma.min()), float(sigma.max())
    if not max(high - 1, 1 - low) <= allowed:
        raise AssertionError(
            f"{claim}: the singular values of its {what} lie in [{low:.6g}, {high:.6g}], allowed is 1 ± {allowed:.0e}."
        )
    _check_quotients(found, 1 + allowed, claim)


def _moving(layer: Function, input_shape: Sequence[int], where: Tensor, allowed: float, seed: int) -> Tensor:
    """Singular values of Jacobians where the values move accordingly; those of the values where they do not."""
    slopes = jacobian(layer, where).double()  # (points, outputs, inputs)
    twin = exact_twin(layer, input_shape)
    call, x = (layer, where) if twin is None else (twin, where.double())
    noise = _NOISE.get(x.dtype, 8 * torch.finfo(x.dtype).eps)
    duals = torch.randn(slopes.shape[:2], generator=torch.Generator().manual_seed(seed)).to(slopes)
    along = torch.einsum("poi,po->pi", slopes, duals)
    size = x.double().reshape(len(x), -1).norm(dim=1, keepdim=True)
    steps = torch.finfo(x.dtype).eps ** (1 / 3) * size * nn.functional.normalize(along, dim=1)
    with torch.no_grad():
        y = (x.double() + steps.reshape(x.shape)).to(x)
        fx, fy = (call(end).double().reshape(len(x), -1) for end in (x, y))
    distance = (y.double() - x.double()).reshape(len(x), -1).norm(dim=1)
    moved = (fx - fy).norm(dim=1) / distance
    rounding = 2 * noise * (size[:, 0] + fx.norm(dim=1)) / distance
    singular = torch.linalg.svdvals(slopes)
    broken = (moved - 1).abs() > rounding + allowed
    return torch.cat([singular.flatten(), moved[broken].to(singular)])


def assert_lipschitz(
    module: Function,
    input_shape: Sequence[int],
    constant: float = 1.0,
    *,
    tolerance: float | None = None,
    points: int = 16,
    steps: int = 50,
    seed: int = 0,
) -> None:
    """Fail if two inputs are moved apart by more than a factor of `constant`, or if an output is not finite.

    A linear map is judged exactly, by the SVD of its impulse responses. For any other, a search looks for two such
    inputs (`orthogonium.spectral.steepest_quotient`): a failure is certain, a pass is evidence (for a proof, use
    `lipschitz_bound`).

    Args:
        module: a module or a function on batches.
        input_shape: shape of one sample.
        constant: the claimed Lipschitz constant.
        tolerance: allowed relative excess; by default what the dtype explains (1e-4 in float32, 1e-8 in float64).
        points: `points` times `steps` sets the effort: the function is evaluated on about five times as many inputs.
        steps: see `points`.
        seed: seed for everything random.

    >>> from orthogonium.layers import MaxMin
    >>> from orthogonium.testing import assert_lipschitz
    >>> assert_lipschitz(MaxMin(), (4,))
    """
    if not constant >= 0:
        raise ParameterError(f"A Lipschitz constant is a number ≥ 0: got {constant}.")
    allowed = constant * (1 + _tolerance(tolerance, as_function(module)[1]))
    _check_parameters(module)
    affine = is_affine(module, input_shape)
    budget = 240 if affine else max(240, 5 * points * steps)
    where = _points(input_shape, max(points, 3), module, seed)
    claim = f"{_name(module)} is not {constant:g}-Lipschitz on inputs {tuple(input_shape)}"
    found = _steepest(module, input_shape, budget, where, seed)
    if affine:
        steepest = float(operator_singular_values(module, input_shape)[0])
        if not steepest <= allowed:
            raise AssertionError(f"{claim}: the largest singular value of its operator is {steepest:.6g}.")
    _check_quotients(found, allowed, claim)
