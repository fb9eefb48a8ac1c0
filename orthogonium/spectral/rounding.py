"""How much float64 arithmetic can hide, so that an upper bound stays an upper bound.

Note [Rounding]
Bounds are computed in float64 whatever the dtype of the weight: a float32 weight is a float64 number, and the price
of certainty falls from percents to parts per billion. Each step then adds the largest error it can have made, with
γ_n = n·u/(1 − n·u), u = 2⁻⁵³: a sum of n products, in whatever order, is off by at most γ_n times the sum of the moduli
(Higham, Accuracy and Stability, §3.1; a complex one by γ_{2n+4}). These terms are added *before* the roots that follow,
which shrink them. The certified quantity is the norm of the layer's exact linear map; the rounding of the layer's own
forward pass in its own dtype is not included.
"""

from __future__ import annotations

import torch
from torch import Tensor

from orthogonium.errors import ParameterError

UNIT = 2.0**-53


def gamma(terms: float) -> float:
    """γ_n = n·u / (1 − n·u), the relative error bound of a sum of n products."""
    return terms * UNIT / (1 - terms * UNIT)


def double(weight: Tensor) -> Tensor:
    """The same numbers in float64, on the same device if it supports float64 and on the CPU otherwise."""
    if weight.is_complex():
        raise ParameterError(f"Spectra are computed for real weights, got {weight.dtype}. View it as a real weight.")
    return (weight.cpu() if weight.device.type == "mps" else weight).to(torch.float64)


def scale_out(kernel: Tensor, magnitude: Tensor) -> tuple[Tensor, Tensor]:
    """(kernel / ν, ν) with the constant ν = magnitude, or 1 where that is 0; no gradient flows through ν.

    A norm is homogeneous, so ‖kernel‖ = ν·‖kernel / ν‖ for every constant ν, and so is its gradient.
    """
    scale = torch.where(magnitude > 0, magnitude, torch.ones_like(magnitude)).detach()
    return kernel / scale.reshape(scale.shape + (1,) * (kernel.ndim - scale.ndim)), scale


def root(x: Tensor) -> Tensor:
    """√x, with a gradient at 0 that is 0 instead of infinite."""
    positive = x > 0
    return torch.where(positive, x, torch.ones_like(x)).sqrt() * positive


def upward(x: Tensor, terms: float = 8) -> Tensor:
    """X made larger by γ_terms and by the smallest step of the format (a denormal has no relative precision)."""
    inflated = x * (1 + gamma(terms))
    tiny = torch.where(x > 0, torch.full_like(x, 5e-324), torch.zeros_like(x))
    return inflated + tiny
