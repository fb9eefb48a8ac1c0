"""Networks whose forward pass cannot be traced: their modules are replaced one by one, using the shapes of one call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from orthogonium.certification.bound import kind_of_input
from orthogonium.conversion.constrained import Settings, constrained, is_constrained
from orthogonium.conversion.modules import BATCH_NORM, Place, replace, stays
from orthogonium.conversion.result import Change, Refusal, describe
from orthogonium.errors import OrthogoniumError
from orthogonium.layers.normalization import BatchCentering

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential, nn.ParameterList, nn.ParameterDict)  # without anything
Shapes = dict[nn.Module, tuple[tuple[int, ...], tuple[int, ...]]]


def _leaves(model: nn.Module) -> dict[str, nn.Module]:
    """Modules without submodules other than their own parametrizations."""
    inside = {part for m in model.modules() if parametrize.is_parametrized(m) for part in _parametrizations(m)}
    return {
        name: m
        for name, m in model.named_modules()
        if m not in inside and all(child in inside for child in m.children())
    }


def _parametrizations(module: nn.Module) -> Iterable[nn.Module]:
    held: Any = module.parametrizations
    parts: Iterable[nn.Module] = held.modules()
    return parts


def _shapes(model: nn.Module, shape: tuple[int, ...]) -> Shapes:
    """Input and output shapes of every module without submodules that one call reaches."""
    seen: Shapes = {}

    def note(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if inputs and isinstance(inputs[0], Tensor) and isinstance(output, Tensor):
            seen.setdefault(module, (tuple(inputs[0].shape), tuple(output.shape)))

    handles = [m.register_forward_hook(note) for m in _leaves(model).values()]
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
    seen = _shapes(model, shape)
    for name, module in _leaves(model).items():
        if module not in seen and not (isinstance(module, _CONTAINERS) or stays(module)):
            reason = (
                "A call with zeros does not meet it between one tensor and another, so that it stays as it was. Leave "
                "it out, or convert the parts of the network by themselves."
            )
            refused.append(Refusal(name or "(model)", describe(module), reason))
    for module, (before, after) in seen.items():
        name = next(name for name, m in model.named_modules() if m is module)
        try:
            new, text = _replacement(module, before, after, settings)
        except OrthogoniumError as error:
            refused.append(Refusal(name, describe(module), str(error)))
            continue
        if new is not None:
            changes.append(Change(name, describe(module), describe(new), text))
            for parent in list(model.modules()):  # wherever the module is shared
                for key, child in list(parent._modules.items()):
                    if child is module:
                        setattr(parent, key, new)
    return changes, refused


def _replacement(
    module: nn.Module, before: tuple[int, ...], after: tuple[int, ...], settings: Settings
) -> tuple[nn.Module | None, str]:
    if is_constrained(module):
        return None, ""
    if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
        made = constrained(module, settings, None, (before[2:], after[2:]))
        return made.layer, made.note
    if isinstance(module, BATCH_NORM):
        return BatchCentering(module.num_features, module.momentum), ""
    result = replace(module, Place(before[1:]), settings.activation)
    return result.module, result.note
