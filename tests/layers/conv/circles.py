"""Layers that are orthogonal at each frequency of the image, by name."""

import pytest
import torch

from orthogonium.layers.conv import circle

METHODS = ["Cayley", "LOT", "BRO", "ECO"]


TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-11}


methods = pytest.mark.parametrize("method", METHODS)


def conv(method, dims=2):
    return getattr(circle, f"{method}Conv{dims}d")
