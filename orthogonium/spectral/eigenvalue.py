"""The largest eigenvalue of many Hermitian matrices, certified by Cholesky factorizations.

If the Cholesky factorization of A = τI − H runs to its end in floating point, the smallest eigenvalue of A is at
least −c·tr(A) with c = γ_{8(n+2)} (Higham, Accuracy and Stability, theorems 10.3–10.5; the 8 covers complex
arithmetic), so H ⪯ τ + c·tr(A). One factorization costs a fraction of what the eigenvalues cost. The threshold τ is a
Ritz value, which need not be accurate: if it is too small, a factorization fails and τ grows. Only matrices that may
exceed all those seen before need a factorization.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from orthogonium.spectral.rounding import gamma, root

_MARGIN = 1e-6  # a matrix this close to the largest is not examined
_KRYLOV = 64


@torch.no_grad()
def largest_eigenvalue(pieces: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """(groups,) upper bounds for the eigenvalues of positive semidefinite matrices, and where the largest was found.

    Args:
        pieces: tensors (groups, F, n, n); the matrices are numbered consecutively across pieces.

    Returns:
        The bounds, at most 1 + 1e-6 + n·γ times the largest eigenvalue of each group, and the number of the matrix.
    """
    record, where, offset, n = torch.zeros(0), torch.zeros(0, dtype=torch.long), 0, 1
    for matrices in pieces:
        n = matrices.shape[-1]
        size = _frobenius(matrices)  # at least the largest eigenvalue
        if offset == 0:
            record, where = torch.zeros_like(size[:, 0]), size.argmax(1)
        suspicion, growth = size.clone(), _MARGIN
        while True:
            open_ = (suspicion > 0) & (size > (record * (1 + _MARGIN))[:, None])
            if not open_.any():
                break
            suspicion = _suspicion(matrices, open_, record * (1 + _MARGIN), size)
            group = (suspicion > 0).any(1).nonzero().flatten()
            if not len(group):
                break
            worst = suspicion.argmax(1)[group]
            top = _ritz_value(matrices[group, worst])
            where[group] = worst + offset
            record[group] = torch.maximum(top, record[group] * (1 + growth))
            growth *= 4
        offset += matrices.shape[1]
    return record * (1 + _MARGIN) * (1 + n * gamma(8 * (n + 2)) + gamma(8)), where


def _suspicion(matrices: Tensor, selected: Tensor, threshold: Tensor, size: Tensor) -> Tensor:
    """0 for matrices provably below the threshold of their group; larger the sooner a factorization failed."""
    tried = selected & (threshold > 0)[:, None]
    result = torch.where(selected, size, 0.0)  # nothing known yet: the largest first
    if tried.any():
        shifted = matrices[tried].neg_()
        shifted.diagonal(dim1=-2, dim2=-1).add_(threshold[tried.nonzero()[:, 0]][:, None])
        info = torch.linalg.cholesky_ex(shifted).info
        result[tried] = torch.where(info > 0, 1.0 / info.clamp_min(1), 0.0).to(result)
    return result


def _ritz_value(matrices: Tensor) -> Tensor:
    """(G,) largest eigenvalues of (G, n, n) Hermitian matrices: exact for small ones, else by Lanczos, hardly below."""
    n = matrices.shape[-1]
    if n <= _KRYLOV:
        return torch.linalg.eigvalsh(matrices)[:, -1]
    generator = torch.Generator().manual_seed(0)
    fresh = torch.randn(n, 1, generator=generator, dtype=torch.float64).to(matrices).expand(len(matrices), n, 1)
    basis = matrices.new_zeros(len(matrices), n, 0)
    for _ in range(_KRYLOV):
        for _ in range(3):  # so that the rounding left over from a closed Krylov space is made orthogonal too
            fresh = fresh - basis @ (basis.mH @ fresh)
            fresh = fresh / torch.linalg.vector_norm(fresh, dim=1, keepdim=True).clamp_min(1e-300)
        basis = torch.cat([basis, fresh], 2)
        fresh = matrices @ basis[..., -1:]
    return torch.linalg.eigvalsh(basis.mH @ matrices @ basis)[:, -1]


def _frobenius(matrices: Tensor) -> Tensor:
    real = torch.view_as_real(matrices) if matrices.is_complex() else matrices
    return torch.linalg.vector_norm(real.flatten(2), dim=2)


def follow(bound: Tensor, matrices: Tensor) -> Tensor:
    """`bound` (groups,), constants near the norms of `matrices` (groups, rows, columns), with the gradient of those."""
    if not matrices.requires_grad:
        return bound
    with torch.no_grad():
        gram = matrices @ matrices.mH
        left = torch.linalg.eigh(gram).eigenvectors[..., -1:]
        right = matrices.mH @ left
        right = right / torch.linalg.vector_norm(right, dim=-2, keepdim=True).clamp_min(1e-300)
    norm = (left.mH @ matrices @ right).real.flatten()
    positive = norm > 0
    ratio = (
        torch.where(positive, norm, torch.ones_like(norm)) / torch.where(positive, norm, torch.ones_like(norm)).detach()
    )
    return bound * ratio


def certified_norm(matrices: Tensor) -> Tensor:
    """(groups,) certified upper bounds for the spectral norms of real matrices (groups, rows, columns), differentiable.

    Within 1e-6 of the norm. Example: ‖diag(3, 4)‖ = 4.

    >>> from orthogonium.spectral.eigenvalue import certified_norm
    >>> round(certified_norm(torch.diag(torch.tensor([3.0, 4.0]))[None]).item(), 4)
    4.0
    """
    matrices = matrices.to(torch.float64)
    with torch.no_grad():
        scale = matrices.abs().amax((1, 2), keepdim=True).clamp_min(1e-300)
        unit = matrices / scale
        unit = unit if unit.shape[1] <= unit.shape[2] else unit.transpose(1, 2)
        gram = unit @ unit.transpose(1, 2)
        top, _ = largest_eigenvalue([gram[:, None]])
        error = gamma(unit.shape[2] + 8) * unit.square().sum((1, 2))
        bound = root(top + error) * scale.flatten() * (1 + gamma(8))
    return follow(bound, matrices)
