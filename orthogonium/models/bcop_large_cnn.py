"""The "large" network of the BCOP paper: four convolutions and three dense layers.

Li, Haque, Anil, Lucas, Grosse, Jacobsen (2019), "Preventing gradient attenuation in Lipschitz constrained convolutional
networks".
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from orthogonium.class_param import ClassParam
from orthogonium.layers import AdaptiveOrthoConv2d
from orthogonium.models.network_parts import Factory, halved
from orthogonium.models.patch_based_cnn import patches
from orthogonium.models.published import MAXMIN, ORTHOGONAL, pool_and_flatten, published_parts
from orthogonium.models.registry import register

_CONV = ClassParam(AdaptiveOrthoConv2d, bias=True, padding_mode="circular")


@register(image_shape=(3, 32, 32), large={"patch_size": 7})
def bcop_large_cnn(
    img_shape: Sequence[int] = (3, 32, 32),
    n_classes: int = 10,
    conv: Factory = _CONV,
    act: Factory = MAXMIN,
    lin: Factory = ORTHOGONAL,
    norm: Factory | None = None,
    *,
    patch_size: int = 1,
) -> nn.Module:
    """Plain network for CIFAR-10: four convolutions and three dense layers.

    Args:
        img_shape: channels, height, width.
        n_classes: number of logits.
        conv: a class with the arguments of `nn.Conv2d`.
        act: a class that is called without arguments.
        lin: a class with the arguments of `nn.Linear`.
        norm: a class that is called with the number of channels, or without arguments if it needs none; or None.
        patch_size: kernel size and stride of a convolution in front of the others; 1 for none. Images are zero-padded
            to a multiple of it.
    """
    layers, (channels, height, width) = patches("bcop_large_cnn", img_shape, n_classes, patch_size)
    parts = published_parts(conv, act, norm, norm_last=True)
    if patch_size > 1:
        layers += parts.unit(channels, 32, patch_size, stride=patch_size)
        channels = 32
    for w, kernel_size, stride in ((32, 3, 1), (64, 5, 2), (64, 3, 1), (64, 5, 2)):
        layers += parts.unit(channels, w, kernel_size, stride)
        channels = w
    flatten, features = pool_and_flatten(None, channels, halved(height, 2), halved(width, 2))
    dense = [lin(features, 512), act(), lin(512, 512), act(), lin(512, n_classes)]
    return nn.Sequential(*layers, *flatten, *dense)
