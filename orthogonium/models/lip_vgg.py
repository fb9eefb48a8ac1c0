"""VGG-16 with a Lipschitz constant of 1: strided convolutions take the place of max pooling.

Simonyan, Zisserman (2015), "Very deep convolutional networks for large-scale image recognition", on the layers of
Boissin et al. (2025), "An adaptive orthogonal convolution scheme for efficient and flexible CNN architectures".
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from orthogonium.errors import ParameterError
from orthogonium.models.network_parts import Factory, check_image_shape, halved
from orthogonium.models.published import (
    L2_POOL,
    LAYER_CENTERING,
    MAXMIN,
    ORTHOGONAL_NO_BIAS,
    ZERO_PADDED_CONV,
    pool_and_flatten,
    published_parts,
)
from orthogonium.models.registry import register

# (channels as a multiple of the base width, stride) of each convolution but the last
_CONVOLUTIONS = (
    *((1, 1), (2, 2)),
    *((2, 1), (4, 2)),
    *((4, 1), (4, 1), (8, 2)),
    *((8, 1), (8, 1), (8, 2)),
    *((8, 1), (8, 1)),
)


@register(image_shape=(3, 224, 224), n_classes=1000, large={"pool": L2_POOL})
def lip_vgg(
    img_shape: Sequence[int] = (3, 224, 224),
    n_classes: int = 1000,
    conv: Factory = ZERO_PADDED_CONV,
    act: Factory = MAXMIN,
    lin: Factory = ORTHOGONAL_NO_BIAS,
    norm: Factory | None = LAYER_CENTERING,
    *,
    base_width: int = 64,
    hidden: int = 4096,
    pool: Factory | None = None,
) -> nn.Module:
    """Plain network for ImageNet with the widths of VGG-16: 13 convolutions and 3 dense layers.

    Args:
        img_shape: channels, height, width.
        n_classes: number of logits.
        conv: a class with the arguments of `nn.Conv2d`.
        act: a class that is called without arguments.
        lin: a class with the arguments of `nn.Linear`.
        norm: a class that is called with the number of channels, or without arguments if it needs none; or None.
        base_width: channels of the first convolution; the last have 8 times as many.
        hidden: outputs of the two dense layers before the head.
        pool: a class that is called with `kernel_size`, the size of the last images, or None. Without it, the first
            dense layer of a network for 224×224 pixels has 25088 × 4096 weights, which each step makes orthogonal.
    """
    channels, height, width = check_image_shape("lip_vgg", img_shape, n_classes)
    if min(height, width) <= 16:
        raise ParameterError(
            f"lip_vgg centers images after four strides of 2, which needs more than 16×16 pixels: got {height}×{width}."
        )
    parts = published_parts(conv, act, norm, norm_last=True)
    layers: list[nn.Module] = []
    for multiple, stride in _CONVOLUTIONS:
        layers += parts.unit(channels, base_width * multiple, 3, stride)
        channels = base_width * multiple
    layers.append(parts.convolution(channels, channels, 3, stride=2))
    pooling, features = pool_and_flatten(pool, channels, halved(height, 5), halved(width, 5))
    layers += pooling
    for _ in range(2):
        layers += [lin(features, hidden), act(), *parts.centering(hidden)]
        features = hidden
    return nn.Sequential(*layers, lin(features, n_classes))
