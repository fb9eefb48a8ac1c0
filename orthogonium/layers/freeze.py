"""Plain copies of models, for deployment."""

from __future__ import annotations

from copy import deepcopy

from torch import nn
from torch.nn.utils import parametrize

from orthogonium.layers.parametrization import Constraint


def freeze(model: nn.Module) -> nn.Module:
    """A copy of the model whose constrained weights are plain parameters: same outputs, nothing left to build.

    What runs the model then needs none of the linear algebra behind the constraints: this is the form to export to ONNX, to
    quantize, or to serve where even the check of the eval cache is too much. The copy is in eval mode. Training it further
    would leave the constraint.

    >>> from orthogonium.layers import OrthoLinear
    >>> model = torch.nn.Sequential(OrthoLinear(4, 4), torch.nn.ReLU())
    >>> list(freeze(model).state_dict())
    ['0.bias', '0.weight']
    """
    copy = deepcopy(model).eval()
    for module in copy.modules():
        if not parametrize.is_parametrized(module):
            continue
        for name, chain in list(module.parametrizations.items()):  # type: ignore[union-attr, operator]
            if isinstance(chain[0], Constraint):
                parametrize.remove_parametrizations(module, name)
    return copy
