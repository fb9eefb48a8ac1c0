"""Which kind of head a classifier ends in: it decides how margins become certified radii."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrize

from orthogonium.layers.linear import OrthoLinear, SpectralLinear, UnitNormLinear

_TOLERANCE = 1e-4  # of the norm of a weight whose constraint was removed


def _last_affine_layer(model: nn.Module) -> nn.Module | None:
    """The dense or convolutional layer registered last, at any depth; a layer used twice counts where it is last."""
    found = None
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, nn.Linear | nn.Bilinear | _ConvNd) and "parametrizations" not in name.split("."):
            found = module
    return found


def _keeps_constraint(layer: nn.Linear) -> bool:
    """Constrained by construction; or, after `remove_parametrizations`, still within the bound it had then."""
    if parametrize.is_parametrized(layer, "weight"):
        return True
    with torch.no_grad():
        weight = layer.weight.double()
        norm = (
            weight.norm(dim=1).max() if isinstance(layer, UnitNormLinear) else torch.linalg.matrix_norm(weight, ord=2)
        )
    return norm.item() <= 1 + _TOLERANCE


def check_last_linear_layer_type(model: nn.Module) -> Literal["global", "classwise", "unknown"]:
    """Type of the head of `model`, to be handed to losses and certificates as `last_layer_type`.

    The head is the dense or convolutional layer that was registered last, however deep it is nested: in containers, in
    wrappers such as DDP or `torch.compile`.

    Returns:
        "global" if the whole matrix has norm ≤ 1 (OrthoLinear, SpectralLinear), "classwise" if each row has
        (UnitNormLinear), "unknown" for anything else.

    >>> from torch import nn
    >>> from orthogonium.layers.head import check_last_linear_layer_type
    >>> from orthogonium.layers.linear import OrthoLinear, UnitNormLinear
    >>> body = nn.Sequential(nn.Flatten(), OrthoLinear(12, 8))
    >>> check_last_linear_layer_type(nn.Sequential(body, nn.Sequential(UnitNormLinear(8, 10))))
    'classwise'
    """
    head = _last_affine_layer(model)
    if isinstance(head, OrthoLinear | SpectralLinear) and _keeps_constraint(head):
        return "global"
    if isinstance(head, UnitNormLinear) and _keeps_constraint(head):
        return "classwise"
    return "unknown"
