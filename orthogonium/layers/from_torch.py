"""Constrained layers that start from plain ones: sizes are read off the layer, weights are the closest admissible.

`Constrained.from_torch` and `Constrained.distance_to` are the public names. Note [Closest] of `methods/kernel.py`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from orthogonium.errors import ConstraintError, GeometryError, ParameterError, ShapeError
from orthogonium.layers.argument_names import argument_names
from orthogonium.linalg.evaluation import full_precision
from orthogonium.methods.fitting import fit_kernel, minimize
from orthogonium.methods.kernel import Kernels

log = logging.getLogger("orthogonium")
Layer = TypeVar("Layer", bound=nn.Module)
_CONV = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
_SAMPLES = 8192  # vectors or pixels on which a block is compared, and at most fitted
_FEWEST, _OUTPUTS_PER_PARAMETER = 512, 8  # of the inputs of a fit: with fewer, it would overfit them


def _arguments(layer: Any) -> dict[str, Any]:
    """The torch arguments that make a layer like this one."""
    if isinstance(layer, nn.Linear):
        sizes: dict[str, Any] = {"in_features": layer.in_features, "out_features": layer.out_features}
    elif isinstance(layer, nn.modules.conv._ConvNd):
        sizes = {name: getattr(layer, name) for name in _CONV}
        if layer.transposed:
            sizes["output_padding"] = layer.output_padding
        if hasattr(layer, "skew_kernel_size"):  # of a kernel that has grown: Note [Sizes] of `methods/soc.py`
            skew: Any = layer
            axes = zip(skew.skew_kernel_size, skew.geometry.effective_stride, strict=True)
            sizes |= {"kernel_size": tuple(k + e - 1 for k, e in axes), "order": skew.order}
        if hasattr(layer, "taps"):  # of a kernel as large as the image: `conv/circle.py`
            names = {"kernel_size": "taps", "padding": "padding_of_taps", "image_size": "image_size"}
            sizes |= {name: getattr(layer, own) for name, own in names.items()}
    else:
        raise ParameterError(
            f"from_torch takes nn.Linear, nn.Conv1d to 3d and their transposes, got {type(layer).__name__}. Networks "
            "as a whole are converted by orthogonium.convert."
        )
    weight: Tensor = layer.weight
    return {**sizes, "bias": layer.bias is not None, "device": weight.device, "dtype": weight.dtype}


def like(cls: type[Layer], layer: Any, options: Mapping[str, Any]) -> Layer:
    """A layer of this class with the sizes of a plain one, except for `options`; its weights are random."""
    accepted = argument_names(cls)
    unknown = [name for name in options if name not in accepted]
    if unknown:
        raise ParameterError(
            f"{cls.__name__} does not take {', '.join(unknown)}. It takes: {', '.join(sorted(accepted))}."
        )
    given = {name: value for name, value in _arguments(layer).items() if name in accepted}
    if "lipschitz" in accepted and isinstance(getattr(layer, "lipschitz", None), float):
        given["lipschitz"] = layer.lipschitz  # of a constrained layer
    if "padding_to" in accepted:
        given["padding_to"] = "kernel"  # integers as torch counts them
    if "inner_dim_factor" in accepted:
        given["inner_dim_factor"] = 2.0
    if "inner_dim" in accepted:
        given["inner_dim"] = layer.out_features
    made = cls(**{**given, **options})
    _check_direction(made, layer)
    for sizes in (("in_features", "out_features"), ("in_channels", "out_channels")):
        wanted = [getattr(layer, name, None) for name in sizes]
        found = [getattr(made, name, None) for name in sizes]
        if found != wanted and None not in (*found, *wanted):
            raise ShapeError(
                f"{cls.__name__} would map {found[0]} → {found[1]}, the layer maps {wanted[0]} → {wanted[1]}."
            )
    return made


def _check_direction(made: Any, layer: Any) -> None:
    """Refuse to mix transposed and plain convolutions, whose weights of equal shape mean different things."""
    own, other = (getattr(x, "transposed", None) for x in (made, layer))
    if None not in (own, other) and own != other:
        names = [f"{type(x).__name__} ({'' if x.transposed else 'not '}transposed)" for x in (made, layer)]
        raise GeometryError(
            f"{names[0]} and {names[1]}: the weight of the one is that of the adjoint of the other. Use layers that "
            "are both transposed, or both not."
        )


def _left(layer: Any) -> tuple[int, ...]:
    """How many pixels to the left of an image the windows of a convolution begin, on each axis."""
    if hasattr(layer, "border"):  # of a constrained layer, whose "same" is that of `conv/padding.py`
        left: tuple[int, ...] = layer.border.left
        return left
    if layer.padding == "same":  # torch pads the smaller half on the left
        return tuple(d * (k - 1) // 2 for d, k in zip(layer.dilation, layer.kernel_size, strict=True))
    return (0,) * len(layer.kernel_size) if isinstance(layer.padding, str) else tuple(layer.padding)


def _embedded(made: Any, layer: Any) -> Tensor:
    """The weight of the layer, surrounded by zeros if that of the constrained layer is larger.

    Tap t of a convolution meets pixel `d·t − left` of a window, so it becomes the tap u of the larger kernel that meets
    the same pixel.

    Raises:
        ShapeError: if the weight is not that of a smaller kernel with the same number of channels.
        GeometryError: if a tap of the layer meets a pixel that no tap of the constrained layer meets.
    """
    weight: Tensor = layer.weight.detach()
    shape = made.weight.shape
    if weight.shape == shape:
        return weight
    smaller = weight.shape[:2] == shape[:2] and all(a <= b for a, b in zip(weight.shape, shape, strict=True))
    if not smaller:
        raise ShapeError(
            f"{type(made).__name__} has a weight {tuple(shape)}, the layer {tuple(weight.shape)}: it does not fit."
        )
    begins = zip(_left(made), _left(layer), strict=True)
    for axis, (own, left) in enumerate(begins):
        pixels = layer.dilation[axis] * torch.arange(weight.shape[2 + axis], device=weight.device) + own - left
        taps, beside = pixels // made.dilation[axis], pixels % made.dilation[axis]
        size = shape[2 + axis]
        if made.spans_image:
            taps = taps % size  # on a circle
        if bool((beside != 0).any() | (taps < 0).any() | (taps >= size).any()):
            raise GeometryError(
                f"{type(made).__name__}: taps of the layer (kernel_size {tuple(layer.kernel_size)}, padding "
                f"{layer.padding}, dilation {tuple(layer.dilation)}) meet pixels that its kernel of size "
                f"{tuple(shape[2:])}, which begins {_left(made)} pixels before a window, has no taps for. Use an odd "
                "kernel_size with the padding that keeps the image, or no dilation."
            )
        grown = list(weight.shape)
        grown[2 + axis] = size
        weight = weight.new_zeros(grown).index_copy(2 + axis, taps, weight)
    return weight


def start_from(cls: type[Layer], layer: Any, steps: int, options: Mapping[str, Any]) -> Layer:
    """A layer of this class that starts from the weight of `layer`: what `from_torch` of the class does."""
    if not isinstance(steps, int) or steps < 0:
        raise ParameterError(f"from_torch: steps, of a fit, must be an integer of at least 0, got {steps!r}.")
    made: Any = like(cls, layer, options)
    held = (layer.weight, *([] if layer.bias is None else [layer.bias]))
    if not all(t.isfinite().all() for t in held):
        raise ConstraintError("from_torch: the weight or the bias of the layer has entries that are NaN or infinite.")
    chain: Any = made.parametrizations.weight
    kernel = chain[0].kernel
    if _same_raw(made, layer):
        made.load_state_dict(layer.state_dict())
    elif isinstance(kernel, Kernels):
        _fit_block(made, layer, steps)
    else:
        weight = _embedded(made, layer).double() / made.lipschitz
        raw = kernel.nearest(weight)
        if raw is None:
            build: Callable[..., Tensor] = full_precision(kernel.build)
            raw = fit_kernel(build, weight, kernel.guess(weight), steps, f"fit of {cls.__name__}")
        _assign(list(chain.parameters(recurse=False)), raw)
        if made.bias is not None and layer.bias is not None:
            _assign([made.bias], (layer.bias,))
    log.info("%s.from_torch: relative distance %.4f", cls.__name__, distance(made, layer, False))
    return made


def _same_raw(made: Any, layer: Any) -> bool:
    """Whether the layer is constrained in the same way, so its raw parameters give the same function."""
    if not parametrize.is_parametrized(layer, "weight") or made.extra_repr() != layer.extra_repr():
        return False
    if parametrize.type_before_parametrizations(layer) is not parametrize.type_before_parametrizations(made):
        return False
    own, other = made.state_dict(), layer.state_dict()
    if {k: v.shape for k, v in own.items()} != {k: v.shape for k, v in other.items()}:
        return False
    trial = deepcopy(made)
    trial.load_state_dict(other)
    with torch.no_grad():
        return torch.equal(trial.weight, layer.weight)


@torch.no_grad()
def _assign(parameters: list[Tensor], values: tuple[Tensor, ...]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)


def distance(made: Any, layer: Any, up_to_scale: bool) -> float:
    """How far the made layer is from the one it was made from: what `distance_to` of a layer does."""
    with torch.no_grad():
        _check_direction(made, layer)
        if isinstance(layer, nn.Linear | nn.modules.conv._ConvNd) and not hasattr(made, "packing"):
            target, own = _embedded(made, layer).double(), made.weight.double()
        else:
            x = _inputs(layer, _SAMPLES, seed=0x5EED)  # not those it may have been fitted on
            target, own = made.activation(layer(x)).double(), made(x).double()
        scale = (own * target).sum() / own.square().sum() if up_to_scale else 1.0
        return float((scale * own - target).norm() / target.norm().clamp_min(torch.finfo(torch.float64).tiny))


@torch.no_grad()
def scale_of(made: Any, layer: Any) -> float:
    """The multiple of the weight of `made` that comes closest to that of the layer."""
    target, own = _embedded(made, layer).double(), made.weight.double()
    return float((own * target).sum() / own.square().sum())


# ── blocks with an activation inside ──


def _inputs(layer: Any, samples: int, seed: int) -> Tensor:
    """Normal inputs, always the same: vectors, or images with as many pixels, large enough for the kernel."""
    weight: Tensor = layer.weight
    generator = torch.Generator().manual_seed(seed)
    if isinstance(layer, nn.Linear):
        shape: tuple[int, ...] = (samples, layer.in_features)
    else:
        axes = zip(layer.dilation, layer.kernel_size, layer.stride, strict=True)
        size = [max(8, 2 * d * (k - 1), 2 * s) for d, k, s in axes]
        shape = (max(2, samples // math.prod(size)), layer.in_channels, *size)
    return torch.randn(shape, generator=generator).to(weight)


def _fit_block(made: Any, layer: Any, steps: int) -> None:
    """Fit raw parameters and bias so that the block matches the layer followed by the activation on normal inputs."""
    block = deepcopy(made).double()
    outputs = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels / math.prod(layer.stride)
    wanted = _OUTPUTS_PER_PARAMETER * sum(p.numel() for p in block.parameters()) / outputs
    x = _inputs(layer, int(min(max(wanted, _FEWEST), _SAMPLES)), seed=0xF17).double()
    with torch.no_grad():
        plain = deepcopy(layer).double()
        target = block.activation(plain(x))
        if block(x).shape != target.shape:
            raise ShapeError(
                f"{type(made).__name__} maps {tuple(x.shape)} to {tuple(block(x).shape)}, the layer maps it to "
                f"{tuple(target.shape)}."
            )
    norm = target.norm()
    names = [name for name, _ in block.named_parameters()]

    def residual(*values: Tensor) -> Tensor:
        y = torch.func.functional_call(block, dict(zip(names, values, strict=True)), (x,))
        return (y - target) / norm

    chain = block.parametrizations.weight
    _assign(list(chain.parameters(recurse=False)), chain[0].kernel.guess(plain.weight))
    if block.bias is not None and plain.bias is not None and block.bias.shape == plain.bias.shape:
        _assign([block.bias], (plain.bias,))
    start = [p.detach() for p in block.parameters()]
    found = minimize(residual, start, steps, f"fit of {type(made).__name__}")
    _assign(list(made.parameters()), found)
