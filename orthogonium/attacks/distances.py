"""Distances, radii and pixel boxes of batches."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from orthogonium.errors import NumericalWarning, ParameterError, ShapeError, warn


def distances(
    points: Tensor,  # (n, …)
    images: Tensor,  # (n, …)
) -> Tensor:  # (n,)
    """Euclidean distances in float64, whatever the dtype of the batches."""
    difference = points.detach().double() - images.detach().double()
    return torch.linalg.vector_norm(difference.reshape(len(images), -1), dim=1)


def per_sample(eps: float | Tensor, images: Tensor) -> Tensor:
    """A radius in float64 for each input, on its device."""
    radii = torch.as_tensor(eps, dtype=torch.float64, device=images.device).detach()
    if radii.dim() and radii.shape != images.shape[:1]:
        raise ShapeError(f"One radius, or one per input, is needed: got {tuple(radii.shape)} for {len(images)} inputs.")
    if not (radii.isfinite() & (radii >= 0)).all():
        raise ParameterError("Radii of an attack are finite numbers ≥ 0.")
    return radii.expand(len(images))


def finite_radii(
    images: Tensor,  # (n, …)
    radii: Tensor,  # (n,)
) -> Tensor:  # (n,)
    """Radii an attack can search: a certificate may be infinite, but a search ends at 1000 times the input's size."""
    return torch.minimum(radii.double(), 1e3 * (1 + distances(images, torch.zeros_like(images))))


def box_of(images: Tensor, bounds: tuple[float, float] | None) -> tuple[float, float]:
    """The bounds of pixels, infinite if none are given; the images must lie within them."""
    if bounds is None:
        return -math.inf, math.inf
    low, high = float(bounds[0]), float(bounds[1])
    if not low < high:
        raise ParameterError(f"Bounds of pixels are a smaller and a larger number: got {bounds}.")
    if images.numel() and not (float(images.min()) >= low and float(images.max()) <= high):
        raise ParameterError(
            f"The images leave the bounds [{low:g}, {high:g}]: their values lie in "
            f"[{float(images.min()):g}, {float(images.max()):g}]. Scale them, or pass bounds=None."
        )
    return low, high


def inner_radii(
    images: Tensor,  # (n, …)
    radii: Tensor,  # (n,)
) -> Tensor:  # (n, 1, …)
    """Radii in the dtype of the images, minus what the rounding of x + δ may add, so no point lies outside.

    Warns where nothing is left to search: that an attack finds nothing there says nothing.
    """
    eps = torch.finfo(images.dtype).eps
    size = distances(images, torch.zeros_like(images))
    inner = (radii * (1 - 4 * eps) - eps / 2 * size).clamp_min(0)  # x + δ itself is rounded by half a unit
    empty = (radii > 0) & (inner == 0)
    if empty.any():
        warn(
            f"{int(empty.sum())} of {len(images)} inputs were not attacked: what {images.dtype} rounds may exceed "
            f"their radius (at most {float(radii[empty].max()):.3g}). Attack the model in a dtype with more digits, "
            "such as model.double().",
            NumericalWarning,
        )
    return inner.to(images.dtype).reshape(-1, *[1] * (images.dim() - 1))
