"""What architectures are made of: a convolution or dense layer with its centering and activation, poolings, heads.

An architecture says where a layer stands; `Parts` says which layer that is: one of `orthogonium.methods.METHODS` by
name, or any class that is called like `nn.Conv2d` and `nn.Linear`. `ClassifierParts` adds the two ends of a classifier.

Note [Activation inside]
The layers of some methods (SLL, sandwich, CPL) contain their activation and get no second one. Those that keep the
number of channels and pixels leave strides and changes of channels to others: SLL to "sll-aoc", CPL to "aoc".
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from orthogonium.annotations import as_int
from orthogonium.class_param import ClassParam
from orthogonium.errors import ParameterError
from orthogonium.layers import (
    Abs,
    BatchCentering2D,
    ConcatResidual,
    GlobalL2NormPool,
    GlobalMaxPool,
    GroupSort,
    HouseHolder,
    InvertibleDownsampling,
    LayerCentering2D,
    LipschitzConv2d,
    LipschitzLinear,
    MaxMin,
    NActivation,
    OrthoLinear,
    ScaledGlobalAvgPool,
    SDPBasedLipschitzDense,
    UnitNormLinear,
)
from orthogonium.layers.block import LipschitzBlock
from orthogonium.layers.conv.base import ConstrainedConvNd
from orthogonium.layers.lipschitz import layer_class
from orthogonium.methods import METHODS
from orthogonium.models.input_normalization import InputNormalization

Factory = Callable[..., nn.Module]
ImageShape = tuple[int, int, int]

# name → (number that must divide the channels, module for that many channels)
ACTIVATIONS: dict[str, tuple[int, Callable[[int], nn.Module]]] = {
    "maxmin": (2, lambda channels: MaxMin()),
    "groupsort": (4, lambda channels: GroupSort(4)),
    "householder": (2, HouseHolder),
    "abs": (1, lambda channels: Abs()),
    "half-abs": (2, lambda channels: ConcatResidual(Abs())),  # on the second half of the channels
    "nactivation": (1, NActivation),
    "relu": (1, lambda channels: nn.ReLU()),
}
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch-centering": BatchCentering2D,
    "layer-centering": LayerCentering2D,
}
POOLS: dict[str, Callable[[], nn.Module]] = {
    "flatten": nn.Flatten,
    "avg": ScaledGlobalAvgPool,
    "l2": GlobalL2NormPool,
    "max": GlobalMaxPool,
}
HEADS: dict[str, Factory] = {"global": OrthoLinear, "classwise": UnitNormLinear}
_TRANSITION = {"sll": "sll-aoc"}

STEM_AND_POOL = {"patch": 4, "pool": "l2"}
"""Options of `ClassifierParts` for large images, as residual networks treat those of ImageNet: a first convolution of
stride 4 (tiles of 4×4 pixels become channels, which loses nothing), and one number for each channel in the end."""


def one_of(table: dict[str, Any], name: str, what: str) -> Any:
    """The entry of a table, or an error that lists its keys."""
    if name not in table:
        raise ParameterError(f"There is no {what} {name!r}. Known: {', '.join(table)}.")
    return table[name]


def check_image_shape(model: str, image_shape: Sequence[int], n_classes: int) -> ImageShape:
    """The shape as a tuple of three positive integers."""
    shape = tuple(map(as_int, image_shape))
    if len(shape) != 3 or any(not isinstance(n, int) or n < 1 for n in shape):
        raise ParameterError(
            f"{model}: image_shape is (channels, height, width), e.g. (3, 32, 32): got {image_shape!r}."
        )
    if not isinstance(as_int(n_classes), int) or n_classes < 1:
        raise ParameterError(f"{model}: n_classes must be a positive integer, got {n_classes!r}.")
    return shape


def whole_patches(
    model: str, option: str, patch: int, size: tuple[int, int]
) -> tuple[list[nn.Module], tuple[int, int]]:
    """Zero padding that extends an image to a multiple of the patch, if needed, and its height and width in patches.

    >>> from orthogonium.models.network_parts import whole_patches
    >>> whole_patches("", "", 7, (224, 225))
    ([ZeroPad2d((0, 6, 0, 0))], (32, 33))
    """
    height, width = size
    if not 1 <= patch <= min(size):
        raise ParameterError(
            f"{model}: {option}, the size of tiles of pixels, must be between 1 and that of the image "
            f"{height}×{width}: got {patch}."
        )
    counts = -(-height // patch), -(-width // patch)
    down, right = counts[0] * patch - height, counts[1] * patch - width
    return [nn.ZeroPad2d((0, right, 0, down))] if down or right else [], counts


def same_padding(kernel_size: int, stride: int) -> int | str:
    """Padding that gives `size/stride` pixels, as an integer, which every convolution takes, if there is one.

    An even kernel without stride has no such integer and gets "same".

    >>> from orthogonium.models.network_parts import same_padding
    >>> same_padding(3, 1), same_padding(3, 2), same_padding(4, 2), same_padding(4, 1)
    (1, 1, 1, 'same')
    """
    total = kernel_size - (stride if kernel_size % 2 == stride % 2 else 1)
    return total // 2 if total >= 0 and total % 2 == 0 else "same"


def layer_of(factory: Factory) -> Factory:
    """The class inside `ClassParam` and `functools.partial`."""
    while isinstance(factory, ClassParam | functools.partial):
        factory = factory.fct or nn.Identity if isinstance(factory, ClassParam) else factory.func
    return factory


def _whole_image(conv: Factory, kernel_size: int, stride: int) -> int | str:
    """Padding that gives `⌈size/stride⌉` pixels.

    Our convolutions and blocks take "same" with any stride (and for the grown kernel of SOC), others only integers.
    """
    made = layer_of(conv)
    ours = isinstance(made, type) and issubclass(made, ConstrainedConvNd | LipschitzBlock)
    return "same" if ours else same_padding(kernel_size, stride)


@dataclass(frozen=True)
class Parts:
    """The layers of an architecture.

    Attributes:
        method: method of convolutions and dense layers, a key of `METHODS`; "aoc" if neither this nor `conv` is given.
        conv: a class to use instead, called like `nn.Conv2d`; its layers are linear.
        lin: a class to use instead of the dense layer of the method, called like `nn.Linear`.
        act: a key of `ACTIVATIONS`, or a class that is called without arguments.
        norm: a key of `NORMS`, a class that is called with the number of channels, or None.
        padding_mode: "circular" or "zeros"; None leaves it to `conv`.
        bias: whether convolutions have one; None leaves it to `conv`.
    """

    method: str | None = None
    conv: Factory | None = None
    lin: Factory | None = None
    act: str | Factory = "maxmin"
    norm: str | Factory | None = None
    padding_mode: str | None = "circular"
    bias: bool | None = True

    def __post_init__(self) -> None:
        if self.method is not None and self.conv is not None:
            raise ParameterError(f"Give either method or conv: got method={self.method!r} and conv={self.conv}.")
        if self.method is not None and (self.method not in METHODS or 2 not in METHODS[self.method].conv):
            known = ", ".join(name for name, entry in METHODS.items() if 2 in entry.conv)
            raise ParameterError(f"There is no method {self.method!r} for images. Known: {known}.")
        if self.padding_mode not in ("circular", "zeros") and (self.conv is None or self.padding_mode is not None):
            raise ParameterError(f"padding_mode is 'circular' or 'zeros': got {self.padding_mode!r}.")
        if isinstance(self.act, str):
            one_of(ACTIVATIONS, self.act, "activation")
        if isinstance(self.norm, str):
            one_of(NORMS, self.norm, "norm")

    def activation(self, channels: int) -> nn.Module:
        """The activation for this many channels."""
        if not isinstance(self.act, str):
            return self.act()
        divisor, make = ACTIVATIONS[self.act]
        if channels % divisor:
            raise ParameterError(
                f"Activation {self.act!r} needs a multiple of {divisor} channels, got {channels}. Change the width, or "
                "use act='abs'."
            )
        return make(channels)

    def centering(self, channels: int) -> list[nn.Module]:
        """The normalization for this many channels, if any."""
        if self.norm is None:
            return []
        return [NORMS[self.norm](channels) if isinstance(self.norm, str) else self.norm(channels)]

    @property
    def residual(self) -> bool:
        """Whether the layers of the method have a skip connection of their own."""
        return self.method in ("sll", "sll-aoc", "cpl")

    def unit(self, cin: int, cout: int, kernel_size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
        """Convolution, centering, activation; `⌈size/stride⌉` pixels. Note [Activation inside]."""
        method = self._method_for(cin, cout, stride)
        layer = self.convolution(cin, cout, kernel_size, stride, groups)
        act = [] if self.conv is None and METHODS[method].activated else [self.activation(cout)]
        return self._in_order([layer], self.centering(cout), act)

    def _in_order(self, layer: list[nn.Module], norm: list[nn.Module], act: list[nn.Module]) -> list[nn.Module]:
        return [*layer, *norm, *act]

    def convolution(self, cin: int, cout: int, kernel_size: int, stride: int = 1, groups: int = 1) -> nn.Module:
        """A convolution without centering and activation; `⌈size/stride⌉` pixels."""
        options = {"padding_mode": self.padding_mode, "bias": self.bias, "groups": None if groups == 1 else groups}
        given = {name: value for name, value in options.items() if value is not None}
        if self.conv is None:
            method = self._method_for(cin, cout, stride)
            padding = _whole_image(layer_class(METHODS[method].conv[2]), kernel_size, stride)
            return LipschitzConv2d(cin, cout, kernel_size, stride, padding, method=method, **given)
        padding = _whole_image(self.conv, kernel_size, stride)
        return self.conv(cin, cout, kernel_size=kernel_size, stride=stride, padding=padding, **given)

    def _method_for(self, cin: int, cout: int, stride: int) -> str:
        """The method, or the one that takes its place where it cannot stride or change channels."""
        method = self.method or "aoc"
        entry = METHODS[method]
        kept = (cin == cout or not entry.square) and (stride == 1 or entry.stride)
        return method if kept else _TRANSITION.get(method, "aoc")

    def dense(self, features: int, outputs: int) -> list[nn.Module]:
        """Dense layer and activation. Note [Activation inside]."""
        if self.lin is not None:
            return [self.lin(features, outputs), self.activation(outputs)]
        method = self.method or "aoc"
        if method in ("sll", "sll-aoc"):
            return [SDPBasedLipschitzDense(features, outputs, inner_dim=outputs)]
        entry = METHODS[method]
        if entry.linear is None or (entry.square and features != outputs):
            method = "aoc"
        layer = LipschitzLinear(features, outputs, method=method)
        return [layer] if METHODS[method].activated else [layer, self.activation(outputs)]


@dataclass(frozen=True)
class ClassifierParts(Parts):
    """The layers of a classifier with its two ends: the options that the families of `create_model` share.

    Attributes:
        patch: size of the tiles of pixels that become channels before the first convolution; images of other sizes are
            zero-padded to a multiple of it.
        mean: mean of the pixels, subtracted inside the model.
        std: standard deviation of the pixels, divided by inside the model, whose constant becomes `1/min std`.
        pool: "flatten", "avg", "l2" or "max", before the dense layers.
        hidden: outputs of each dense layer before the head.
        head: "global" (OrthoLinear), "classwise" (UnitNormLinear) or a class; by default `lin` or else "global".
    """

    patch: int = 1
    mean: float | Sequence[float] | None = None
    std: float | Sequence[float] | None = None
    pool: str = "flatten"
    hidden: Sequence[int] = ()
    head: str | Factory | None = None

    def stem(self, model: str, image_shape: ImageShape) -> tuple[list[nn.Module], ImageShape]:
        """What precedes the first convolution, if anything, and the shape after it; `model` is for error messages."""
        channels, height, width = image_shape
        layers: list[nn.Module] = []
        if self.mean is not None or self.std is not None:
            layers.append(InputNormalization(channels, 0.0 if self.mean is None else self.mean, self.std))
        continued, (height, width) = whole_patches(model, "patch", self.patch, (height, width))
        layers += continued
        if self.patch > 1:
            layers.append(InvertibleDownsampling(self.patch))
        return layers, (channels * self.patch**2, height, width)

    def assemble(
        self, first: list[nn.Module], features: list[nn.Module], shape: ImageShape, n_classes: int
    ) -> nn.Sequential:
        """A classifier: what `stem` gave, features of this shape, pooling, dense layers and a head."""
        size = shape[0] * shape[1] * shape[2] if self.pool == "flatten" else shape[0]
        pooling = one_of(POOLS, self.pool, "pool")()
        dense: list[nn.Module] = []
        for outputs in self.hidden:
            dense += self.dense(size, outputs)
            size = outputs
        return nn.Sequential(
            OrderedDict(
                stem=nn.Sequential(*first),
                features=nn.Sequential(*features),
                pool=pooling,
                dense=nn.Sequential(*dense),
                head=self._head(size, n_classes),
            )
        )

    def _head(self, features: int, n_classes: int) -> nn.Module:
        kind = self.head or self.lin or "global"
        return (one_of(HEADS, kind, "head") if isinstance(kind, str) else kind)(features, n_classes)


def halved(size: int, times: int = 1) -> int:
    """Pixels after this many strides of 2.

    >>> from orthogonium.models.network_parts import halved
    >>> halved(28, 3)
    4
    """
    return -(-size // 2**times)
