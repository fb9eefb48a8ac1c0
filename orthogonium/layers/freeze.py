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

    Running the copy needs none of the linear algebra behind the constraints: this is the form to export to ONNX, to
    quantize, or to serve when even the check of the eval cache costs too much. The copy is in eval mode. Training it
    further would violate the constraint.

    Args:
        model: any module; it is not modified.
        activations: "relu" for verifiers, which only read affine maps and ReLU: MaxMin, GroupSort(2), Abs, HouseHolder
            and NActivation are rewritten in these terms, and centering becomes part of the preceding bias. Outputs
            agree up to rounding.
        input_shape: shape of one sample, needed if the channels of an activation cannot be read off preceding layers.

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
        # A copy of a torch layer shares the class of the original, which must keep its weight.
        give_own_class(module, parametrize.type_before_parametrizations(module))
        for name, chain in list(module.parametrizations.items()):  # type: ignore[union-attr, operator]
            if isinstance(chain[0], Constraint):
                parametrize.remove_parametrizations(module, name)
    if activations == "relu":
        rewrite(copy, input_shape)
    return copy
