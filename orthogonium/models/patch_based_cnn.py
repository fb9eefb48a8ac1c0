"""Plain networks on patches: one convolution whose stride is its size, then convolutions of one width.

Boissin, Mamalet, Fel, Picard, Massena, Serrurier (2025), "An adaptive orthogonal convolution scheme for efficient and
flexible CNN architectures"; patches as in Trockman, Kolter (2022), "Patches are all you need?".
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from orthogonium.layers import PrescaledAdditiveResidual
from orthogonium.models.lip_resnet import residual
from orthogonium.models.network_parts import Factory, ImageShape, check_image_shape, whole_patches
from orthogonium.models.published import (
    AVG_POOL,
    CIRCULAR_CONV,
    L2_POOL,
    LAYER_CENTERING,
    MAXMIN,
    ORTHOGONAL,
    pool_and_flatten,
    published_parts,
)
from orthogonium.models.registry import register


def patches(
    model: str, img_shape: Sequence[int], n_classes: int, patch_size: int
) -> tuple[list[nn.Module], ImageShape]:
    """Padding of an image to a multiple of the patch, if needed; channels of the image, and its size in patches."""
    channels, *size = check_image_shape(model, img_shape, n_classes)
    layers, (height, width) = whole_patches(model, "patch_size", patch_size, (size[0], size[1]))
    return layers, (channels, height, width)


@register(image_shape=(3, 32, 32), large={"patch_size": 7})
def patch_based_cnn(
    img_shape: Sequence[int] = (3, 32, 32),
    dim: int = 128,
    depth: int = 8,
    kernel_size: int = 3,
    patch_size: int = 2,
    n_classes: int = 10,
    groups: int = 1,
    conv: Factory = CIRCULAR_CONV,
    act: Factory = MAXMIN,
    pool: Factory | None = L2_POOL,
    lin: Factory = ORTHOGONAL,
    norm: Factory | None = LAYER_CENTERING,
) -> nn.Module:
    """Plain network for CIFAR-10: patches, then convolutions of one width.

    Args:
        img_shape: channels, height, width.
        dim: channels of the convolutions.
        depth: number of convolutions after the first.
        kernel_size: kernel size of those.
        patch_size: kernel size and stride of the first; images are zero-padded to a multiple of it.
        n_classes: number of logits.
        groups: groups of the convolutions after the first.
        conv: a class with the arguments of `nn.Conv2d`.
        act: a class that is called without arguments.
        pool: a class that is called with `kernel_size`, the size of the last images, or None.
        lin: the head, a class with the arguments of `nn.Linear`.
        norm: a class that is called with the number of channels, or without arguments if it needs none; or None.
    """
    layers, (channels, height, width) = patches("patch_based_cnn", img_shape, n_classes, patch_size)
    first, parts = (published_parts(conv, act, norm, norm_last) for norm_last in (True, False))
    layers += first.unit(channels, dim, patch_size, stride=patch_size)
    layers += [nn.Sequential(*parts.unit(dim, dim, kernel_size, groups=groups)) for _ in range(depth)]
    pooling, features = pool_and_flatten(pool, dim, height, width)
    return nn.Sequential(*layers, *pooling, lin(features, n_classes))


@register(image_shape=(3, 224, 224), n_classes=1000)
def patch_based_expanded_cnn(
    img_shape: Sequence[int] = (3, 224, 224),
    dim: int = 128,
    depth: int = 12,
    kernel_size: int = 5,
    patch_size: int = 2,
    expand_factor: int = 2,
    groups: int | None = None,
    n_classes: int = 1000,
    skip: bool | Factory = False,
    conv: Factory = CIRCULAR_CONV,
    act: Factory = MAXMIN,
    pool: Factory | None = AVG_POOL,
    lin: Factory = ORTHOGONAL,
    norm: Factory | None = LAYER_CENTERING,
) -> nn.Module:
    """Network for ImageNet on patches: grouped convolutions that widen and 1×1 convolutions that narrow.

    Args:
        img_shape: channels, height, width.
        dim: channels between blocks.
        depth: number of blocks.
        kernel_size: kernel size of the grouped convolutions.
        patch_size: kernel size and stride of the first convolution; images are zero-padded to a multiple.
        expand_factor: channels inside a block, as a multiple of `dim`.
        groups: groups of the convolutions that widen; None for groups of two channels.
        n_classes: number of logits.
        skip: whether blocks are residual, by `PrescaledAdditiveResidual`; or a class that wraps a block.
        conv: a class with the arguments of `nn.Conv2d`.
        act: a class that is called without arguments.
        pool: a class that is called with `kernel_size`, the size of the last images, or None.
        lin: the head, a class with the arguments of `nn.Linear`.
        norm: a class that is called with the number of channels, or without arguments if it needs none; or None.
    """
    layers, (channels, height, width) = patches("patch_based_expanded_cnn", img_shape, n_classes, patch_size)
    parts = published_parts(conv, act, norm)
    wrapper = (PrescaledAdditiveResidual if skip else None) if isinstance(skip, bool) else skip
    inner, groups = dim * expand_factor, dim // 2 if groups is None else groups
    layers.append(parts.convolution(channels, dim, patch_size, stride=patch_size))
    for _ in range(depth):
        branch = [*parts.unit(dim, inner, kernel_size, groups=groups), parts.convolution(inner, dim, 1)]
        layers.append(residual(parts, wrapper, branch))
    pooling, features = pool_and_flatten(pool, dim, height, width)
    return nn.Sequential(*layers, *pooling, act(), lin(features, n_classes))
