"""ConvMixer with a Lipschitz constant of 1: patches, then convolutions that mix space and channels alternately.

Trockman, Kolter (2022), "Patches are all you need?"; on orthogonal layers as in Boissin et al. (2025), "An adaptive
orthogonal convolution scheme for efficient and flexible CNN architectures".

Space is mixed within small groups of channels: with one channel per group, as in ConvMixer, an orthogonal kernel could
only shift.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from orthogonium.errors import ParameterError
from orthogonium.models.lip_resnet import residual
from orthogonium.models.network_parts import ClassifierParts, Factory, check_image_shape
from orthogonium.models.registry import member, register

_LARGE = {"patch": 7, "pool": "l2"}  # as ConvMixer has it for ImageNet: no stage follows that would halve the image


def mixer_groups(model: str, dim: int, channels_per_group: int) -> int:
    """Number of groups of `channels_per_group` channels that make up `dim`."""
    if channels_per_group < 1 or dim % channels_per_group:
        raise ParameterError(f"{model}: channels_per_group must divide dim {dim}, got {channels_per_group}.")
    return dim // channels_per_group


def _convmixer(
    image_shape: Sequence[int],
    n_classes: int,
    parts: ClassifierParts = ClassifierParts(patch=2),
    *,
    dim: int,
    depth: int,
    kernel_size: int = 5,
    channels_per_group: int = 4,
    skip: str | Factory | None = None,
) -> nn.Module:
    """ConvMixer: grouped convolutions for space and 1×1 convolutions for channels, by turns.

    Args:
        image_shape: channels, height, width.
        n_classes: number of logits.
        parts: the layers of the network and its two ends.
        dim: channels of all convolutions.
        depth: number of pairs of a spatial and a 1×1 convolution.
        kernel_size: kernel size of the convolutions that mix space.
        channels_per_group: number of channels that those mix with each other.
        skip: how those are wrapped, like the blocks of a residual network (`SKIPS`); None for not at all.
    """
    shape = check_image_shape("lip_convmixer", image_shape, n_classes)
    groups = mixer_groups("lip_convmixer", dim, channels_per_group)
    first, (channels, height, width) = parts.stem("lip_convmixer", shape)
    features = parts.unit(channels, dim, 1)
    for _ in range(depth):
        features.append(residual(parts, skip, parts.unit(dim, dim, kernel_size, groups=groups)))
        features += parts.unit(dim, dim, 1)
    return parts.assemble(first, features, (dim, height, width), n_classes)


lip_convmixer_tiny = register(image_shape=(3, 32, 32), large=_LARGE)(
    member(_convmixer, "lip_convmixer_tiny", "ConvMixer of 4 pairs of convolutions on 64 channels.", dim=64, depth=4)
)
lip_convmixer_small = register(image_shape=(3, 32, 32), large=_LARGE)(
    member(_convmixer, "lip_convmixer_small", "ConvMixer of 8 pairs of convolutions on 256 channels.", dim=256, depth=8)
)
