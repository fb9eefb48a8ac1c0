"""Circular convolutions by Fourier transform, with kernels as large as the image."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from orthogonium.certification.rounding import product_roundoff, sum_growth, sum_roundoff, underflow, unit_roundoff
from orthogonium.certification.rules.call import Effect, Local, NoBound, constant_of, is_value
from orthogonium.certification.rules.measured import PRODUCT, layer_step, measured, square
from orthogonium.layers.conv.frequencies import symbol_of


def on_circle(call: Any) -> Any:
    """A circular convolution by Fourier transform, or the adjoint of one, bounded from its kernel."""
    x, weight, stride, groups, adjoint = call.args
    if is_value(weight):
        raise NoBound(*PRODUCT)
    if not is_value(x) or x.dim() != weight.dim():
        return NotImplemented
    weight = constant_of(weight).detach()
    sizes = tuple(n * s for n, s in zip(x.shape[2:], stride, strict=True)) if adjoint else tuple(x.shape[2:])
    if any(n % s for n, s in zip(sizes, stride, strict=True)):
        return NotImplemented
    channels = weight.shape[1] * groups
    circle = {"groups": groups, "stride": stride, "padding": "same", "padding_mode": "circular"}
    found = measured(call, weight, (channels, *sizes), **circle)
    owner = call.together(x, range(1, x.dim()))
    owner = None if owner is None else owner.expand(call.output.shape)
    factor = found.upper_bound
    local = _fourier_rounding(call, weight, stride, groups, sizes, factor)
    step = layer_step(call, found, (torch.nn.modules.conv._ConvNd,))
    return Effect((x.form().scaled(square(factor)),), owner, local, None, step)


def _fourier_rounding(
    call: Any, weight: Tensor, stride: Any, groups: int, sizes: tuple[int, ...], norm: float
) -> Local:
    """Rounding of two Fourier transforms, of the product between them, and of the matrices in that product.

    A transform of n = ∏p points (p prime), computed in one step for each p as a product with an orthogonal matrix of p
    rows, is off by `Σ (p + 4)√p` units relative to the norm; four times that leaves room for other algorithms (chirps).
    """
    dtype = torch.promote_types(call.output.dtype, torch.float32)
    unit, factors = unit_roundoff(dtype), product_roundoff(dtype, call.output.device, False)
    coarse = tuple(n // s for n, s in zip(sizes, stride, strict=True))
    units = 4 * sum((p + 4) * math.sqrt(p) for m in coarse for p in _primes(m))
    transform = units * unit
    symbols = (symbol_of(weight.to(t), stride, groups, coarse) for t in (dtype, torch.float64))
    computed, exact = (s.to(torch.complex128) for s in symbols)
    # The matrices as they are computed, which the same numbers make again; those of float64 are off by less than the
    # last.
    spread = math.sqrt(2 * math.prod(sizes)) * float(torch.linalg.vector_norm(weight.double()))
    off = 2 * float(torch.linalg.matrix_norm(computed - exact).amax()) + units * unit_roundoff(torch.float64) * spread
    # Real and imaginary part of each entry of the product are sums of two real products for each channel.
    parts = exact.real.abs() + exact.imag.abs()
    rows, columns = parts.sum(-1).amax(-1), parts.sum(-2).amax(-1)
    absolute = float((rows * columns).amax().sqrt()) * (1 + 1e-12)
    terms = 2 * max(exact.shape[-2:]) + 1
    product = sum_roundoff(terms, unit, factors) * absolute + off
    pixels = math.prod(coarse)
    lost = terms * pixels * underflow(dtype) * math.sqrt(call.output[0].numel() if len(call.output) else 1)
    return Local(
        (transform * norm + product) * (1 + 1e-3),
        transform * (1 + 1e-3),
        inside=pixels * max(absolute, 1.0),
        unit=factors,
        lost=lost,
        sums=max(unit, factors) * norm * sum_growth(terms),
    )


def _primes(n: int) -> list[int]:
    """Prime factors, with multiplicity."""
    p = next((p for p in range(2, math.isqrt(n) + 1) if n % p == 0), n)
    return [] if n == 1 else [p, *_primes(n // p)]
