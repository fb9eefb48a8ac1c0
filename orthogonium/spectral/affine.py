"""Whether a function is affine, judged by its values: in float64 wherever it can be computed there.

Note [Affine up to rounding]
For an affine f, f(x) − f(0) is additive. How exactly depends on the arithmetic alone, and is measured against the size
of f(x) − f(0), *not* of f(0): a large offset hides everything small at ordinary inputs, so inputs grow until the
response is as large as the offset. Entries are multiples of 1/16 times a power of two, so x, y and x − y are exact in
every dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from orthogonium.spectral.operator import Map, as_function
from orthogonium.spectral.rounding import double
from orthogonium.spectral.twin import exact_twin

# Relative errors that rounding explains. In float64 and float32, sums of many terms cancel and lose up to half of the
# digits; half precision accumulates in float32 and rounds a few times on the way.
_NOISE = {torch.float64: 2.0**-30, torch.float32: 2.0**-13, torch.float16: 2.0**-6, torch.bfloat16: 2.0**-4}
_SCALES = (2.0**-10, 1.0, 2.0**10)


@torch.no_grad()
def is_affine(fn: Map, input_shape: Sequence[int], *, seed: int = 0) -> bool:
    """Whether fn(x) − fn(0) is additive on random inputs of sizes from 1e-3 to 1e3, and samples do not interact.

    The function is judged by its `exact_twin` if it has one. False means that it is not affine, even allowing for
    rounding, or that an output is not finite; True is evidence, not proof.

    >>> from orthogonium.spectral import is_affine
    >>> is_affine(torch.nn.Linear(4, 3), (4,)), is_affine(lambda x: x + 1e-3 * x.relu() + 1e6, (4,))
    (True, False)
    """
    call, dtype, device = as_function(fn)
    twin = exact_twin(fn, input_shape)
    if twin is not None:
        call, dtype = twin, torch.float64
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(2, *input_shape, generator=generator).mul(16).round().div(16) for _ in range(2))
    batch = torch.cat([x, y, x - y, torch.zeros_like(x[:1])]).to(device, dtype)
    noise = _NOISE.get(dtype, 2.0**-13)
    offset = _norm(_outputs(call, batch[-1:]))
    for scale in _SCALES:
        error, size = _additivity(call, scale * batch)
        if not bool((error <= noise * (size + offset)).all()):
            return False
    while bool((size < offset).any()):
        scale *= 2.0**10
        if scale > math.sqrt(torch.finfo(dtype).max):  # an affine map that does not respond is constant
            return bool((size == 0).all())
        error, size = _additivity(call, scale * batch)
        if not bool((error <= noise * (size + offset)).all()):
            return False
    return True


def _additivity(call: Callable[[Tensor], Tensor], batch: Tensor) -> tuple[Tensor, Tensor]:
    """Per pair x, y: how far f(x) − f(y) is from f(x − y) − f(0), or f(x) alone from f(x) in a batch; the size."""
    out = _outputs(call, batch)
    fx, fy, difference, origin = out.split([2, 2, 2, 1])
    error = _norm((fx - fy) - (difference - origin))
    alone = _norm(_outputs(call, batch[:1]) - fx[:1])
    return torch.maximum(error, alone), torch.minimum(_norm(fx - origin), _norm(fy - origin))


def _outputs(call: Callable[[Tensor], Tensor], batch: Tensor) -> Tensor:  # (n, …) → (n, outputs)
    return double(call(batch)).reshape(len(batch), -1)


def _norm(rows: Tensor) -> Tensor:
    return torch.linalg.vector_norm(rows, dim=1)
