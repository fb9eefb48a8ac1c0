"""What the published factories share: their default layers and their `Parts`."""

from __future__ import annotations

import inspect

from torch import nn

from orthogonium.class_param import ClassParam
from orthogonium.layers import (
    AdaptiveOrthoConv2d,
    BatchCentering2D,
    L2NormPool2d,
    LayerCentering2D,
    MaxMin,
    OrthoLinear,
    ScaledAvgPool2d,
    UnitNormLinear,
)
from orthogonium.linalg import DEFAULT_ORTHO_PARAMS
from orthogonium.models.network_parts import Factory, Parts

CIRCULAR_CONV = ClassParam(AdaptiveOrthoConv2d, bias=False, padding="same")
ZERO_PADDED_CONV = ClassParam(
    AdaptiveOrthoConv2d, bias=False, padding="same", padding_mode="zeros", ortho_params=DEFAULT_ORTHO_PARAMS
)
MAXMIN = ClassParam(MaxMin)
ORTHOGONAL = ClassParam(OrthoLinear)
ORTHOGONAL_NO_BIAS = ClassParam(OrthoLinear, bias=False)
UNIT_NORM = ClassParam(UnitNormLinear, bias=False)
BATCH_CENTERING = ClassParam(BatchCentering2D)
LAYER_CENTERING = ClassParam(LayerCentering2D)
L2_POOL = ClassParam(L2NormPool2d)
AVG_POOL = ClassParam(ScaledAvgPool2d)


class CenteredLast(Parts):
    """Parts whose centering follows the activation."""

    def _in_order(self, layer: list[nn.Module], norm: list[nn.Module], act: list[nn.Module]) -> list[nn.Module]:
        return [*layer, *act, *norm]


def published_parts(
    conv: Factory, act: Factory, norm: Factory | None, norm_last: bool = False, *, norm_counts: bool = False
) -> Parts:
    """Layers as the caller made them: border and bias are those of `conv`.

    `norm` is called with the number of channels, or without arguments if it needs none, unless `norm_counts`. Centering
    by layer must not be followed by linear layers and an image average alone: the result would be constant.
    """
    if norm is not None and not norm_counts and _is_complete(norm):
        norm = _without_arguments(norm)
    kind = CenteredLast if norm_last else Parts
    return kind(conv=conv, act=act, norm=norm, padding_mode=None, bias=None)


def _is_complete(factory: Factory) -> bool:
    """Whether it can be called without arguments."""
    function, args, kwargs = factory, (), {}
    if isinstance(factory, ClassParam):
        function, args, kwargs = factory.fct or nn.Identity, factory.args, factory.kwargs
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _without_arguments(factory: Factory) -> Factory:
    return lambda channels: factory()


def pool_and_flatten(
    pool: Factory | None, channels: int, height: int, width: int
) -> tuple[list[nn.Module], int]:  # and the number of features
    """Pooling over the whole image, if any, and flattening to a vector."""
    if pool is None:
        return [nn.Flatten()], channels * height * width
    return [pool(kernel_size=(height, width)), nn.Flatten()], channels
