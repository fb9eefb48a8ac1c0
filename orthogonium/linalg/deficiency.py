"""Warnings about matrices that could not be made orthogonal, since directions were lost."""

from __future__ import annotations

import torch
from torch import Tensor

from orthogonium.errors import NumericalWarning, warn
from orthogonium.linalg.evaluation import may_look


def warn_if_deficient(w: Tensor, name: str, tolerance: float | None = None) -> Tensor:
    """Warn when `w`, meant to have min(rows, columns) singular values equal to 1, has lost directions.

    Each lost direction takes 1 from the squared Frobenius norm; by default, anything beyond rounding is reported. To
    avoid waiting for accelerators, nothing is checked there: audits and certificates find what is lost.
    """
    if may_look(w) and w.numel():
        rank = min(w.shape[-2:])
        squared = torch.linalg.vector_norm(w.detach(), dim=-1).square().sum(-1)  # row by row: exact to rounding
        deficit = (rank - squared).abs().max().item()
        if not deficit <= (64 * torch.finfo(w.dtype).eps * (rank + 8) if tolerance is None else tolerance):
            warn_of_deficiency(name, deficit, rank)
    return w


def warn_of_deficiency(name: str, deficit: float, rank: int) -> None:
    """Warn that a matrix could not be made orthogonal."""
    warn(
        f"{name}: the input is rank-deficient or too ill-conditioned, so the result is not orthogonal: its "
        f"squared Frobenius norm differs from {rank} by {deficit:.2g}. Start from a matrix of full rank "
        "(`layer.reset_parameters()` draws one), or use the QR, Cayley or exponential method, which are defined for "
        "every matrix.",
        NumericalWarning,
    )
