"""Residual networks that keep a Lipschitz constant of 1, with the layers of any method.

He, Zhang, Ren, Sun (2016), "Deep residual learning for image recognition"; residual blocks that do not expand as in
Boissin et al. (2025), "An adaptive orthogonal convolution scheme for efficient and flexible CNN architectures".

`x + f(x)` has constant 2, so blocks use the wrappers of `orthogonium.layers.residual`. The layers of SLL and CPL are
residual blocks themselves and get no wrapper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from orthogonium.class_param import ClassParam
from orthogonium.errors import ParameterError
from orthogonium.layers import (
    AdditiveResidual,
    ConcatResidual,
    L2NormResidual,
    PrescaledAdditiveResidual,
    ScaledMaxPool2d,
)
from orthogonium.models.network_parts import (
    STEM_AND_POOL,
    ClassifierParts,
    Factory,
    Parts,
    check_image_shape,
    halved,
    one_of,
)
from orthogonium.models.published import (
    AVG_POOL,
    MAXMIN,
    UNIT_NORM,
    ZERO_PADDED_CONV,
    pool_and_flatten,
    published_parts,
)
from orthogonium.models.registry import member, register

SKIPS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "prescaled": PrescaledAdditiveResidual,
    "additive": AdditiveResidual,
    "concat": ConcatResidual,
    "l2": L2NormResidual,
}
_SKIP = ClassParam(PrescaledAdditiveResidual, init_val=3.0)


def residual(parts: Parts, skip: str | Factory | None, branch: list[nn.Module]) -> nn.Module:
    """Wrap a branch, unless its layers have skip connections of their own or `skip` is None."""
    inside = nn.Sequential(*branch)
    if parts.residual or skip is None:
        return inside
    return (one_of(SKIPS, skip, "skip") if isinstance(skip, str) else skip)(inside)


def _branch_width(skip: str | Factory | None, width: int, parts: Parts) -> int:
    """The channels inside a block: a concatenating one changes half of them."""
    if skip != "concat" or parts.residual:
        return width
    if width % 2:
        raise ParameterError(f"skip='concat' halves the channels: got an odd width, {width}.")
    return width // 2


def _resnet(
    image_shape: Sequence[int],
    n_classes: int,
    parts: ClassifierParts = ClassifierParts(),
    *,
    widths: Sequence[int],
    depths: Sequence[int],
    kernel_size: int = 3,
    skip: str | Factory | None = "additive",
) -> nn.Module:
    """Residual network: stages of blocks of two convolutions, with a striding convolution between stages.

    Args:
        image_shape: channels, height, width.
        n_classes: number of logits.
        parts: the layers of the network and its two ends.
        widths: channels of each stage.
        depths: number of blocks of each stage.
        kernel_size: kernel size of the convolutions.
        skip: how a block is wrapped: a key of `SKIPS`, a class that takes a module, or None.
    """
    shape = check_image_shape("lip_resnet", image_shape, n_classes)
    if not widths or len(widths) != len(depths):
        raise ParameterError(f"lip_resnet needs a depth for each width, got widths {widths} and depths {depths}.")
    first, (channels, height, width) = parts.stem("lip_resnet", shape)
    features: list[nn.Module] = []
    for stage, (w, depth) in enumerate(zip(widths, depths, strict=True)):
        features += parts.unit(channels, w, kernel_size, stride=2 if stage else 1)
        channels = w
        inner = _branch_width(skip, w, parts)
        for _ in range(depth):
            branch = [*parts.unit(inner, inner, kernel_size), *parts.unit(inner, inner, kernel_size)]
            features.append(residual(parts, skip, branch))
    size = halved(height, len(widths) - 1), halved(width, len(widths) - 1)
    return parts.assemble(first, features, (channels, *size), n_classes)


lip_resnet_tiny = register(image_shape=(3, 32, 32), large=STEM_AND_POOL)(
    member(
        _resnet,
        "lip_resnet_tiny",
        "Residual network of three stages of one block each.",
        widths=(32, 64, 128),
        depths=(1, 1, 1),
    )
)
lip_resnet18 = register(image_shape=(3, 32, 32), large=STEM_AND_POOL)(
    member(
        _resnet,
        "lip_resnet18",
        "Residual network with the widths and depths of ResNet-18.",
        widths=(64, 128, 256, 512),
        depths=(2, 2, 2, 2),
    )
)


@register(image_shape=(3, 224, 224), n_classes=1000)
def lip_resnet(
    img_shape: Sequence[int] = (3, 224, 224),
    n_classes: int = 1000,
    skip: Factory = _SKIP,
    conv: Factory = ZERO_PADDED_CONV,
    act: Factory = MAXMIN,
    lin: Factory = UNIT_NORM,
    norm: Factory | None = None,
    *,
    base_width: int = 64,
    depths: Sequence[int] = (3, 3, 5, 2),
) -> nn.Module:
    """Residual network for ImageNet, of 13 blocks of two convolutions.

    Args:
        img_shape: channels, height, width.
        n_classes: number of logits.
        skip: a class that wraps a block.
        conv: a class with the arguments of `nn.Conv2d`.
        act: a class that is called without arguments.
        lin: the head, a class with the arguments of `nn.Linear`.
        norm: a class that is called with the number of channels, or without arguments if it needs none; or None.
        base_width: channels of the first stage; each further stage has twice as many.
        depths: blocks of each stage.
    """
    channels, height, width = check_image_shape("lip_resnet", img_shape, n_classes)
    if height < 4 or width < 4:
        raise ParameterError(f"lip_resnet needs images of at least 4×4 pixels, got {height}×{width}.")
    parts = published_parts(conv, act, norm)
    layers = [
        parts.convolution(channels, base_width, 7, stride=2),
        act(),
        *parts.centering(base_width),
        ScaledMaxPool2d(2),
    ]
    channels, height, width = base_width, halved(height) // 2, halved(width) // 2
    for stage, depth in enumerate(depths):
        w = base_width * 2**stage
        if stage:
            layers += [parts.convolution(channels, w, 3, stride=2), *parts.centering(w)]
            channels, height, width = w, halved(height), halved(width)
        layers += [residual(parts, skip, [*parts.unit(w, w, 3), *parts.unit(w, w, 3)]) for _ in range(depth)]
    pooling, features = pool_and_flatten(AVG_POOL, channels, height, width)
    return nn.Sequential(*layers, *pooling, lin(features, n_classes))
