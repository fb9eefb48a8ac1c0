"""What tests of how layers execute share."""

import itertools

import torch
from torch import nn

from orthogonium.layers.conv import aoc, execution
from orthogonium.layers.parametrization import Constraint

BORDERS = [("same", "zeros"), ("same", "circular"), ("valid", "zeros"), (1, "zeros"), (1, "circular")]


def make(channels, kernel, dtype=torch.float64, **options):
    """An orthogonal convolution, `channels = (in, out, groups)`, with a random bias."""
    ci, co, groups = channels
    layer = getattr(aoc, f"AdaptiveOrthoConv{len(kernel)}d")(ci, co, kernel, groups=groups, dtype=dtype, **options)
    if layer.bias is not None:
        nn.init.normal_(layer.bias)
    return layer


def with_border(channels, kernels, border, size):
    """Layers with each of the kernels, dilated or not, whose windows fit into images of this size."""
    padding, mode = border
    for kernel, dilation in itertools.product(kernels, (1, 2)):
        if padding == 1 and mode == "circular" and any(dilation * (k - 1) < 2 for k in kernel):
            continue  # repeats windows: refused
        layer = make(channels, kernel, dilation=dilation, padding=padding, padding_mode=mode)
        room = [n + a + b for n, a, b in zip(size, layer.border.left, layer.border.right, strict=True)]
        if all(extent <= n for extent, n in zip(layer.geometry.extent, room, strict=True)):
            yield layer


def go_along_axes(monkeypatch):
    """Also with small layers, and on images that factors in turn would otherwise be applied to."""
    monkeypatch.setattr(execution, "FEWEST_ALONG_AXES", 1)
    monkeypatch.setattr(execution, "FEWEST_SAVED", 1)
    monkeypatch.setattr(execution, "FEWEST_CHANNELS", 10**9)


def count_in_turn(monkeypatch, channels=1, pixels=execution.MOST_PIXELS, spans=False):
    """Allow factors in turn for few channels (and many pixels); returns the list of constraints that have done so.

    With `spans`, by bases as they are, for any number of pixels that factors may be applied to.
    """
    monkeypatch.setattr(execution, "FEWEST_CHANNELS", channels)
    monkeypatch.setattr(execution, "MOST_PIXELS", pixels)
    if spans:
        monkeypatch.setattr(execution, "FEWEST_FOR_SPANS", channels)
        monkeypatch.setattr(execution, "MOST_FOR_SPANS", 10**4)
    calls, parts = [], Constraint.parts

    def spy(self, *arguments):
        calls.append(self)
        return parts(self, *arguments)

    monkeypatch.setattr(Constraint, "parts", spy)
    return calls
