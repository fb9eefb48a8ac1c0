"""Normalization of images inside a model, so certified radii refer to the pixels themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from orthogonium.errors import ParameterError, ShapeError


class InputNormalization(nn.Module):
    """`(x − mean_c)/std_c` for images (n, c, …).

    Its Lipschitz constant is `1/min_c std_c`, which `orthogonium.lipschitz_bound` multiplies into the bound of the
    model; with `std=None` only the mean is subtracted, and the constant is 1.

    Args:
        channels: number of channels of an image.
        mean: one number for all channels or one for each.
        std: the same, positive; None for no division.

    >>> from orthogonium.models.input_normalization import InputNormalization
    >>> layer = InputNormalization(3, mean=0.5, std=(0.25, 0.2, 0.25))
    >>> layer(torch.full((1, 3, 2, 2), 0.5)).abs().max().item(), round(layer.lipschitz_constant, 5)
    (0.0, 5.0)
    """

    mean: Tensor
    std: Tensor | None

    def __init__(self, channels: int, mean: float | Sequence[float] = 0.0, std: float | Sequence[float] | None = None):
        super().__init__()
        self.register_buffer("mean", torch.tensor(_per_channel(channels, mean, "mean")))
        self.register_buffer("std", None if std is None else torch.tensor(_per_channel(channels, std, "std")))
        if self.std is not None and not bool((self.std > 0).all()):
            raise ParameterError(f"InputNormalization divides by std, which must be positive: got {std}.")

    @property
    def lipschitz_constant(self) -> float:
        """Largest factor by which distances are multiplied."""
        return 1.0 if self.std is None else 1 / self.std.double().min().item()

    def forward(self, x: Tensor) -> Tensor:
        """Normalize each channel of `x`."""
        if x.dim() < 3 or x.shape[1] != len(self.mean):
            raise ShapeError(f"InputNormalization has {len(self.mean)} channels, on axis 1: got {tuple(x.shape)}.")
        shape = (-1, *[1] * (x.dim() - 2))
        y = x - self.mean.reshape(shape)
        return y if self.std is None else y / self.std.reshape(shape)

    def extra_repr(self) -> str:
        """Mean and std, for `print`."""
        return f"mean={self.mean.tolist()}" + ("" if self.std is None else f", std={self.std.tolist()}")


def _per_channel(channels: int, value: float | Sequence[float], name: str) -> list[float]:
    numbers = [float(value)] * channels if isinstance(value, int | float) else [float(v) for v in value]
    if len(numbers) != channels or not all(math.isfinite(v) for v in numbers):
        raise ParameterError(
            f"InputNormalization needs one finite {name}, or one for each of the {channels} channels: got {value}."
        )
    return numbers
