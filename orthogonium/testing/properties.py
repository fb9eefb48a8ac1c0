"""Whether a layer is orthogonal or Lipschitz, judged by what it computes and not by what it says."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from orthogonium.errors import ParameterError
from orthogonium.spectral import is_affine, jacobian_singular_values, operator_singular_values, steepest_point

Function = Callable[[Tensor], Tensor] | nn.Module
# Deviation of a singular value that the arithmetic of a dtype explains.
TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def _kind(fn: Function) -> tuple[torch.dtype, torch.device]:
    held = itertools.chain(fn.parameters(), fn.buffers()) if isinstance(fn, nn.Module) else iter(())
    first = next((t for t in held if t.is_floating_point()), None)
    return (torch.get_default_dtype(), torch.device("cpu")) if first is None else (first.dtype, first.device)


def _tolerance(tolerance: float | None, dtype: torch.dtype) -> float:
    if tolerance is None:
        return TOLERANCES.get(dtype, 1e-4)
    if not tolerance >= 0:
        raise ParameterError(f"A tolerance is a number ≥ 0: got {tolerance}.")
    return tolerance


def _name(fn: Function) -> str:
    return type(fn).__name__ if isinstance(fn, nn.Module) else getattr(fn, "__name__", repr(fn))


def _points(input_shape: Sequence[int], count: int, fn: Function, seed: int) -> Tensor:
    dtype, device = _kind(fn)
    return torch.randn(count, *input_shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def assert_orthogonal(
    layer: Function, input_shape: Sequence[int], *, tolerance: float | None = None, points: int = 8, seed: int = 0
) -> None:
    """Fail unless all singular values are 1: of the operator of a linear layer, of Jacobians of any other.

    A linear map is judged exactly, by the SVD of its impulse responses. A non-linear one at random points: a failure is
    certain, a pass is evidence.

    Args:
        layer: a module or a function on batches.
        input_shape: of one sample, small enough for an SVD.
        tolerance: allowed deviation from 1; by default what the dtype explains (1e-4 in float32, 1e-8 in float64).
        points: where a non-linear layer is looked at.
        seed: of the points.

    >>> from orthogonium.layers import AdaptiveOrthoConv2d
    >>> from orthogonium.testing import assert_orthogonal
    >>> assert_orthogonal(AdaptiveOrthoConv2d(2, 4, 3, stride=2), (2, 6, 6))
    """
    allowed = _tolerance(tolerance, _kind(layer)[0])
    if is_affine(layer, input_shape):
        sigma, what = operator_singular_values(layer, input_shape), "operator"
    else:
        sigma, what = jacobian_singular_values(layer, _points(input_shape, points, layer, seed)), "Jacobian"
    low, high = float(sigma.min()), float(sigma.max())
    if not max(high - 1, 1 - low) <= allowed:
        raise AssertionError(
            f"{_name(layer)} is not orthogonal on inputs {tuple(input_shape)}: the singular values of its {what} lie in "
            f"[{low:.6g}, {high:.6g}], allowed is 1 ± {allowed:.0e}."
        )


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
    """Fail if some two inputs are moved apart by more than a factor of `constant`.

    A linear map is judged exactly, by the SVD of its impulse responses. For any other, the norm of the Jacobian is
    maximized by gradient ascent from random points: a failure is certain, a pass is evidence (`lipschitz_bound` proves).

    Args:
        module: a module or a function on batches.
        input_shape: of one sample.
        constant: the claim.
        tolerance: allowed relative excess; by default what the dtype explains (1e-4 in float32, 1e-8 in float64).
        points: where the ascent starts: half of them random, half of them ten times as large.
        steps: of the ascent.
        seed: of the points.

    >>> from orthogonium.layers import MaxMin
    >>> from orthogonium.testing import assert_lipschitz
    >>> assert_lipschitz(MaxMin(), (4,))
    """
    if not constant >= 0:
        raise ParameterError(f"A Lipschitz constant is a number ≥ 0: got {constant}.")
    allowed = constant * (1 + _tolerance(tolerance, _kind(module)[0]))
    if is_affine(module, input_shape):
        steepest = float(operator_singular_values(module, input_shape)[0])
        how = "the largest singular value of its operator is"
    else:
        starts = _points(input_shape, points, module, seed)
        starts[points // 2 :] *= 10
        found, _ = steepest_point(module, starts, steps=steps, generator=torch.Generator().manual_seed(seed))
        steepest, how = float(found.max()), "gradient ascent found a Jacobian of norm"
    if not steepest <= allowed:
        raise AssertionError(
            f"{_name(module)} is not {constant:g}-Lipschitz on inputs {tuple(input_shape)}: {how} {steepest:.6g}."
        )
