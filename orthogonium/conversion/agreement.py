"""How closely a converted network that kept its weights still agrees with the original."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from orthogonium.certification.bound import kind_of_input
from orthogonium.conversion.functions import as_module
from orthogonium.conversion.result import Change
from orthogonium.conversion.tracing import traced
from orthogonium.errors import ParameterError

_BATCH = 32
_BATCHES = 16
_NUMBERS = 2**22  # in all batches: large images get fewer batches


class Agreement(NamedTuple):
    """Agreement of two networks: see `Conversion`, which has these attributes."""

    cosine: float
    same_class: float | None


@torch.no_grad()
def agreement(before: nn.Module, after: nn.Module, shape: tuple[int, ...], changes: Sequence[Change]) -> Agreement:
    """How closely two networks agree on normal inputs: in their outputs up to a factor, and in their classes.

    It is measured, not derived from the changes. Where a softmax was removed from the end, its inputs are compared, up
    to what a softmax ignores: a constant along its axis.
    """
    before, softmax = _without_softmax(before, changes)
    dtype, device = kind_of_input(before)
    batches = min(max(_NUMBERS // (_BATCH * math.prod(shape)), 1), _BATCHES)
    x = torch.randn(batches, _BATCH, *shape, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    a, b = (_outputs(network, x) for network in (before, after))
    axis = _class_axis(softmax, a)
    same_class = None if axis is None else (a.argmax(axis) == b.argmax(axis)).double().mean().item()
    if softmax is not None:
        a, b = (y - y.mean(axis, keepdim=True) for y in (a, b))
    return Agreement(_cosine(a, b), same_class)


def _outputs(network: nn.Module, batches: Tensor) -> Tensor:
    outputs = [network(x.clone()) for x in batches]  # networks may write into their input
    if not isinstance(outputs[0], Tensor):
        raise ParameterError(
            f"weights='keep' needs a network that returns one tensor, {type(network).__name__} returns "
            f"{type(outputs[0]).__name__}. Wrap it so that it returns its logits."
        )
    return torch.cat([torch.atleast_1d(y) for y in outputs]).double()


def _without_softmax(network: nn.Module, changes: Sequence[Change]) -> tuple[nn.Module, nn.Module | None]:
    """The network without the softmax removed from its end, and that softmax, or None if there was none.

    The logarithm of its output would not do: where the softmax saturates, its input cannot be recovered.
    """
    graph, _ = traced(network)
    assert graph is not None  # otherwise no weight could have been kept
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    last = output.args[0]
    if not isinstance(last, fx.Node):
        return network, None
    is_module = last.op == "call_module"
    name = str(last.target) if is_module else last.name
    module = graph.get_submodule(name) if is_module else as_module(last)
    removed = any(change.name == name and change.after == "Identity()" for change in changes)
    if not removed or not isinstance(module, nn.Softmax | nn.LogSoftmax):
        return network, None
    output.args = (last.all_input_nodes[0],)
    graph.recompile()
    return graph, module


def _class_axis(softmax: Any, outputs: Tensor) -> int | None:
    """The class axis of a softmax, or of what looks like logits; None for other outputs."""
    if softmax is None:
        return 1 if outputs.dim() == 2 and outputs.shape[1] > 1 else None
    if softmax.dim is not None:
        return int(softmax.dim)
    return 0 if outputs.dim() in (1, 3) else 1  # torch's choice if no axis is given


def _cosine(a: Tensor, b: Tensor) -> float:
    """Cosine of the outputs, relative to the mean of the old ones: 1 if and only if b is a positive multiple of a.

    A mean that dwarfs what depends on the input, as the bias of a head may do, would make any two networks look alike.
    The same mean is subtracted from the new outputs, times the factor s for which the varying parts fit best, so a
    different offset counts as an error.
    """
    a, b = (y / y.abs().max().clamp_min(torch.finfo(y.dtype).tiny) for y in (a, b))  # many constants make them small
    mean = a.mean(0)
    u = a - mean
    size = u.square().sum()
    if size == 0:
        return 0.0  # nothing depends on the input
    s = (u * b).sum() / size
    v = b - s * mean
    return float((u * v).sum() / (u.norm() * v.norm()).clamp_min(torch.finfo(u.dtype).tiny))
