"""Batch normalization as centering; if weights are kept, its scale moves into the layer before it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from orthogonium.layers.normalization import BatchCentering
from orthogonium.layers.parametrization import give_own_class

WITHOUT_DIVISION = "without the division"


class SignedCentering(nn.Module):
    """Centering, with each channel multiplied by its sign, 1 or −1: a reflection keeps all distances."""

    signs: Tensor

    def __init__(self, centering: BatchCentering, signs: Tensor) -> None:
        super().__init__()
        self.centering = centering
        self.register_buffer("signs", signs)

    def forward(self, x: Tensor) -> Tensor:
        """`s_c(x − μ_c + b_c)`, for inputs (n, c, …)."""
        y: Tensor = self.centering(x)
        return y * self.signs.view(-1, *[1] * (x.dim() - 2))

    def extra_repr(self) -> str:
        """How many channels are reflected."""
        return f"{int((self.signs < 0).sum())} of {len(self.signs)} channels by −1"


def channel_scale(norm: Any) -> Tensor:
    """The factor by which batch normalization multiplies each channel in eval mode."""
    if norm.running_var is None:
        scale = torch.ones(norm.num_features)
    else:
        scale = (norm.running_var.detach() + norm.eps).rsqrt()
    return scale if norm.weight is None else scale * norm.weight.detach()


def folded(layer: Any, norm: Any) -> Any:
    """A copy of the layer with the scale of the following normalization in its weight, and no bias.

    The weight of a parametrized layer is computed at each access, so nothing can be written into it: the copy has a
    plain weight.
    """
    copy = deepcopy(layer)
    if parametrize.is_parametrized(copy):
        # A copy of a torch layer shares the class of the original, which must keep its weight.
        give_own_class(copy, parametrize.type_before_parametrizations(copy))
        for name in list(copy.parametrizations):
            parametrize.remove_parametrizations(copy, name)
    scale = channel_scale(norm).to(copy.weight)
    with torch.no_grad():
        if isinstance(layer, nn.modules.conv._ConvNd) and layer.transposed:
            grouped = copy.weight.unflatten(0, (layer.groups, -1))  # (g, in/g, out/g, *k)
            factor = scale.view(layer.groups, 1, -1, *[1] * (copy.weight.dim() - 2))
            copy.weight.copy_((grouped * factor).flatten(0, 1))
        else:
            copy.weight.mul_(scale.view(-1, *[1] * (copy.weight.dim() - 1)))
        if copy.bias is not None:
            copy.bias.zero_()
    return copy


def centering(norm: Any) -> BatchCentering:
    """Centering with the same number of channels, and new means and biases."""
    held = norm.running_mean
    kind = {} if held is None else {"device": held.device, "dtype": held.dtype}
    return BatchCentering(norm.num_features, norm.momentum, **kind)


def kept_centering(norm: Any, unit: float, in_layer: bool, bias: Tensor | None) -> tuple[nn.Module, float, str]:
    """Centering by the means and biases of a normalization, for inputs in a unit: Note [Units] of `constrained.py`.

    Args:
        norm: the normalization.
        unit: unit of its input.
        in_layer: whether its scale is in the layer before it.
        bias: bias of that layer, which the means absorb.

    Returns:
        The module, the number its outputs are divided by, and a note for the report.
    """
    new, scale = centering(norm), channel_scale(norm)
    mean = torch.zeros_like(scale) if norm.running_mean is None else norm.running_mean
    divided, signs = 1.0, torch.ones_like(scale)
    if in_layer:
        mean = scale * (mean if bias is None else mean - bias)
    else:
        divided = float(scale.square().mean().sqrt()) or 1.0
        signs = torch.where(scale < 0, -signs, signs)
    with torch.no_grad():
        new.running_mean.copy_(mean / unit)
        if norm.bias is not None and new.bias is not None:
            new.bias.copy_(signs * norm.bias / (unit * divided))
    note = "its scale is in the layer before" if in_layer else WITHOUT_DIVISION
    if norm.running_mean is None:
        note += "; there are no running statistics to keep"
    if bool((signs > 0).all()):
        return new, divided, note
    return SignedCentering(new, signs), divided, f"{note}; channels keep their signs"  # s(x − μ) + b = s(x − μ + sb)
