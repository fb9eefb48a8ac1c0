"""Scales Ψ of the inner channels for which a block `CσA` is a sandwich, found from its kernels.

Note [Sandwich bound]
For every positive diagonal Ψ let `P = (CΨ⁻¹)ᵀ` and `B = ΨA`. Slopes D commute with Ψ, so with `p = Py`, `b = Bx`

    ⟨y, CDAx⟩ = ⟨p, Db⟩ = ¼ Σ D_i ((p + b)_i² − (p − b)_i²) ≤ ¼ (h‖p + b‖² + l‖p − b‖²) ≤ ½ (h + l) ‖[P B]‖²

for unit x and y, slopes in [−l, h], l and h ≥ 0. The sandwich has `[P B][P B]ᵀ = 2I`, and a bound of 1 for slopes in
[0, 1]. With the kernels `G = AAᵀ` and `H = CᵀC` and `ψ_i² = e^(x_i)` that is

    e^((x_i + x_j)/2) G_ij + e^(−(x_i + x_j)/2) H_ij = 2δ_ij  at every lag.

The squares of the left-hand sides off the diagonal, and of what exceeds 2 on it, are convex functions of x: Newton's
method finds scales that make their sum 0 if there are any. The bound, which holds for all scales, shows whether it did.
"""

from __future__ import annotations

import torch
from torch import Tensor

from orthogonium.spectral.symbol import autocorrelation, select

_STEPS = 60
_LONGEST = 2.0  # of a step in x
_DONE = 1e-8  # where the next step is below rounding


def sandwich_scales(
    inner: Tensor,  # A, (g, q, n, *k)
    outer: Tensor,  # Cᵀ, (g, q, m, *l)
) -> Tensor:  # (g, q)
    """ψ that makes `[Ψ⁻¹Cᵀ ΨA]` √2 times an orthogonal kernel, or nearly so; Note [Sandwich bound]."""
    (a, g), (c, h) = _squares(inner), _squares(outer)
    x = torch.where((a > 0) & (c > 0), (c / a).log() / 2, torch.zeros_like(a))
    for _ in range(_STEPS):
        pair = x[:, :, None] + x[:, None, :]
        rising, falling = g * pair.exp(), h * (-pair).exp()
        up, down = a * x.exp(), c * (-x).exp()
        excess = (up + down - 2).clamp_min(0)
        gradient = (rising - falling).sum(2) + excess * (up - down)
        curvature = rising + falling
        own = (up - down).square() * (excess > 0) + excess * (up + down)
        own = curvature.sum(2) + own
        ridge = 1e-14 * own.amax(1, keepdim=True) + 1e-200
        step = torch.linalg.solve_ex(curvature + torch.diag_embed(own + ridge), gradient).result
        longest = step.abs().amax(1, keepdim=True)
        x = x - step * (_LONGEST / longest.clamp_min(_LONGEST))
        if not float(longest.amax()) >= _DONE:  # or NaN
            break
    return (x / 2).exp()


def _squares(kernel: Tensor) -> tuple[Tensor, Tensor]:  # → (g, q), (g, q, q)
    """The diagonal of `K Kᵀ`, and the sums of the squares of all its other entries over the lags."""
    gram = autocorrelation(kernel)
    diagonal = select(gram, [n // 2 for n in gram.shape[3:]]).diagonal(dim1=1, dim2=2)
    squares = gram.square().flatten(3).sum(3)
    return diagonal, squares - torch.diag_embed(diagonal.square())
