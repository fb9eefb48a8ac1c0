"""Singular values of every layer with weights: all of them where affordable, else only the extremes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from orthogonium.certification import AuditReport
from orthogonium.errors import GeometryError
from orthogonium.spectral import circular_singular_values, geometry_of, jacobian_singular_values, operator_matrix

BUDGET = 2e10  # floating point operations for one layer: a few seconds on one core
_SVD_FLOPS = 10  # times rows · columns · min(rows, columns)
_SHOWN = 128  # number of values kept per spectrum


@dataclass(frozen=True)
class LayerSpectrum:
    """The spectrum of one layer.

    Attributes:
        name: its place in the model.
        type: its class.
        count: number of singular values, None if they were too many to compute.
        values: at most 128 of them, evenly spaced in rank, largest first; (σ_max, σ_min) if there are too many.
        sigma_min: the smallest, NaN if it is not known.
        sigma_max: the largest.
        kind: "exact" (all singular values of the linear layer), "jacobian" (those at the given input, for a block that
            contains its activation), or "bounds" (only the extremes, from the audit).
    """

    name: str
    type: str
    count: int | None
    values: tuple[float, ...]
    sigma_min: float
    sigma_max: float
    kind: str


def layer_spectra(
    model: nn.Module, x: Tensor, audit: AuditReport | None = None, *, budget: float = BUDGET
) -> list[LayerSpectrum]:
    """Spectra of all layers that have weights, in the order in which they are run.

    Args:
        model: in eval mode.
        x: one input (1, …), which determines the sizes, and where to take the Jacobians of non-linear blocks.
        audit: audit of the same model; its σ_min and σ_max are used where all values would cost too much.
        budget: floating point operations for one layer.

    >>> from orthogonium.layers import MaxMin, OrthoLinear
    >>> from orthogonium.report import layer_spectra
    >>> model = torch.nn.Sequential(OrthoLinear(8, 8), MaxMin(), OrthoLinear(8, 2)).eval()
    >>> [(s.name, s.count, round(s.sigma_min, 4)) for s in layer_spectra(model, torch.zeros(1, 8))]
    [('0', 8, 1.0), ('2', 2, 1.0)]
    """
    ends = {} if audit is None else {row.name: (row.sigma_min, row.sigma_max) for row in audit.rows}
    found = []
    for name, layer, inputs, outputs in _layers_met(model, x):
        kind = "exact" if geometry_of(layer) is not None else "jacobian"
        values = _all_values(layer, inputs, outputs, budget)
        label = type(layer).__name__.removeprefix("Parametrized")
        if values is not None:
            found.append(_spectrum(name, label, values, kind))
        elif ends.get(name, (None, None))[1] is not None:
            low, high = ends[name]
            low = math.nan if low is None else low
            found.append(LayerSpectrum(name, label, None, (float(high or 0.0), low), low, float(high or 0.0), "bounds"))
    return found


@torch.no_grad()
def _layers_met(model: nn.Module, x: Tensor) -> list[tuple[str, nn.Module, Tensor, int]]:
    """Name, layer, its input and the size of its output, for the outermost modules that own a weight matrix."""
    met: list[tuple[str, nn.Module, Tensor, int]] = []
    inside: list[nn.Module] = []
    handles = []

    def before(module: nn.Module, args: Any) -> None:
        inside.append(module)

    def after(name: str) -> Any:
        def record(module: nn.Module, args: Any, output: Any) -> None:
            inside.pop()
            if inside or not (args and isinstance(args[0], Tensor) and isinstance(output, Tensor)):
                return
            met.append((name, module, args[0].detach(), output.numel()))

        return record

    for name, module in model.named_modules():
        if _has_weight(module):
            handles.append(module.register_forward_pre_hook(before))
            handles.append(module.register_forward_hook(after(name)))
    try:
        model(x)
    finally:
        for handle in handles:
            handle.remove()
    return met


def _has_weight(module: nn.Module) -> bool:
    """Whether it applies a matrix of its own: constrained weights, or a parameter of two or more dimensions."""
    if isinstance(module, ParametrizationList):  # its originals belong to the layer
        return False
    return is_parametrized(module) or any(w.dim() >= 2 for w in module.parameters(recurse=False))


def _all_values(layer: nn.Module, x: Tensor, outputs: int, budget: float) -> Tensor | None:
    """All singular values, largest first, or None if they cost too much."""
    inputs = x[0].numel()
    dense = _SVD_FLOPS * float(inputs) * outputs * min(inputs, outputs)
    conv = geometry_of(layer)
    if conv is None:
        return jacobian_singular_values(layer, x[:1])[0] if dense <= budget else None
    with torch.no_grad():
        if conv.stride:
            size = tuple(x.shape[2:])
            co, ci = conv.out_channels, conv.in_channels * math.prod(conv.stride)
            if 4 * _SVD_FLOPS * float(math.prod(size)) / math.prod(conv.stride) * co * ci * min(co, ci) <= budget:
                try:
                    return circular_singular_values(layer, size)
                except GeometryError:  # not circular at this size
                    pass
        if dense <= budget:
            return torch.linalg.svdvals(operator_matrix(layer, tuple(x.shape[1:])).double())
    return None


def _spectrum(name: str, label: str, values: Tensor, kind: str) -> LayerSpectrum:
    places = torch.linspace(0, len(values) - 1, min(len(values), _SHOWN)).round().long()
    shown: Sequence[float] = values.detach().cpu()[places].tolist()
    return LayerSpectrum(name, label, len(values), tuple(shown), float(values[-1]), float(values[0]), kind)
