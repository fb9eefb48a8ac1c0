"""Plain copies of models, for deployment."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Literal

from torch import nn
from torch.nn.utils import parametrize

from orthogonium.errors import ParameterError
from orthogonium.layers.parametrization import Constraint, give_own_class
from orthogonium.layers.verifiable import rewrite


def freeze(
    model: nn.Module,
    activations: Literal["relu"] | None = None,
    input_shape: Sequence[int] | None = None,
) -> nn.Module:
    """A copy of the model whose constrained weights are plain parameters: same outputs, nothing left to build.

    What runs the model then needs none of the linear algebra behind the constraints: this is the form to export to
    ONNX, to quantize, or to serve where even the check of the eval cache is too much. The copy is in eval mode.
    Training it further would leave the constraint.

    Args:
        model: any module; it is left as it is.
        activations: "relu" for verifiers, which read affine maps and ReLU only: MaxMin, GroupSort(2), Abs, HouseHolder
            and NActivation are written so, centering becomes part of the bias before
            it. Outputs agree up to rounding.
        input_shape: of one sample, where the channels of an activation cannot be read off the layers before it.

    >>> from orthogonium.layers import OrthoLinear
    >>> model = torch.nn.Sequential(OrthoLinear(4, 4), torch.nn.ReLU())
    >>> list(freeze(model).state_dict())
    ['0.bias', '0.weight']
    """
    if activations not in (None, "relu"):
        raise ParameterError(f"activations is 'relu' or None: got {activations!r}.")
    copy = deepcopy(model).eval()
    for module in copy.modules():
        if not parametrize.is_parametrized(module):
            continue
        # A copy of a layer of torch shares the class of the original, which is to keep its weight.
        give_own_class(module, parametrize.type_before_parametrizations(module))
        for name, chain in list(module.parametrizations.items()):  # type: ignore[union-attr, operator]
            if isinstance(chain[0], Constraint):
                parametrize.remove_parametrizations(module, name)
    if activations == "relu":
        rewrite(copy, input_shape)
    return copy
