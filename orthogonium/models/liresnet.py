"""LiResNet: linear residual blocks `x + Kx`, whose norm is computed for the sum, and orthogonal dense layers.

Hu, Zou, Wang, Leino, Fredrikson (2023), "Unlocking deterministic robustness certification on ImageNet"; the dense
layers of Hu, Leino, Wang, Fredrikson (2024), "A recipe for improved certifiable robustness".

A block with an activation inside is bounded by 1 + L. A linear one is the convolution with the kernel `I + K`, which is
divided by a certified bound on its own norm (`SpectralConv2d(residual=True)`), and the activation follows. Orthogonal
dense layers, by Cholesky factors, take over where few pixels are left.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from orthogonium.errors import ParameterError
from orthogonium.layers import SpectralConv2d
from orthogonium.models.network_parts import ClassifierParts, check_image_shape, whole_patches
from orthogonium.models.registry import register

_NECK_STRIDE = 4


def linear_residual(parts: ClassifierParts, width: int, kernel_size: int) -> list[nn.Module]:
    """The convolution with `I + K`, normalized; centering and activation."""
    layer = SpectralConv2d(
        width,
        width,
        kernel_size,
        padding="same",
        bias=parts.bias is not False,
        padding_mode=parts.padding_mode or "circular",
        residual=True,
    )
    return [layer, *parts.centering(width), parts.activation(width)]


@register(image_shape=(3, 32, 32), large={"patch": 8})
def liresnet(
    image_shape: Sequence[int],
    n_classes: int,
    parts: ClassifierParts = ClassifierParts(patch=2, hidden=(512, 512)),
    *,
    width: int = 64,
    depth: int = 6,
    kernel_size: int = 3,
    neck: int = 128,
) -> nn.Module:
    """LiResNet: linear residual blocks of one width, a convolution of stride 4, and dense layers.

    Args:
        image_shape: channels, height, width.
        n_classes: number of logits.
        parts: the layers of the network, except for the residual ones, and its two ends.
        width: channels of the residual blocks.
        depth: number of residual blocks.
        kernel_size: kernel size of the convolutions, odd.
        neck: channels of the convolution of stride 4 that leads to the dense layers; the remaining pixels are
            flattened.
    """
    shape = check_image_shape("liresnet", image_shape, n_classes)
    if depth < 1 or kernel_size < 1 or kernel_size % 2 == 0:
        raise ParameterError(
            f"liresnet needs a block and an odd kernel size: got depth={depth} and kernel_size={kernel_size}."
        )
    first, (channels, height, width_in_patches) = parts.stem("liresnet", shape)
    features = parts.unit(channels, width, kernel_size)
    for _ in range(depth):
        features += linear_residual(parts, width, kernel_size)
    stride = min(_NECK_STRIDE, height, width_in_patches)
    continued, size = whole_patches("liresnet", "the stride of the neck", stride, (height, width_in_patches))
    features += [*continued, *parts.unit(width, neck, stride, stride=stride)]
    return parts.assemble(first, features, (neck, *size), n_classes)
