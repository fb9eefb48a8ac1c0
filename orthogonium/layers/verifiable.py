"""Plain networks of affine maps and ReLU: how `freeze(model, activations="relu")` rewrites a frozen network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from orthogonium.errors import ExportError
from orthogonium.layers.activations import (
    Abs,
    FullSort,
    GroupSort,
    HouseHolder,
    HouseHolder_Order_2,
    MaxMin,
    NActivation,
    SoftHuber,
)
from orthogonium.layers.affine_relu import affine_relu
from orthogonium.layers.as_written import departure, replaced_methods
from orthogonium.layers.batch_statistics import per_channel
from orthogonium.layers.normalization import BatchCentering
from orthogonium.layers.wrappers import UNTRACEABLE, is_hooked

_REWRITTEN = (MaxMin, GroupSort, Abs, HouseHolder, NActivation)
_REFUSED = (FullSort, HouseHolder_Order_2, SoftHuber)
_WEIGHTED = (nn.Linear, nn.modules.conv._ConvNd)


class Shift(nn.Module):
    """`x + b`, a constant for each channel on axis 1."""

    bias: Tensor

    def __init__(self, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        return x + per_channel(self.bias, x)


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return m.__module__.startswith("orthogonium.layers") or super().is_leaf_module(m, module_qualified_name)


def _graph(model: nn.Module) -> fx.Graph | None:
    try:
        return _Tracer().trace(model)
    except UNTRACEABLE:
        return None


def rewrite(model: nn.Module, input_shape: Sequence[int] | None) -> None:
    """Replace activations by affine maps and ReLU, and centering by a bias, in place."""
    refused = [name for name, m in model.named_modules() if isinstance(m, _REFUSED)]
    refused += [n for n, m in model.named_modules() if isinstance(m, GroupSort) and m.group_size != 2]
    if refused:
        raise ExportError(
            "activations='relu' can write MaxMin, GroupSort(2), Abs, HouseHolder and NActivation: "
            f"{', '.join(refused)} sort more than pairs or are curved. Train with one of these, or freeze without "
            "activations='relu'."
        )
    for name, module in model.named_modules():
        reason = departure(module, "guarantee") if isinstance(module, (*_REWRITTEN, BatchCentering)) else None
        if reason is not None:
            raise ExportError(f"activations='relu' writes {name or 'the model'} as its class states it. But {reason}")
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    generator = torch.Generator().manual_seed(0)
    sample = None if input_shape is None else torch.randn(2, *input_shape, generator=generator).to(like)
    expected = None if sample is None else _output(model, sample)
    graph = _graph(model)
    _fold_centering(model, graph)
    channels = _channels_in_graph(model, graph) if sample is None else _channels_in_call(model, sample)
    for name, module in list(model.named_modules()):
        if not isinstance(module, _REWRITTEN):
            continue
        if module not in channels:
            raise ExportError(
                f"activations='relu' writes {name or 'the model'} as matrices on its channels, whose number cannot be "
                "read off the layers before it. Pass input_shape, the shape of one sample."
            )
        new = affine_relu(module, channels[module], like)
        assert new is not None
        _replace(model, module, new)
    if sample is not None and expected is not None:
        _compare(_output(model, sample), expected)


@torch.no_grad()
def _output(model: nn.Module, x: Tensor) -> Tensor | None:
    y = model(x)
    return y if isinstance(y, Tensor) and y.numel() else None


def _compare(found: Tensor | None, expected: Tensor) -> None:
    """Check on one batch that the network does what it did before."""
    off = float("nan") if found is None else float((found - expected).abs().max())
    # Allow for rounding, to which each layer adds.
    if not off <= torch.finfo(expected.dtype).eps ** 0.5 * max(1.0, float(expected.abs().max())):
        raise ExportError(
            f"activations='relu' would change the outputs by {off:.2g}: the network uses its activations or layers in "
            "a way that cannot be rewritten. Freeze it without activations='relu'."
        )


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Replace a module wherever it occurs."""
    for parent in list(model.modules()):
        for key, child in list(parent._modules.items()):
            if child is old:
                setattr(parent, key, new)


# ── centering ──


def _fold_centering(model: nn.Module, graph: fx.Graph | None) -> None:
    nodes = [] if graph is None else [node for node in graph.nodes if node.op == "call_module"]
    calls: dict[str, int] = {}
    for node in nodes:
        calls[str(node.target)] = calls.get(str(node.target), 0) + 1
    # Modules may also occur inside others that the graph does not look into.
    standing = [child for parent in model.modules() for child in parent.children()]
    read = {str(node.target) for node in (() if graph is None else graph.nodes) if node.op == "get_attr"}
    before: dict[nn.Module, Any] = {}
    for node in nodes:
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node) or source.op != "call_module" or len(source.users) != 1:
            continue
        layer, follower = (model.get_submodule(str(n.target)) for n in (source, node))
        once = calls[str(source.target)] == calls[str(node.target)] == 1
        alone = all(standing.count(m) == 1 for m in (layer, follower)) and f"{source.target}.bias" not in read
        if once and alone and isinstance(layer, _WEIGHTED) and _is_as_torch_has_it(layer):
            before[follower] = layer
    for module in list(model.modules()):
        if isinstance(module, BatchCentering):
            _fold_one(model, module, before.get(module))


def _is_as_torch_has_it(layer: nn.Module) -> bool:
    """Whether the bias of the layer is added last: no hook and no foreign method comes after it."""
    kinds = type(layer).__mro__[: type(layer).__mro__.index(nn.Module)]
    own = all(kind.__module__.startswith(("torch.nn.", "orthogonium.")) for kind in kinds)
    return own and not is_hooked(layer) and not replaced_methods(layer)


@torch.no_grad()
def _fold_one(model: nn.Module, centering: BatchCentering, layer: Any) -> None:
    shift = -centering.running_mean if centering.bias is None else centering.bias.detach() - centering.running_mean
    if layer is None or isinstance(layer, nn.Linear):  # whose features may be on another axis
        _replace(model, centering, Shift(shift))
        return
    shift = shift.to(layer.weight)
    layer.bias = nn.Parameter(shift if layer.bias is None else layer.bias + shift)
    _replace(model, centering, nn.Identity())


# ── numbers of channels ──


def _channels_in_graph(model: nn.Module, graph: fx.Graph | None) -> dict[nn.Module, int]:
    """Number of channels of each activation, read off the layers before it."""
    known: dict[fx.Node, int] = {}
    found: dict[nn.Module, int] = {}
    for node in () if graph is None else graph.nodes:
        module = model.get_submodule(str(node.target)) if node.op == "call_module" else None
        inputs = [known[n] for n in node.all_input_nodes if n in known]
        if isinstance(module, _REWRITTEN) and inputs:
            found[module] = inputs[0]
        own = getattr(module, "out_features", getattr(module, "out_channels", None))
        if isinstance(own, int):
            known[node] = own
        elif inputs and _keeps_channels(module, node, inputs):
            known[node] = inputs[0]
    return found


def _keeps_channels(module: nn.Module | None, node: fx.Node, inputs: list[int]) -> bool:
    kept = (*_REWRITTEN, BatchCentering, nn.ReLU, nn.Identity, nn.Dropout, nn.modules.pooling._MaxPoolNd)
    if module is not None:
        return isinstance(module, (*kept, nn.modules.batchnorm._BatchNorm)) or "Pool" in type(module).__name__
    return len(set(inputs)) == 1 and getattr(node.target, "__name__", "") in ("add", "sub", "iadd")


def _channels_in_call(model: nn.Module, sample: Tensor) -> dict[nn.Module, int]:
    """Number of channels of each activation, observed in a call."""
    found: dict[nn.Module, int] = {}

    def note(module: Any, inputs: tuple[Any, ...]) -> None:
        found[module] = inputs[0].shape[getattr(module, "axis", 1)]

    handles = [m.register_forward_pre_hook(note) for m in model.modules() if isinstance(m, _REWRITTEN)]
    with torch.no_grad():
        model(sample)
    for handle in handles:
        handle.remove()
    return found
