"""What a network computes, as a few numbers that let another machine or version check that it computes the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import nn

TOLERANCE = 1e-6  # relative; computed in float64, whose rounding even deep networks amplify to less than 1e-9


def probe(model: nn.Module, image_shape: Sequence[int]) -> list[float]:
    """Outputs in eval mode for one image, the multiples of the golden ratio modulo 1, in float64 on the CPU.

    They depend neither on the arithmetic of the network nor on that of the machine.
    """
    copy = deepcopy(model).cpu().double().eval()
    golden = (math.sqrt(5) - 1) / 2
    pixels = torch.arange(math.prod(image_shape), dtype=torch.float64, device="cpu") * golden % 1
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        return copy(pixels.reshape(1, *image_shape)).flatten().tolist()


def deviation(a: Sequence[float], b: Sequence[float]) -> float:
    """Largest difference of outputs, relative to the largest of them; infinite for other numbers of outputs, or NaN."""
    if len(a) != len(b) or not all(map(math.isfinite, [*a, *b])):
        return math.inf
    largest = max(map(abs, [*a, *b]), default=0.0)
    return max((abs(x - y) for x, y in zip(a, b, strict=True)), default=0.0) / largest if largest else 0.0
