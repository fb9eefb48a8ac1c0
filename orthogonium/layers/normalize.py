"""A certified spectral norm for torch's linear layers and convolutions, used like `torch.nn.utils.parametrizations`.

Note [Padding of torch]
A torch convolution applies a kernel without padding, after a map P that pads. Zeros do not expand. Circular padding by
less than half of the kernel gives each window of the circle at most once: a part of the convolution on the circle. With
a stride these are a part of the windows of stride 1, since torch does not tile the circle, and are bounded as such. All
other padding repeats pixels: `‖P‖²` is at most the number of copies of a pixel, the product over the axes of 3
(reflect, circular: one on each side) or 1 + 2p (replicate, all of the same pixel), for images of any size.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

from torch import nn
from torch.nn.utils import parametrize

from orthogonium.errors import ParameterError
from orthogonium.kernels import ConvGeometry
from orthogonium.layers.guarantee import check_constant
from orthogonium.layers.parametrization import Constrained, Constraint
from orthogonium.methods.kernel import Kernel
from orthogonium.methods.spectral import SpectralKernel, UnitBall

Module = TypeVar("Module", bound=nn.Module)


def normalize(module: Module, lipschitz: float = 1.0, niter: int = 9) -> Module:
    """Divide the weight of a torch layer by a certified bound on its operator norm at each call; works in place.

    For convolutions this is the norm of the convolution with its stride, dilation, groups and padding, for every image
    size. `torch.nn.utils.parametrizations.spectral_norm` uses the norm of the weight as a matrix, which may be too
    small by the root of the number of taps, and estimates it from below.

    Guarantee: no singular value of the layer exceeds `lipschitz`, not even in training, and there is no state. The raw
    parameter starts as the weight of the layer, so its direction is kept. `remove_parametrizations(module, "weight")`
    leaves a plain layer.

    Args:
        module: an `nn.Linear`, `nn.ConvNd` or `nn.ConvTransposeNd`.
        lipschitz: Lipschitz constant of the layer, any positive number.
        niter: number of Gram steps of the bound, as in `SpectralConv2d`.

    Returns:
        The module.

    >>> from orthogonium.layers import normalize
    >>> conv = normalize(torch.nn.Conv2d(3, 8, 3, padding=1, bias=False))
    >>> x = torch.randn(1, 3, 8, 8)
    >>> bool(conv(x).norm() <= x.norm())
    True
    """
    name = type(module).__name__
    lipschitz = check_constant(lipschitz, "normalize")
    if isinstance(module, Constrained) or parametrize.is_parametrized(module, "weight"):
        raise ParameterError(
            f"normalize: the weight of {name} is parametrized already. Remove that first, or leave it."
        )
    layer: Any = module
    kernel: Kernel
    if isinstance(module, nn.Linear):
        kernel, repeats = UnitBall((module.out_features, module.in_features), niter), 1
    elif isinstance(module, nn.modules.conv._ConvNd):
        kernel, repeats = _of_convolution(module, niter)
    else:
        raise ParameterError(f"normalize takes nn.Linear, nn.Conv1d to 3d and their transposes, got {name}.")
    raw = layer.weight.detach().clone()
    constraint = Constraint(kernel, raw, lipschitz / math.sqrt(repeats))
    parametrize.register_parametrization(module, "weight", constraint, unsafe=True)
    return module


def _of_convolution(conv: nn.modules.conv._ConvNd, niter: int) -> tuple[SpectralKernel, int]:
    """The kernel, and how often a pixel is repeated. Note [Padding of torch]."""
    outputs, inputs, *size = conv.weight.shape
    if conv.transposed:  # the adjoint of a convolution with this weight
        channels = inputs * conv.groups, outputs
    else:
        channels = conv.in_channels, conv.out_channels
    geometry = ConvGeometry.of(len(size), *channels, tuple(size), conv.stride, conv.dilation, conv.groups)
    margins = conv._reversed_padding_repeated_twice[::-1]  # right and left of the first axis, and so on
    pairs = list(zip(margins[::2], margins[1::2], strict=True))
    repeats = 1
    if conv.padding_mode == "circular" and all(sum(p) < x for p, x in zip(pairs, geometry.extent, strict=True)):
        geometry = ConvGeometry.of(len(size), *channels, tuple(size), 1, conv.dilation, conv.groups)
    elif conv.padding_mode in ("circular", "reflect"):
        repeats = math.prod(3 for pair in pairs if any(pair))
    elif conv.padding_mode == "replicate":
        repeats = math.prod(1 + sum(pair) for pair in pairs)
    return SpectralKernel(geometry, niter), repeats
