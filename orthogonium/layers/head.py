"""Which kind of head a classifier ends in: this decides how margins become certified radii.

Note [The layer that speaks last]
What a model returns is read off its forward pass, traced symbolically (`torch.fx`) without an input: the names and the
order of its layers say nothing. On the way from the output back to the head there may be other modules, whose forward
is traced in turn, and modules that keep each logit 1-Lipschitz; anything else (a scaled output, an in-place write, a
hook) makes the head unknown, as does a forward pass that cannot be traced, or that ends in different layers in training
and in evaluation. The weight the head applies is measured, constrained or not.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import fx, nn

from orthogonium.layers.linear import OrthoLinear, SpectralLinear, UnitNormLinear
from orthogonium.layers.wrappers import UNTRACEABLE, is_hooked, unwrapped

_TOLERANCE = 1e-4  # of the norm of a weight, for rounding
_HEADS = (OrthoLinear, SpectralLinear, UnitNormLinear)
# These may follow the head: no logit moves further than before, and dropout is off when certificates are made.
_TRANSPARENT = (nn.Identity, nn.ReLU, nn.Flatten, nn.Dropout)


class _Shallow(fx.Tracer):
    """Traces one forward pass; the modules it calls are leaves."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def _returned(module: nn.Module) -> nn.Module | None:
    """The module whose output `module` returns; None if it does not return the untouched output of one module."""
    try:
        graph = _Shallow().trace(module)
    except UNTRACEABLE:
        return None
    (output,) = (node for node in graph.nodes if node.op == "output")
    node = output.args[0]
    while isinstance(node, fx.Node) and node.op == "call_module" and len(node.users) == 1:
        called = module.get_submodule(str(node.target))
        if type(called) not in _TRANSPARENT or _hooked(called):
            return called
        node = node.args[0]
    return None


def _hooked(module: nn.Module) -> bool:
    return is_hooked(module) or "forward" in vars(module)


def _last_layer(model: nn.Module) -> nn.Linear | None:
    """The dense layer with a known constraint whose output the model returns. Note [The layer that speaks last]."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        in_evaluation = _last_layer_in(model, training=False)
        return in_evaluation if _last_layer_in(model, training=True) is in_evaluation else None
    finally:
        for module, mode in modes:
            module.training = mode


def _last_layer_in(model: nn.Module, training: bool) -> nn.Linear | None:
    for part in model.modules():
        part.training = training  # `train()` may do more than set the mode
    module: nn.Module | None = unwrapped(model)
    while module is not None and not _hooked(module):
        if isinstance(module, _HEADS):
            own = next(head for head in _HEADS if isinstance(module, head))
            return module if type(module).forward is own.forward else None
        returned = _returned(module)
        module = None if returned is None else unwrapped(returned)
    return None


@torch.no_grad()
def _norm(head: nn.Linear) -> float:
    """Norm of the weight the head applies; that of its largest row if it promises no more than that."""
    weight = head.weight.double()
    if not weight.isfinite().all():
        return float("nan")
    rows = isinstance(head, UnitNormLinear)
    return float(weight.norm(dim=1).max() if rows else torch.linalg.matrix_norm(weight, ord=2))


def check_last_linear_layer_type(model: nn.Module) -> Literal["global", "classwise", "unknown"]:
    """Type of the head of `model`, to pass to losses and certificates as `last_layer_type`.

    The head is the layer whose output the model returns, however deeply it is nested in containers, or in wrappers such
    as DDP or `torch.compile`.

    Returns:
        "global" if the whole matrix has norm ≤ 1 (OrthoLinear, SpectralLinear), "classwise" if each row does
        (UnitNormLinear), "unknown" for anything else.

    >>> from torch import nn
    >>> from orthogonium.layers.head import check_last_linear_layer_type
    >>> from orthogonium.layers.linear import OrthoLinear, UnitNormLinear
    >>> body = nn.Sequential(nn.Flatten(), OrthoLinear(12, 8))
    >>> check_last_linear_layer_type(nn.Sequential(body, nn.Sequential(UnitNormLinear(8, 10))))
    'classwise'
    """
    head = _last_layer(model)
    if head is None or not _norm(head) <= 1 + _TOLERANCE:
        return "unknown"
    return "classwise" if isinstance(head, UnitNormLinear) else "global"
