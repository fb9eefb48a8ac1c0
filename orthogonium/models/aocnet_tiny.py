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
from orthogonium.models.parts import Factory, Parts, assemble, check_image, halved, stem
from orthogonium.models.registry import register


@register(image_shape=(3, 32, 32))
def aocnet_tiny(
    image_shape: Sequence[int],
    n_classes: int,
    *,
    widths: Sequence[int] = (32, 64, 128),
    depth: int = 2,
    kernel_size: int = 3,
    stride_kernel: int | None = None,
    hidden: Sequence[int] = (128,),
    patch: int = 1,
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
    """Small plain CNN for digits and CIFAR-10; its layers may be those of any method or library.

    Args:
        image_shape: channels, height, width.
        n_classes: number of logits.
        widths: channels of each stage. All but the first stage halve the image, so with channels that double, as here,
            half of the numbers are kept.
        depth: convolutions of a stage; the first of them has stride 2, and the first stage has one less.
        kernel_size: of convolutions.
        stride_kernel: of those with stride 2, if not `kernel_size`; with 2 they are the cheapest.
        hidden: outputs of each dense layer before the head.
        patch: size of the blocks of pixels that become channels in front of the first convolution.
        pool: "flatten", "avg", "l2" or "max", before the dense layers.
        head: "global" (OrthoLinear), "classwise" (UnitNormLinear) or a class; by default `lin` or else "global".
        method: "aoc" (default), "soc", "aol", "sll", "sandwich" or another of `METHODS`.
        conv: instead, a class with the arguments of `nn.Conv2d`.
        lin: for dense layers, a class with the arguments of `nn.Linear`.
        act: "maxmin", "groupsort" (of 4), "householder", "abs", "nactivation", "relu" or a class.
        norm: None, "batch-centering", "layer-centering" or a class that takes the number of channels.
        padding_mode: "circular" or "zeros".
        bias: whether convolutions have one.
        mean: of the pixels, subtracted inside the model.
        std: of the pixels, divided by inside the model: the constant of the model becomes `1/min std`.
    """
    shape = check_image("aocnet_tiny", image_shape, n_classes)
    if not widths or depth < 1:
        raise ParameterError(f"aocnet_tiny needs a stage and a convolution in it: got widths {widths}, depth {depth}.")
    stride_kernel = stride_kernel or kernel_size
    parts = Parts(method, conv, lin, act, norm, padding_mode, bias)
    first, (channels, height, width) = stem("aocnet_tiny", shape, patch, mean, std)
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
    return assemble(parts, first, features, (channels, *size), pool, hidden, head, n_classes)
