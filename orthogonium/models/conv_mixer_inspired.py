"""ConvMixer on orthogonal layers, as first published with them.

Boissin, Mamalet, Fel, Picard, Massena, Serrurier (2025), "An adaptive orthogonal convolution scheme for efficient and
flexible CNN architectures", after Trockman, Kolter (2022), "Patches are all you need?".

`lip_convmixer` is the same architecture with a choice of method.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from torch import nn

from orthogonium.class_param import ClassParam
from orthogonium.errors import ParameterError
from orthogonium.layers import AdaptiveOrthoConv2d, AdaptiveSOCConv2d
from orthogonium.models.lip_convmixer import mixer_groups
from orthogonium.models.network_parts import Factory, layer_of
from orthogonium.models.patch_based_cnn import patches
from orthogonium.models.published import (
    AVG_POOL,
    CIRCULAR_CONV,
    LAYER_CENTERING,
    MAXMIN,
    ORTHOGONAL,
    pool_and_flatten,
    published_parts,
)
from orthogonium.models.registry import register


def _only_shifts(conv: Factory) -> bool:
    """Whether these convolutions have no free parameter where a group has one channel."""
    made = layer_of(conv)
    return isinstance(made, type) and issubclass(made, AdaptiveOrthoConv2d)


def _depthwise_of(conv: Factory) -> Factory:
    """Adaptive SOC with the options of these convolutions."""
    if isinstance(conv, ClassParam):
        return ClassParam(_depthwise_of(conv.fct or nn.Identity), *conv.args, **conv.kwargs)
    if isinstance(conv, functools.partial):
        return functools.partial(_depthwise_of(conv.func), *conv.args, **conv.keywords)
    return AdaptiveSOCConv2d


@register(image_shape=(3, 32, 32), large={"patch_size": 7})
def conv_mixer_inspired(
    img_shape: Sequence[int] = (3, 32, 32),
    dim: int = 128,
    depth: int = 8,
    kernel_size: int = 3,
    patch_size: int = 2,
    expand_factor: int = 1,
    channels_per_group: int = 1,
    n_classes: int = 10,
    conv: Factory = CIRCULAR_CONV,
    act: Factory = MAXMIN,
    pool: Factory | None = AVG_POOL,
    lin: Factory = ORTHOGONAL,
    norm: Factory | None = LAYER_CENTERING,
    *,
    depthwise: Factory | None = None,
) -> nn.Module:
    """ConvMixer for CIFAR-10: grouped convolutions for space and 1×1 convolutions for channels, by turns.

    Args:
        img_shape: channels, height, width.
        dim: channels between blocks.
        depth: number of blocks.
        kernel_size: kernel size of the grouped convolutions.
        patch_size: kernel size and stride of the first convolution; images are zero-padded to a multiple.
        expand_factor: channels inside a block, as a multiple of `dim`.
        channels_per_group: output channels per group of the grouped convolutions.
        n_classes: number of logits.
        conv: a class with the arguments of `nn.Conv2d`.
        act: a class that is called without arguments.
        pool: a class that is called with `kernel_size`, the size of the last images, or None.
        lin: the head, a class with the arguments of `nn.Linear`.
        norm: a class that is called with the number of channels, or without arguments if it needs none; or None.
        depthwise: replaces `conv` where a group has one channel and our orthogonal convolution could only shift it;
            None for adaptive SOC with the same options.
    """
    layers, (channels, height, width) = patches("conv_mixer_inspired", img_shape, n_classes, patch_size)
    groups = mixer_groups("conv_mixer_inspired", dim * expand_factor, channels_per_group)
    if dim % groups:
        raise ParameterError(
            f"conv_mixer_inspired: {groups} groups of channels_per_group={channels_per_group} outputs cannot share "
            f"dim={dim} inputs. Use a multiple of expand_factor={expand_factor}."
        )
    parts = published_parts(conv, act, norm)
    shifts = channels_per_group == 1 and _only_shifts(conv)
    spatial = published_parts(depthwise or _depthwise_of(conv), act, norm) if shifts else parts
    layers.append(parts.convolution(channels, dim, patch_size, stride=patch_size))
    for _ in range(depth):
        across = spatial.unit(dim, dim * expand_factor, kernel_size, groups=groups)
        layers.append(nn.Sequential(*across, *parts.unit(dim * expand_factor, dim, 1)))
    pooling, features = pool_and_flatten(pool, dim, height, width)
    return nn.Sequential(*layers, *pooling, lin(features, n_classes))
