"""Plain networks of stages: each stage repeats a convolution, and a convolution of stride 2 leads to the next.

Boissin, Mamalet, Fel, Picard, Massena, Serrurier (2025), "An adaptive orthogonal convolution scheme for efficient and
flexible CNN architectures".
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from orthogonium.class_param import ClassParam
from orthogonium.errors import ParameterError
from orthogonium.layers import AdaptiveOrthoConv2d
from orthogonium.models.network_parts import Factory, halved
from orthogonium.models.patch_based_cnn import patches
from orthogonium.models.published import (
    LAYER_CENTERING,
    MAXMIN,
    ORTHOGONAL,
    ORTHOGONAL_NO_BIAS,
    UNIT_NORM,
    pool_and_flatten,
    published_parts,
)
from orthogonium.models.registry import register

_CONV = ClassParam(AdaptiveOrthoConv2d, bias=False, padding="same", kernel_size=3)
_CIRCULAR_CONV = ClassParam(AdaptiveOrthoConv2d, bias=False, padding_mode="circular", kernel_size=3, padding=1)
Stages = Sequence[tuple[int, int]]


def _kernel_size(conv: Factory) -> int:
    """The kernel size that the caller has put into `conv`, or 3."""
    return conv.kwargs.get("kernel_size", 3) if isinstance(conv, ClassParam) else 3


def _staged(
    model: str,
    img_shape: Sequence[int],
    patch_size: int,
    dim_repeats: Stages,
    dim_nb_dense: tuple[int, int],
    n_classes: int,
    conv: Factory,
    act: Factory,
    dense: Factory,
    head: Factory,
    norm: Factory | None,
    pool: Factory | None,
) -> nn.Module:
    layers, (channels, height, width) = patches(model, img_shape, n_classes, patch_size)
    if not dim_repeats or any(dim < 1 or repeats < 1 for dim, repeats in dim_repeats):
        raise ParameterError(f"{model}: dim_repeats lists (channels, convolutions) of each stage: got {dim_repeats}.")
    parts = published_parts(conv, act, norm, norm_last=True)
    kernel_size = _kernel_size(conv)
    if patch_size > 1:
        layers += parts.unit(channels, dim_repeats[0][0], patch_size, stride=patch_size)
        channels = dim_repeats[0][0]
    for stage, (dim, repeats) in enumerate(dim_repeats):
        if stage:
            layers += parts.unit(channels, dim, kernel_size, stride=2)
            channels, height, width = dim, halved(height), halved(width)
        for _ in range(repeats):
            layers += parts.unit(channels, dim, kernel_size)
            channels = dim
    pooling, features = pool_and_flatten(pool, channels, height, width)
    layers += pooling
    for _ in range(dim_nb_dense[1]):
        layers += [dense(features, dim_nb_dense[0]), act()]
        features = dim_nb_dense[0]
    return nn.Sequential(*layers, head(features, n_classes))


@register(image_shape=(3, 32, 32), large={"patch_size": 7})
def staged_cnn(
    img_shape: Sequence[int] = (3, 32, 32),
    dim_repeats: Stages = ((64, 2), (128, 2)),
    dim_nb_dense: tuple[int, int] = (256, 2),
    n_classes: int = 10,
    conv: Factory = _CONV,
    act: Factory = MAXMIN,
    pool: Factory | None = None,
    lin: Factory = ORTHOGONAL,
    norm: Factory | None = LAYER_CENTERING,
    *,
    patch_size: int = 1,
) -> nn.Module:
    """Plain network for CIFAR-10: stages of convolutions, then dense layers.

    Args:
        img_shape: channels, height, width.
        dim_repeats: channels and number of convolutions of each stage.
        dim_nb_dense: width and number of the dense layers before the head.
        n_classes: number of logits.
        conv: a class with the arguments of `nn.Conv2d`; a `kernel_size` in a ClassParam is used, else it is 3.
        act: a class that is called without arguments.
        pool: a class that is called with `kernel_size`, the size of the last images, or None.
        lin: a class with the arguments of `nn.Linear`.
        norm: a class that is called with the number of channels, or without arguments if it needs none; or None.
        patch_size: kernel size and stride of a convolution in front of the first stage; 1 for none. Images are
            zero-padded to a multiple of it.
    """
    sizes = (patch_size, dim_repeats, dim_nb_dense, n_classes)
    return _staged("staged_cnn", img_shape, *sizes, conv, act, lin, lin, norm, pool)


@register(image_shape=(3, 224, 224), n_classes=1000)
def large_staged_cnn(
    img_shape: Sequence[int] = (3, 224, 224),
    patch_size: int = 7,
    dim_repeats: Stages = ((128, 4), (256, 4), (512, 4), (1024, 4)),
    dim_nb_dense: tuple[int, int] = (1024, 5),
    n_classes: int = 1000,
    conv: Factory = _CIRCULAR_CONV,
    act: Factory = MAXMIN,
    lin: Factory = UNIT_NORM,
    norm: Factory | None = None,
    pool: Factory | None = None,
    *,
    dense: Factory = ORTHOGONAL_NO_BIAS,
) -> nn.Module:
    """Plain network for ImageNet: patches, stages of convolutions, then dense layers.

    Args:
        img_shape: channels, height, width.
        patch_size: kernel size and stride of the first convolution; images are zero-padded to a multiple.
        dim_repeats: channels and number of convolutions of each stage.
        dim_nb_dense: width and number of the dense layers before the head.
        n_classes: number of logits.
        conv: a class with the arguments of `nn.Conv2d`; a `kernel_size` in a ClassParam is used, else it is 3.
        act: a class that is called without arguments.
        lin: the head, a class with the arguments of `nn.Linear`.
        norm: a class that is called with the number of channels, or without arguments if it needs none; or None.
        pool: a class that is called with `kernel_size`, the size of the last images, or None.
        dense: the dense layers before the head. Rows of norm 1 suffice only for a head: as a hidden layer, such a
            matrix may expand by the square root of its number of rows.
    """
    sizes = (patch_size, dim_repeats, dim_nb_dense, n_classes)
    return _staged("large_staged_cnn", img_shape, *sizes, conv, act, dense, lin, norm, pool)
