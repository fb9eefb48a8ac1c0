"""AOCNet: a residual network for ImageNet on grouped orthogonal convolutions.

Boissin, Mamalet, Fel, Picard, Massena, Serrurier (2025), "An adaptive orthogonal convolution scheme for efficient and
flexible CNN architectures".
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from orthogonium.class_param import ClassParam
from orthogonium.errors import ParameterError
from orthogonium.layers import PrescaledAdditiveResidual
from orthogonium.models.lip_resnet import residual
from orthogonium.models.network_parts import Factory, check_image_shape, halved
from orthogonium.models.published import (
    BATCH_CENTERING,
    L2_POOL,
    MAXMIN,
    UNIT_NORM,
    ZERO_PADDED_CONV,
    pool_and_flatten,
    published_parts,
)
from orthogonium.models.registry import register

_SKIP = ClassParam(PrescaledAdditiveResidual, init_val=1.0)


@register(image_shape=(3, 224, 224), n_classes=1000)
def aocnet_v1(
    img_shape: Sequence[int] = (3, 224, 224),
    n_classes: int = 1000,
    expand_factor: int = 2,
    block_depth: int = 2,
    kernel_size: int = 3,
    embedding_dim: int = 1024,
    groups: int | None = 8,
    skip: Factory | None = _SKIP,
    conv: Factory = ZERO_PADDED_CONV,
    act: Factory = MAXMIN,
    lin: Factory = UNIT_NORM,
    norm: Factory | None = BATCH_CENTERING,
    pool: Factory | None = L2_POOL,
    *,
    base_width: int | None = None,
) -> nn.Module:
    """Residual network for ImageNet: four stages of blocks that widen, mix within groups, and narrow.

    Args:
        img_shape: channels, height, width.
        n_classes: number of logits.
        expand_factor: channels inside a block, as a multiple of those outside.
        block_depth: blocks of each stage.
        kernel_size: kernel size of the convolutions of a block, and of those that lead to the next stage.
        embedding_dim: channels of the last stage.
        groups: groups of the convolutions of a block; None for groups of two channels.
        skip: a class that wraps a block, or None.
        conv: a class with the arguments of `nn.Conv2d`.
        act: a class that is called without arguments.
        lin: the head, a class with the arguments of `nn.Linear`.
        norm: a class that is called with the number of channels, or None.
        pool: a class that is called with `kernel_size`, the size of the last images, or None.
        base_width: channels of the first convolution, by default a sixteenth of `embedding_dim`; stages have 2, 4 and 8
            times as many, and `embedding_dim`.
    """
    channels, height, width = check_image_shape("aocnet_v1", img_shape, n_classes)
    base_width = embedding_dim // 16 if base_width is None else base_width
    if base_width < 1:
        raise ParameterError(f"aocnet_v1 starts with embedding_dim/16 channels: got embedding_dim={embedding_dim}.")
    parts, stem = (published_parts(conv, act, norm, norm_last, norm_counts=True) for norm_last in (False, True))
    widths = (2 * base_width, 4 * base_width, 8 * base_width, embedding_dim)
    layers = [*stem.unit(channels, base_width, 7, stride=2), *stem.unit(base_width, widths[0], 3, stride=2)]
    channels, height, width = widths[0], halved(height, 2), halved(width, 2)
    for stage, w in enumerate(widths):
        if stage:
            layers.append(parts.convolution(channels, w, kernel_size, stride=2))
            channels, height, width = w, halved(height), halved(width)
        layers += parts.centering(w)
        for _ in range(block_depth):
            g, inner = w // 2 if groups is None else groups, w * expand_factor
            branch = [
                *parts.unit(w, inner, kernel_size, groups=g),
                parts.convolution(inner, w, kernel_size, groups=g),
            ]
            layers += [residual(parts, skip, branch), parts.convolution(w, w, 1)]
    pooling, features = pool_and_flatten(pool, channels, height, width)
    return nn.Sequential(*layers, *pooling, lin(features, n_classes))
