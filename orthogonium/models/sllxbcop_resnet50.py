"""A residual network of SLL blocks: those that stride or widen are fused with orthogonal convolutions.

Araujo, Havens, Delattre, Allauzen, Hu (2023), "A unified algebraic perspective on Lipschitz neural networks"; fused
with adaptive orthogonal convolutions as in Boissin et al. (2025), "An adaptive orthogonal convolution scheme for
efficient and flexible CNN architectures". Stem, and widths up to a factor, of He, Zhang, Ren, Sun (2016), ResNet-50.

Note [Widths]
SLL blocks have no bottleneck: with the widths of ResNet-50 the published network has 283 million parameters. A training
step on four images takes 2.4 Tflop for its convolutions, and 12.5 Tflop for the Gram kernels whose row sums scale the
blocks, which grow with the cube of the widths. So `create_model` makes a quarter of the widths, unless asked for more.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from orthogonium.errors import ParameterError
from orthogonium.layers import (
    AdaptiveOrthoConv2d,
    MaxMin,
    OrthoLinear,
    SDPBasedLipschitzResBlock,
    SLLxAOCLipschitzResBlock,
)
from orthogonium.models.network_parts import Factory, check_image_shape, halved
from orthogonium.models.published import L2_POOL, pool_and_flatten
from orthogonium.models.registry import member, register

_DEPTHS = (2, 3, 5, 2)


def published_resnet50(
    img_shape: Sequence[int] = (3, 224, 224),
    n_classes: int = 1000,
    norm: Factory | None = None,
    *,
    base_width: int = 64,
    depths: Sequence[int] = _DEPTHS,
) -> nn.Module:
    """Residual network for ImageNet on SLL blocks, with the widths of ResNet-50. Note [Widths].

    Args:
        img_shape: channels, height, width.
        n_classes: number of logits.
        norm: a class that is called with the number of channels, or None.
        base_width: channels of the first convolution; stages have 4, 8, 16, … times as many.
        depths: number of SLL blocks of each stage after the one that widens.
    """
    channels, height, width = check_image_shape("sllxbcop_resnet50", img_shape, n_classes)
    if height < 4 or width < 4:
        raise ParameterError(f"sllxbcop_resnet50 needs images of at least 4×4 pixels, got {height}×{width}.")

    def centering(features: int) -> list[nn.Module]:
        return [] if norm is None else [norm(features)]

    layers = [AdaptiveOrthoConv2d(channels, base_width, kernel_size=7, stride=2), MaxMin(), *centering(base_width)]
    layers += [L2_POOL(kernel_size=2), *centering(base_width)]
    channels, height, width = base_width, halved(height) // 2, halved(width) // 2
    for stage, depth in enumerate(depths):
        w, stride = base_width * 4 * 2**stage, 2 if stage else 1
        layers += [SLLxAOCLipschitzResBlock(channels, w, 1.0, kernel_size=3, stride=stride), *centering(w)]
        channels, height, width = w, -(-height // stride), -(-width // stride)
        for _ in range(depth):
            layers += [SDPBasedLipschitzResBlock(w, 2.0, kernel_size=3), *centering(w)]
    pooling, features = pool_and_flatten(L2_POOL, channels, height, width)
    return nn.Sequential(*layers, *pooling, OrthoLinear(features, n_classes))


sllxbcop_resnet50 = register(image_shape=(3, 224, 224), n_classes=1000)(
    member(
        published_resnet50,
        "sllxbcop_resnet50",
        "Residual network for ImageNet on SLL blocks, with a quarter of the widths of ResNet-50.",
        base_width=16,
    )
)
