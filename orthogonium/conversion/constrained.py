"""Convolutions and dense layers of a network as constrained ones.

Note [Units]
A constrained layer K cannot take over the size of a weight W, only its direction: `W ≈ cK`. Numbers behind it are c
times smaller than they were, and so on through the network: each tensor has a unit, by which it was divided. ReLU,
pooling and sums do not mind; biases and means are divided by the unit of what they are added to; branches that meet in
other units are weighted by them (`ConvexSum`, `UnitConcat`). So the network is the one it was, up to one factor of its
output and to what the layers of the set cannot say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from orthogonium.errors import GeometryError, OrthogoniumError, ParameterError
from orthogonium.layers.from_torch import like, scale_of
from orthogonium.layers.lipschitz import layer_class
from orthogonium.methods import METHODS, Method
from orthogonium.methods.registry import Layer

Plain = nn.Linear | nn.modules.conv._ConvNd


@dataclass(frozen=True)
class Settings:
    """The arguments of `convert`."""

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
    activated: bool = False  # whether the activation behind it is inside


def _layer_of(method: Method, layer: Any) -> Layer | None:
    if isinstance(layer, nn.Linear):
        return method.linear
    return (method.conv_transpose if layer.transposed else method.conv).get(layer.weight.dim() - 2)


def _is_depthwise(layer: Any) -> bool:
    if isinstance(layer, nn.Linear) or layer.weight[0, 0].numel() == 1:
        return False
    return layer.groups > 1 and layer.groups == layer.in_channels == layer.out_channels


def _candidates(layer: Any, settings: Settings, activation: nn.Module | None) -> Iterator[tuple[Method, str]]:
    """Methods to try, with the reason why it is not the one that was asked for."""
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
    """The constrained layer that takes the place of a plain one, from the input size to the output size on images.

    Raises:
        OrthogoniumError: if no method has a layer of this geometry.
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
    return options


def _keeps_sizes(made: nn.Module, layer: Any, sizes: tuple[tuple[int, ...], tuple[int, ...]]) -> bool:
    """Blocks on images have outputs of `⌈size / stride⌉`, which the layer may not have had."""
    if isinstance(layer, nn.Linear):
        return True
    stride = layer.stride if not layer.transposed else (1,) * len(sizes[0])
    return tuple(-(-n // s) for n, s in zip(sizes[0], stride, strict=True)) == sizes[1]


def _feasible(
    layer: Any, inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> Iterator[tuple[Any, dict[str, Any], str]]:
    """The layer; then, if it strides beyond its kernel, the smallest size for which an orthogonal one always exists."""
    yield layer, {}, ""
    if isinstance(layer, nn.Linear) or layer.transposed or isinstance(layer.padding, str):
        return
    size = tuple(max(k, s) for k, s in zip(layer.kernel_size, layer.stride, strict=True))
    if size == tuple(layer.kernel_size) or outputs != tuple(
        -(-n // s) for n, s in zip(inputs, layer.stride, strict=True)
    ):
        return
    larger = type(layer)(
        layer.in_channels, layer.out_channels, size, layer.stride, 0, 1, layer.groups, layer.bias is not None,
        device=layer.weight.device, dtype=layer.weight.dtype,
    )  # fmt: skip
    with torch.no_grad():
        larger.weight.zero_()
        window = larger.weight
        for axis, k in enumerate(layer.kernel_size, 2):
            window = window.narrow(axis, 0, k)
        window.copy_(layer.weight)
        if layer.bias is not None:
            larger.bias.copy_(layer.bias)
    note = f"no orthogonal kernel {tuple(layer.kernel_size)} strides by {tuple(layer.stride)} to more channels"
    yield larger, {"padding": "same"}, f"{note}: kernel {size}"


def _make(cls: Any, plain: Any, options: Mapping[str, Any], settings: Settings) -> Made:
    if not settings.keep:
        return Made(like(cls, plain, options))
    if not hasattr(cls, "from_torch"):
        raise ParameterError(f"{cls.__name__} has no from_torch, which takes over weights.")
    made = cls.from_torch(plain, steps=settings.steps, **options)
    scale = scale_of(made, plain)
    distance = made.distance_to(plain, up_to_scale=True)
    return Made(made, scale if scale > 0 else 1.0, distance=distance)


# ── normalization ──


def channel_scale(norm: Any) -> Tensor:
    """By what batch normalization multiplies each channel, in eval."""
    if norm.running_var is None:
        scale = torch.ones(norm.num_features)
    else:
        scale = (norm.running_var.detach() + norm.eps).rsqrt()
    return scale if norm.weight is None else scale * norm.weight.detach()


def folded(layer: Any, norm: Any) -> Any:
    """A copy of the layer with the scale of the normalization behind it in its weight, and no bias."""
    copy = deepcopy(layer)
    scale = channel_scale(norm).to(copy.weight)
    with torch.no_grad():
        if isinstance(layer, nn.modules.conv._ConvNd) and layer.transposed:
            grouped = copy.weight.unflatten(0, (layer.groups, -1))  # (g, in/g, out/g, *k)
            factor = scale.view(layer.groups, 1, -1, *[1] * (copy.weight.dim() - 2))
            copy.weight.copy_((grouped * factor).flatten(0, 1))
        else:
            copy.weight.mul_(scale.view(-1, *[1] * (copy.weight.dim() - 1)))
        if copy.bias is not None:
            copy.bias.zero_()
    return copy
