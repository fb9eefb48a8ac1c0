"""Constants that chains of modules promise, whatever the optimizer does."""

from __future__ import annotations

import torch
from torch import nn

from orthogonium.layers.as_written import departure, parts
from orthogonium.layers.guarantee import Guarantee
from orthogonium.layers.inversion import Inverse
from orthogonium.layers.residual import IF_FN_IS_1_LIPSCHITZ
from orthogonium.layers.slopes import slopes_are_bounded, softplus_jumps


def promised_constant(module: nn.Module, dtype: torch.dtype = torch.float32) -> float | None:
    """The product of the constants that the parts of a chain promise; None if one of them does not.

    Args:
        module: a chain (`nn.Sequential`, nested to any depth) or a single part of one.
        dtype: data type of its inputs.
    """
    if lapse(module) is not None:
        return None
    stated = stated_constant(module, dtype)
    return None if isinstance(stated, str) else stated


def lapse(module: nn.Module) -> str | None:
    """Why the statements of a module need not hold (Note [As written] of `as_written.py`); None if they do."""
    for part in parts(module):
        reason = departure(part, "guarantee")
        if reason is None and isinstance(part, Inverse):
            reason = departure(part.module, "undo")
        if reason is not None:
            return reason
    return None


def stated_constant(module: nn.Module, dtype: torch.dtype) -> float | str:
    """The constant that a module states for itself, or why it states none."""
    name = type(module).__name__.removeprefix("Parametrized")
    if type(module) is nn.Sequential:
        constant = 1.0
        for child in module:
            own = stated_constant(child, dtype)
            if isinstance(own, str):
                return own
            constant *= own
        return constant
    guarantee = getattr(module, "guarantee", None)
    if guarantee is IF_FN_IS_1_LIPSCHITZ:
        inner = stated_constant(module.fn, dtype) if isinstance(module.fn, nn.Module) else f"fn of {name} is no module"
        return inner if isinstance(inner, str) else 1.0 if inner <= 1 else f"fn of {name} is not 1-Lipschitz"
    if isinstance(guarantee, Guarantee):
        return f"{name} promises a constant for each output by itself" if guarantee.each_output else guarantee.constant
    if isinstance(module, Inverse):
        return f"no number bounds what undoes {type(module.module).__name__.removeprefix('Parametrized')}"
    if isinstance(module, nn.Softplus) and softplus_jumps(module.threshold, dtype):
        return f"{module} jumps at its threshold, which must be larger: 20 for float32, 40 for float64"
    if type(module) in (nn.Flatten, nn.Unflatten) or slopes_are_bounded(module):
        return 1.0
    return f"{name} promises no constant"
