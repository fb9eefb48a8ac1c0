"""Turns convolutions and dense layers of a network into constrained ones.

Note [Units]
A constrained layer K cannot take over the scale of a weight W, only its direction: `W ≈ cK`. The numbers after it are c
times smaller than before, and so on through the network: each tensor has a unit, by which it was divided. ReLU, pooling
and sums are not affected; biases and means are divided by the unit of what they are added to; branches that meet in
different units are weighted by them (`ConvexSum`, `UnitConcat`). So the network stays the same, up to one factor on its
output and to what constrained layers cannot represent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from orthogonium.errors import GeometryError, OrthogoniumError, ParameterError
from orthogonium.layers.from_torch import like, scale_of
from orthogonium.layers.lipschitz import layer_class
from orthogonium.layers.parametrization import Constrained
from orthogonium.methods import METHODS, Method
from orthogonium.methods.registry import Layer

Plain = nn.Linear | nn.modules.conv._ConvNd


@dataclass(frozen=True)
class Settings:
    """The arguments of `convert` that say what becomes of a layer."""

    method: str
    keep: bool
    activation: str
    padding_mode: str | None
    learnable: bool
    steps: int
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Made:
    """A constrained layer in the place of a plain one."""

    layer: nn.Module
    scale: float = 1.0  # c of Note [Units]
    note: str = ""
    distance: float | None = None
    activated: bool = False  # whether it contains the activation that followed


def is_constrained(module: nn.Module) -> bool:
    """Whether it is a layer of this library whose weight is still constrained, and has not been made plain since."""
    return isinstance(module, Constrained) and parametrize.is_parametrized(module, "weight")


def _layer_of(method: Method, layer: Any) -> Layer | None:
    if isinstance(layer, nn.Linear):
        return method.linear
    return (method.conv_transpose if layer.transposed else method.conv).get(layer.weight.dim() - 2)


def _is_depthwise(layer: Any) -> bool:
    if isinstance(layer, nn.Linear) or layer.weight[0, 0].numel() == 1:
        return False
    return layer.groups > 1 and layer.groups == layer.in_channels == layer.out_channels


def _candidates(layer: Any, settings: Settings, activation: nn.Module | None) -> Iterator[tuple[Method, str]]:
    """Methods to try, each with the reason why it is not the requested one."""
    method = METHODS[settings.method]
    if _is_depthwise(layer) and settings.method in ("aoc", "bcop"):
        yield METHODS["aol"], "one channel per group: an orthogonal kernel could only shift"
        return
    if method.activated and activation is None:
        yield METHODS["aoc"], f"no activation follows that {method.name} could hold"
        return
    yield method, ""
    if method.name != "aoc":
        yield METHODS["aoc"], f"{method.name} has no such layer"


def constrained(
    layer: Any, settings: Settings, activation: nn.Module | None, sizes: tuple[tuple[int, ...], tuple[int, ...]]
) -> Made:
    """The constrained layer that replaces a plain one, with the given input and output sizes on images.

    Raises:
        OrthogoniumError: if no method has a layer with this geometry.
    """
    failure: OrthogoniumError | None = None
    for method, reason in _candidates(layer, settings, activation):
        path = _layer_of(method, layer)
        if path is None:
            continue
        options = _options(method, layer, settings, activation)
        for plain, changed, note in _feasible(layer, *sizes):
            try:
                made = _make(layer_class(path), plain, {**options, **changed}, settings)
            except GeometryError as error:
                failure = error
                continue
            except OrthogoniumError as error:
                failure = error
                break
            if method.activated and not _keeps_sizes(made.layer, layer, sizes):
                break
            if reason and failure is not None and method.name != settings.method:
                reason = f"{reason}: {failure}"
            notes = "; ".join(text for text in (reason, note) if text)
            return Made(made.layer, made.scale, notes, made.distance, method.activated)
    raise failure or GeometryError(f"Method {settings.method!r} has no layer like {layer}.")


def _options(method: Method, layer: Any, settings: Settings, activation: nn.Module | None) -> dict[str, Any]:
    own = settings.options if method.name == settings.method else {}
    options = {**(method.linear_options if isinstance(layer, nn.Linear) else {}), **own}
    if method.activated:
        options["activation"] = activation
        if not isinstance(layer, nn.Linear):
            options["padding"] = "same"  # checked by `_keeps_sizes`
    if not isinstance(layer, nn.Linear):
        mode = settings.padding_mode or ("zeros" if layer.padding_mode == "zeros" else "circular")
        options["padding_mode"] = mode
    if isinstance(layer, Constrained):
        options.setdefault("lipschitz", 1.0)  # not that of the layer
    return options


def _keeps_sizes(made: nn.Module, layer: Any, sizes: tuple[tuple[int, ...], tuple[int, ...]]) -> bool:
    """Whether sizes stay: blocks on images have outputs of `⌈size / stride⌉`, which the layer may not have had."""
    if isinstance(layer, nn.Linear):
        return True
    stride = layer.stride if not layer.transposed else (1,) * len(sizes[0])
    return tuple(-(-n // s) for n, s in zip(sizes[0], stride, strict=True)) == sizes[1]


def _feasible(
    layer: Any, inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> Iterator[tuple[Any, dict[str, Any], str]]:
    """The layer; then, if its stride exceeds its kernel, with the smallest kernels that can always be orthogonal.

    Taps stay on their pixels: tap t of a dilated kernel is the tap `d·t` of one without dilation. Windows begin where
    they did: those of "same", which gives `⌈size / stride⌉` outputs for images of every size, if they begin there with
    the smallest kernel; those of the padding of the layer, if that gives as many outputs; else those of "same", with a
    kernel that is large enough to reach all taps.
    """
    yield layer, {}, ""
    if isinstance(layer, nn.Linear) or layer.transposed or layer.padding == "same":
        return
    kernel, stride, dilation = tuple(layer.kernel_size), tuple(layer.stride), tuple(layer.dilation)
    if all(k >= s for k, s in zip(kernel, stride, strict=True)):
        return
    padding = (0,) * len(kernel) if layer.padding == "valid" else tuple(layer.padding)
    axes = [_Axis(*axis) for axis in zip(kernel, stride, dilation, padding, strict=True)]
    note = f"no orthogonal kernel {kernel} strides by {stride} to more channels: kernel {{}}, taps on the same pixels"
    if set(dilation) != {1}:
        note += f", zeros between them instead of dilation {dilation}"
    smallest, reaching = tuple(a.smallest for a in axes), tuple(a.reaching for a in axes)
    as_before = tuple((n + 2 * a.padding - a.smallest) // a.stride + 1 for n, a in zip(inputs, axes, strict=True))
    if smallest != reaching and as_before == outputs:
        yield _enlarged(layer, smallest, padding, padding), {}, note.format(smallest)
    if outputs == tuple(-(-n // s) for n, s in zip(inputs, stride, strict=True)):
        left = tuple(a.left_of_same(k) for a, k in zip(axes, reaching, strict=True))
        yield _enlarged(layer, reaching, padding, left), {"padding": "same"}, note.format(reaching)


@dataclass(frozen=True)
class _Axis:
    """One axis of a strided convolution, whose tap t meets the pixel `dilation·t − padding` of a window."""

    kernel: int
    stride: int
    dilation: int
    padding: int

    @property
    def smallest(self) -> int:
        """The size without dilation, and no less than the stride."""
        return max(self.dilation * (self.kernel - 1) + 1, self.stride)

    def left_of_same(self, size: int) -> int:
        """Where windows of "same" begin, for a kernel of this size: Note [Padding amounts] of `conv/padding.py`."""
        return (size - self.stride) // 2

    @property
    def reaching(self) -> int:
        """The smallest size for which "same" windows have a pixel for each tap."""
        last = self.dilation * (self.kernel - 1) - self.padding
        sizes = (k for k in count(self.smallest) if self.padding <= self.left_of_same(k) < k - last)
        return next(sizes)


def _enlarged(layer: Any, size: tuple[int, ...], padding: tuple[int, ...], left: tuple[int, ...]) -> Any:
    """A plain layer with the taps of this one amid zeros, on the same pixels of windows that begin `left` before."""
    plain: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(size) - 1]
    larger = plain(
        layer.in_channels, layer.out_channels, size, layer.stride, left, 1, layer.groups, layer.bias is not None,
        device=layer.weight.device, dtype=layer.weight.dtype,
    )  # fmt: skip
    axes = zip(layer.kernel_size, layer.dilation, padding, left, strict=True)
    taps = [slice(b - p, b - p + d * (k - 1) + 1, d) for k, d, p, b in axes]
    window = (slice(None), slice(None), *taps)
    with torch.no_grad():
        larger.weight.zero_()[window] = layer.weight
        if layer.bias is not None:
            larger.bias.copy_(layer.bias)
    return larger


def _make(cls: Any, plain: Any, options: Mapping[str, Any], settings: Settings) -> Made:
    if not settings.keep:
        return Made(like(cls, plain, options))
    if not hasattr(cls, "from_torch"):
        raise ParameterError(f"{cls.__name__} has no from_torch, which takes over weights.")
    made = cls.from_torch(plain, steps=settings.steps, **options)
    scale = scale_of(made, plain)
    distance = made.distance_to(plain, up_to_scale=True)
    return Made(made, scale if scale > 0 else 1.0, distance=distance)
