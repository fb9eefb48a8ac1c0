"""ConvMixer with a Lipschitz constant of 1: patches, then convolutions that mix space and channels by turns.

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
from orthogonium.models.parts import Factory, Parts, assemble, check_image, stem
from orthogonium.models.registry import register


def mixer_groups(model: str, dim: int, channels_per_group: int) -> int:
    """Number of groups, checked."""
    if channels_per_group < 1 or dim % channels_per_group:
        raise ParameterError(f"{model}: channels_per_group must divide dim {dim}, got {channels_per_group}.")
    return dim // channels_per_group


@register(
    "lip_convmixer_tiny",
    image_shape=(3, 32, 32),
    summary="ConvMixer of 4 pairs of convolutions on 64 channels.",
    dim=64,
    depth=4,
)
@register(
    "lip_convmixer_small",
    image_shape=(3, 32, 32),
    summary="ConvMixer of 8 pairs of convolutions on 256 channels.",
    dim=256,
    depth=8,
)
def lip_convmixer(
    image_shape: Sequence[int],
    n_classes: int,
    *,
    dim: int,
    depth: int,
    kernel_size: int = 5,
    patch: int = 2,
    channels_per_group: int = 4,
    skip: str | Factory | None = None,
    hidden: Sequence[int] = (),
    pool: str = "flatten",
    head: str | Factory | None = None,
    method: str | None = None,
    conv: Factory | None = None,
    lin: Factory | None = None,
    act: str | Factory = "maxmin",
    norm: str | Factory | None = None,
    padding_mode: str = "circular",
    bias: bool = True,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
) -> nn.Module:
    """ConvMixer: grouped convolutions for space and 1×1 convolutions for channels, by turns.

    Beside the options of `aocnet_tiny` there are `dim`, the channels of all convolutions, `depth`, the number of pairs,
    `channels_per_group` of the spatial convolutions, and `skip`, which wraps these as in `lip_resnet` (None: nothing
    does). `patch` must divide the image.
    """
    shape = check_image("lip_convmixer", image_shape, n_classes)
    groups = mixer_groups("lip_convmixer", dim, channels_per_group)
    parts = Parts(method, conv, lin, act, norm, padding_mode, bias)
    first, (channels, height, width) = stem("lip_convmixer", shape, patch, mean, std)
    features = parts.unit(channels, dim, 1)
    for _ in range(depth):
        features.append(residual(parts, skip, parts.unit(dim, dim, kernel_size, groups=groups)))
        features += parts.unit(dim, dim, 1)
    return assemble(parts, first, features, (dim, height, width), pool, hidden, head, n_classes)
