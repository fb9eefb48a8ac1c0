"""Networks whose forward pass cannot be traced: their modules are replaced one by one, with the shapes of one call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from orthogonium.certification.bound import kind_of_input
from orthogonium.conversion.constrained import Settings, constrained
from orthogonium.conversion.modules import BATCH_NORM, Place, replace
from orthogonium.conversion.result import Change, Refusal, describe
from orthogonium.errors import OrthogoniumError
from orthogonium.layers.normalization import BatchCentering

Shapes = dict[nn.Module, tuple[tuple[int, ...], tuple[int, ...]]]


def _shapes(model: nn.Module, shape: tuple[int, ...]) -> Shapes:
    """Shapes of input and output of every module without children, in one call."""
    seen: Shapes = {}

    def note(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if inputs and isinstance(inputs[0], Tensor) and isinstance(output, Tensor):
            seen.setdefault(module, (tuple(inputs[0].shape), tuple(output.shape)))

    handles = [m.register_forward_hook(note) for m in model.modules() if next(m.children(), None) is None]
    dtype, device = kind_of_input(model)
    with torch.no_grad():
        model(torch.zeros(2, *shape, dtype=dtype, device=device))
    for handle in handles:
        handle.remove()
    return seen


def convert_modules(model: nn.Module, shape: tuple[int, ...], settings: Settings) -> tuple[list[Change], list[Refusal]]:
    """Replace the modules of a network in place."""
    changes: list[Change] = []
    refused: list[Refusal] = []
    for module, (before, after) in _shapes(model, shape).items():
        name = next(name for name, m in model.named_modules() if m is module)
        try:
            new, text = _replacement(module, before, after, settings)
        except OrthogoniumError as error:
            refused.append(Refusal(name, describe(module), str(error)))
            continue
        if new is not None:
            changes.append(Change(name, describe(module), describe(new), text))
            for parent in list(model.modules()):  # wherever it is shared
                for key, child in list(parent._modules.items()):
                    if child is module:
                        setattr(parent, key, new)
    return changes, refused


def _replacement(
    module: nn.Module, before: tuple[int, ...], after: tuple[int, ...], settings: Settings
) -> tuple[nn.Module | None, str]:
    if type(module).__module__.startswith("orthogonium."):
        return None, ""
    if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
        made = constrained(module, settings, None, (before[2:], after[2:]))
        return made.layer, made.note
    if isinstance(module, BATCH_NORM):
        return BatchCentering(module.num_features, module.momentum), ""
    result = replace(module, Place(before[1:]), settings.activation)
    return result.module, result.note
