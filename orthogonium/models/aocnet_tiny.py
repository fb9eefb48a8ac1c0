"""A small plain network for small images: stages of convolutions, the first of each striding, then dense layers.

Anil, Lucas, Grosse (2019), "Sorting out Lipschitz function approximation", and Li, Haque, Anil, Lucas, Grosse, Jacobsen
(2019), "Preventing gradient attenuation in Lipschitz constrained convolutional networks" (their "large" network), with
the layers of Boissin et al. (2025), "An adaptive orthogonal convolution scheme for efficient and flexible CNN
architectures".
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from orthogonium.errors import ParameterError
from orthogonium.models.network_parts import STEM_AND_POOL, ClassifierParts, check_image_shape, halved
from orthogonium.models.registry import register


@register(image_shape=(3, 32, 32), large=STEM_AND_POOL)
def aocnet_tiny(
    image_shape: Sequence[int],
    n_classes: int,
    parts: ClassifierParts = ClassifierParts(hidden=(128,)),
    *,
    widths: Sequence[int] = (32, 64, 128),
    depth: int = 2,
    kernel_size: int = 3,
    stride_kernel: int | None = None,
) -> nn.Module:
    """Small plain CNN for digits and CIFAR-10; its layers may be those of any method or library.

    Args:
        image_shape: channels, height, width.
        n_classes: number of logits.
        parts: the layers of the network and its two ends.
        widths: channels of each stage. All but the first stage halve the image, so with channels that double, as here,
            half of the numbers are kept.
        depth: convolutions of a stage; the first of them has stride 2, and the first stage has one less, but
            at least one.
        kernel_size: kernel size of the convolutions.
        stride_kernel: kernel size of those with stride 2, if not `kernel_size`; 2 makes them cheapest.
    """
    shape = check_image_shape("aocnet_tiny", image_shape, n_classes)
    if not widths or depth < 1:
        raise ParameterError(f"aocnet_tiny needs a stage and a convolution in it: got widths {widths}, depth {depth}.")
    stride_kernel = stride_kernel or kernel_size
    first, (channels, height, width) = parts.stem("aocnet_tiny", shape)
    features: list[nn.Module] = []
    for stage, w in enumerate(widths):
        if stage > 0:
            features += parts.unit(channels, w, stride_kernel, stride=2)
            channels = w
        for _ in range(depth - 1 if stage else max(depth - 1, 1)):
            features += parts.unit(channels, w, kernel_size)
            channels = w
    strides = len(widths) - 1
    size = halved(height, strides), halved(width, strides)
    return parts.assemble(first, features, (channels, *size), n_classes)
