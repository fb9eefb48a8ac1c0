"""Constant matrices and kernels, measured as they reach the operators: norm, rounding, and the step they report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from orthogonium.certification.rounding import product_roundoff, sum_growth, sum_roundoff, unit_roundoff
from orthogonium.certification.rules.call import NOT_FINITE, Call, Local, NoBound
from orthogonium.errors import OrthogoniumError
from orthogonium.layers.conv.base import ConstrainedConv
from orthogonium.layers.guarantee import Guarantee
from orthogonium.spectral import Spectrum, convolution, spectrum

PRODUCT = (
    "The product of two values is not Lipschitz: its derivative grows with them. That of queries and keys is one, so "
    "that nn.MultiheadAttention has no constant.",
    "Use DistanceAttention or TokenMixing in the place of attention, OrthoLinear or a constant matrix elsewhere.",
)

_SHARP = 1e-3  # an isometry known to this accuracy need not be known better
_QUICK = 1e9  # floating point operations that the exact spectrum of one layer may cost


def measured(call: Call, weight: Tensor, shape: Sequence[int] | None, **geometry: Any) -> Spectrum:
    """Spectrum of a constant kernel or matrix as it is now; equal ones are measured once."""
    weight = weight.detach()
    if not bool(weight.isfinite().all()):
        raise NoBound(*NOT_FINITE)
    key = (tuple(shape or ()), tuple(sorted((k, str(v)) for k, v in geometry.items())))
    for known, kept, found in call.walk.measured:
        if (
            known == key
            and kept.shape == weight.shape
            and kept.dtype == weight.dtype
            and torch.equal(kept, weight.cpu())
        ):
            return found
    conv = convolution(weight, **geometry)
    try:
        found = spectrum(conv, shape, rtol=_SHARP, budget=_QUICK)
        if found.kind == "upper" and found.sigma_max > (1 + _SHARP) * found.sigma_min:
            found = spectrum(conv, shape, rtol=_SHARP)
        _ = found.upper_bound
    except OrthogoniumError as error:
        raise NoBound(f"Its spectral norm is unknown: {error}", "Use nn.ConvNd.") from error
    call.walk.measured.append((key, weight.cpu().clone(), found))
    return found


def matrix_norm(call: Call, matrix: Tensor) -> tuple[float, Spectrum | None]:
    """Largest norm of one or several matrices (…, m, n)."""
    if matrix.dim() == 2:
        found = measured(call, matrix, None)
        return found.upper_bound, found
    first = matrix[0] if len(matrix) else matrix.new_zeros(matrix.shape[1:])
    if all(bool((m == first).all()) for m in matrix):
        return matrix_norm(call, first)
    return max(measured(call, m, None).upper_bound for m in matrix), None


def absolute_norm(matrix: Tensor) -> float:
    """Upper bound of the norm of the absolute values: √(largest row sum · largest column sum)."""
    a = matrix.detach().double().abs()
    return float((a.sum(-1).amax() * a.sum(-2).amax()).sqrt()) * (1 + 1e-12) if a.numel() else 0.0


def product_rounding(
    call: Call, terms: int, norm: float, absolute: float, added: float = 0.0, *, conv: bool = False
) -> Local:
    """Rounding of sums of `terms` products and of added constants, with which the sum may begin.

    Args:
        call: the call of the operator.
        terms: number of terms of each sum.
        norm: norm of the matrix.
        absolute: norm of the absolute values of its entries.
        added: norm of the constants, for one sample.
        conv: whether it is a convolution.
    """
    dtype, device = call.first_output.dtype, call.first_output.device
    unit, factors = unit_roundoff(dtype), product_roundoff(dtype, device, conv)
    relative = sum_roundoff(terms + 1, unit, factors)
    beside = added * sum_growth(terms)
    local = Local(relative * absolute, unit, absolute, unit=factors, beside=beside, offset=relative * added)
    return call.summed(terms + 1, norm, local, factors)


def norm_of_sample(call: Call, constant: Tensor) -> float:
    """Norm of what a constant adds to the output of one sample."""
    output = call.first_output
    norm = float(torch.linalg.vector_norm(constant.detach().double().expand(output.shape)))
    front = output.dim() > 0 and output.shape[0] == call.walk.batch
    return norm / math.sqrt(call.walk.batch) * (1 + 1e-12) if front else norm


def layer_step(
    call: Call, found: Spectrum | None, kinds: tuple[type, ...], shape: Sequence[int] = ()
) -> dict[str, Any] | None:
    """The layer in the report, named after the module it runs in if that is such a layer.

    A layer that applies several weights makes a promise for each, by its `shape`.
    """
    if found is None:
        return None
    module = call.walk.module
    layer = module if isinstance(module, kinds) else None
    guarantee = getattr(layer, "guarantee", None)
    guarantee = guarantee if isinstance(guarantee, Guarantee) else None
    operation = type(layer).__name__.removeprefix("Parametrized") if layer is not None else call.name
    part = layer.promise_along_axis(shape) if isinstance(layer, ConstrainedConv) else None
    if part is not None:
        guarantee, operation = part, f"{operation}, {'×'.join(map(str, shape[2:]))}"
    factor = found.upper_bound
    return {
        "operation": operation,
        "factor": factor,
        "kind": found.kind,
        "sigma_min": found.sigma_min,
        "sigma_max": found.sigma_max,
        "stable_rank": found.stable_rank,
        "slack": factor / found.sigma_max - 1 if found.sigma_max else 0.0,
        "method": found.method,
        "guarantee": None if guarantee is None else str(guarantee),
        "warnings": _broken(found, guarantee),
    }


def _broken(found: Spectrum, guarantee: Guarantee | None) -> tuple[str, ...]:
    """Warnings if a measured layer breaks its promise; an upper bound shows that only if it is far off."""
    if guarantee is None or guarantee.each_output:
        return ()
    constant = guarantee.constant
    if found.sigma_max > constant * (1 + (1e-4 if found.kind != "upper" else 0.02)):
        return (f"Its guarantee is broken: σ_max = {found.sigma_max:.6g} ({found.kind}).",)
    shrinks = found.kind == "exact" and found.sigma_min < constant * (1 - 1e-3)
    if guarantee.kind == "orthogonal" and shrinks and not guarantee.depends_on_size:
        return (f"It is not orthogonal: σ_min = {found.sigma_min:.6g}.",)
    return ()


# ── matrices ──


def square(c: float) -> float:
    """`c²`, rounded up; exact zeros and ones stay."""
    return c * c if c in (0.0, 1.0) else c * c * (1 + 1e-15)
