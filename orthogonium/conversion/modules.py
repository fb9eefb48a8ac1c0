"""What activations, pooling, normalization and any other module without a weight become."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from orthogonium.certification.bound import survey
from orthogonium.certification.rules.advice import GATES, RECURRENCE
from orthogonium.certification.rules.measured import PRODUCT
from orthogonium.conversion.scaled import Scaled
from orthogonium.errors import OrthogoniumError
from orthogonium.layers import global_pooling, pooling
from orthogonium.layers.activations import Abs, MaxMin
from orthogonium.layers.normalization import LayerCentering

_HARMLESS = (
    nn.Identity, nn.Flatten, nn.Unflatten, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.PixelShuffle,
    nn.PixelUnshuffle, nn.ChannelShuffle, nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d,
)  # fmt: skip
RELU_LIKE = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish,
    nn.Hardswish,
    nn.Softplus,
)  # fmt: skip
BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_MAX_POOL = {nn.MaxPool1d: 1, nn.MaxPool2d: 2, nn.MaxPool3d: 3}
_AVG_POOL = {nn.AvgPool1d: 1, nn.AvgPool2d: 2, nn.AvgPool3d: 3}
_ADAPTIVE_AVG = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_SIZES = (1e-4, 1e-2, 1.0, 1e2, 1e4)  # sizes of the inputs on which functions are tried


class CannotConvertError(OrthogoniumError):
    """Why a module or an operation stays as it is."""


@dataclass(frozen=True)
class Result:
    """The replacement of a module (None: the module itself), and the number its outputs were divided by."""

    module: nn.Module | None = None
    divided: float = 1.0
    note: str = ""


@dataclass(frozen=True)
class Place:
    """The place of a module in the network.

    Attributes:
        shape: shape of one input.
        unit: unit of the input. Note [Units] of `constrained.py`.
        axis: axis of the channels, in a batch.
        at_the_end: whether its output is the output of the network.
    """

    shape: tuple[int, ...]
    unit: float = 1.0
    axis: int = 1
    at_the_end: bool = False


def constant_of(module: nn.Module, shape: tuple[int, ...]) -> float:
    """Lipschitz constant of a module without parameters, by the rules of `orthogonium.certification`."""
    found = survey(module.eval(), shape)
    if found.unbounded:
        cause = found.unbounded[0]
        raise CannotConvertError(f"{cause.reason} {cause.remedy}".strip())
    return found.value


def replace(module: nn.Module, place: Place, activation: str) -> Result:
    """The rule for a module without a weight matrix.

    Raises:
        CannotConvertError: with the reason.
    """
    kind = parametrize.type_before_parametrizations(module)
    if stays(module):
        return _in_its_unit(module, place)
    if isinstance(module, nn.MultiheadAttention):
        raise CannotConvertError(" ".join(PRODUCT))
    if isinstance(module, nn.Softmax | nn.LogSoftmax) and place.at_the_end:
        return Result(nn.Identity(), note="certificates read logits; losses take them, too")
    if isinstance(module, RELU_LIKE) and activation == "maxmin":
        return _max_min(place)
    if kind in _MAX_POOL:
        return _max_pool(module, _MAX_POOL[kind])
    if kind in _AVG_POOL and _is_plain_average(module):
        return _avg_pool(module, _AVG_POOL[kind])
    if isinstance(module, _ADAPTIVE_AVG):
        return _adaptive(module, place)
    if isinstance(module, _NORMS):
        return _centering(module, place)
    if isinstance(module, nn.PReLU | nn.RReLU):
        return _fixed_slope(module)
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        raise CannotConvertError(" ".join(RECURRENCE if isinstance(module, nn.RNN | nn.RNNCell) else GATES))
    if next(module.parameters(), None) is not None:
        raise CannotConvertError("It has parameters of its own, and no constrained layer does what it does.")
    return _divided(module, place)


def stays(module: nn.Module) -> bool:
    """Whether it only moves entries, or belongs to this library."""
    kind = parametrize.type_before_parametrizations(module)
    return isinstance(module, _HARMLESS) or kind.__module__.startswith("orthogonium.")


def _in_its_unit(module: nn.Module, place: Place) -> Result:
    """The module, between conversions to and from its original unit if units matter."""
    without_state = next((False for _ in (*module.parameters(), *module.buffers())), True)
    if isinstance(module, _HARMLESS) or place.unit == 1 or without_state and ignores_units(module, place.shape):
        return Result()
    return Result(Scaled(module, 1.0, place.unit), note="in the units it was made for")


def _max_min(place: Place) -> Result:
    channels = (0, *place.shape)[place.axis]
    if channels % 2:
        return Result(Abs(), note=f"{channels} channels cannot be paired")
    return Result(MaxMin(place.axis))


def _max_pool(module: Any, dims: int) -> Result:
    if module.return_indices:
        raise CannotConvertError("It returns indices, too, which jump. Use it without return_indices.")
    make = (pooling.ScaledMaxPool1d, pooling.ScaledMaxPool2d, pooling.ScaledMaxPool3d)[dims - 1]
    new = make(module.kernel_size, module.stride, module.padding, module.dilation, module.ceil_mode)
    if new.scale == 1:
        return Result()
    return Result(new, 1 / new.scale, "windows overlap")


def _is_plain_average(module: Any) -> bool:
    padded = any(module.padding) if isinstance(module.padding, tuple) else module.padding
    plain = not module.ceil_mode and getattr(module, "divisor_override", None) is None
    return plain and (not padded or module.count_include_pad)


def _avg_pool(module: Any, dims: int) -> Result:
    make = (pooling.ScaledAvgPool1d, pooling.ScaledAvgPool2d, pooling.ScaledAvgPool3d)[dims - 1]
    new = make(module.kernel_size, module.stride, module.padding)
    return Result(new, 1 / new.scale)


def _adaptive(module: Any, place: Place) -> Result:
    sizes = place.shape[1:]
    asked = module.output_size if isinstance(module.output_size, tuple) else (module.output_size,) * len(sizes)
    outputs = tuple(n if o is None else o for n, o in zip(sizes, asked, strict=True))
    constants = [global_pooling.adaptive_avg_constant(n, o) for n, o in zip(sizes, outputs, strict=True)]
    return Result(global_pooling.ScaledAdaptiveAvgPool(outputs), math.prod(constants))


def _centering(module: Any, place: Place) -> Result:
    """The mean is subtracted as before; the division, which has no bound, is dropped."""
    note = "without the division, which has no bound, and with a new bias"
    held = next(module.parameters(), None)
    kind = {} if held is None else {"device": held.device, "dtype": held.dtype}
    spatial = tuple(range(2, len(place.shape) + 1))
    if isinstance(module, nn.LayerNorm):
        if len(place.shape) == 1:
            return Result(LayerCentering(place.shape[0], **kind), note=note)
        if len(place.shape) == len(module.normalized_shape):
            return Result(LayerCentering(place.shape[0], (1, *spatial), **kind), note=note)
        last = tuple(range(-len(module.normalized_shape), 0))
        return Result(LayerCentering(place.shape[-1], last, axis=-1, **kind), note=note)
    if isinstance(module, nn.GroupNorm) and module.num_groups == 1:
        return Result(LayerCentering(place.shape[0], (1, *spatial), **kind), note=note)
    if isinstance(module, nn.GroupNorm):
        note += "; the mean of each channel instead of that of a group"
    return Result(LayerCentering(place.shape[0], **kind), note=note)


def _fixed_slope(module: Any) -> Result:
    slope = (module.lower + module.upper) / 2 if isinstance(module, nn.RReLU) else module.weight.detach().mean().item()
    slope = min(max(float(slope), -1.0), 1.0)
    return Result(nn.LeakyReLU(slope), note="a slope that is learned or random has no bound: fixed")


def ignores_units(module: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether `fn(2x) = 2 fn(x)` for inputs of all sizes, so units do not matter."""
    x = torch.randn(2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return all(torch.allclose(module(2 * s * x), 2 * module(s * x), atol=1e-8 * s) for s in _SIZES)


def _divided(module: nn.Module, place: Place) -> Result:
    """Any other function: divided by its constant if that exceeds 1, and in its own units if they matter."""
    constant = constant_of(module, place.shape)
    unit = 1.0 if place.unit == 1 or ignores_units(module, place.shape) else place.unit
    if constant <= 1 + 1e-6 and unit == 1:
        return Result()
    divisor = max(constant, 1.0) if constant > 1 + 1e-6 else 1.0
    note = f"divided by its constant {divisor:.5g}" if divisor > 1 else "in the units it was made for"
    return Result(Scaled(module, 1 / divisor, unit), divisor, note)
