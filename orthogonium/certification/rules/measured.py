"""Constant matrices and kernels, measured as they reach the operators: norm, rounding, and the step they report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from orthogonium.certification.rounding import product_roundoff, sum_roundoff, unit_roundoff
from orthogonium.certification.rules.call import NOT_FINITE, Call, Local, NoBound
from orthogonium.errors import OrthogoniumError
from orthogonium.layers.guarantee import Guarantee
from orthogonium.spectral import Spectrum, convolution, spectrum

PRODUCT = ("The product of two values (Attention is one) is not Lipschitz.", "Use OrthoLinear, or a constant matrix.")


def measured(call: Call, weight: Tensor, shape: Sequence[int] | None, **geometry: Any) -> Spectrum:
    """Spectrum of a constant kernel or matrix as it is now; once for equal ones."""
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
    try:
        found = spectrum(convolution(weight, **geometry), shape, rtol=1e-3)
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
    """Norm of the absolute values, from above: √(largest row sum · largest column sum)."""
    a = matrix.detach().double().abs()
    return float((a.sum(-1).amax() * a.sum(-2).amax()).sqrt()) * (1 + 1e-12) if a.numel() else 0.0


def product_rounding(call: Call, terms: int, absolute: float, *, conv: bool = False) -> Local:
    """Rounding of sums of so many products, by the norm of the absolute values of the factors."""
    dtype, device = call.first_output.dtype, call.first_output.device
    unit, factors = unit_roundoff(dtype), product_roundoff(dtype, device, conv)
    return Local(sum_roundoff(terms + 1, unit, factors) * absolute, unit, absolute, unit=factors)


def layer_step(call: Call, found: Spectrum | None, kinds: tuple[type, ...]) -> dict[str, Any] | None:
    """The layer in the report: named after the module it runs in, if that is such a layer."""
    if found is None:
        return None
    module = call.walk.module
    layer = module if isinstance(module, kinds) else None
    guarantee = getattr(layer, "guarantee", None)
    guarantee = guarantee if isinstance(guarantee, Guarantee) else None
    factor = found.upper_bound
    return {
        "operation": type(layer).__name__.removeprefix("Parametrized") if layer is not None else call.name,
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
    """Warnings where a measured layer is not what it promises; an upper bound proves that only if it is far off."""
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
