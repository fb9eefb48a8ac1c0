"""Functions called in a forward pass, as modules that do the same: rules are written for modules only."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from orthogonium.conversion.tracing import shape_of

# function or name of a method → module, and the names of the arguments behind the input
_Entry = tuple[Callable[..., nn.Module], tuple[str, ...]]
_MAX = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
_AVG = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
_IGNORED = {"inplace", "training", "_stacklevel", "dtype"}
FUNCTIONS: dict[Any, _Entry] = {
    **{f: (nn.ReLU, ()) for f in (F.relu, F.relu_, torch.relu, torch.relu_, "relu", "relu_")},
    **{f: (nn.Tanh, ()) for f in (F.tanh, torch.tanh, "tanh")},
    **{f: (nn.Sigmoid, ()) for f in (F.sigmoid, torch.sigmoid, "sigmoid")},
    **{f: (nn.Softmax, ("dim",)) for f in (F.softmax, torch.softmax, "softmax")},
    **{f: (nn.LogSoftmax, ("dim",)) for f in (F.log_softmax, torch.log_softmax, "log_softmax")},
    F.leaky_relu: (nn.LeakyReLU, ("negative_slope",)),
    F.elu: (nn.ELU, ("alpha",)),
    F.celu: (nn.CELU, ("alpha",)),
    F.selu: (nn.SELU, ()),
    F.gelu: (nn.GELU, ("approximate",)),
    F.silu: (nn.SiLU, ()),
    F.mish: (nn.Mish, ()),
    F.hardswish: (nn.Hardswish, ()),
    F.relu6: (nn.ReLU6, ()),
    F.softplus: (nn.Softplus, ("beta", "threshold")),
    **{
        F.dropout: (nn.Dropout, ("p",)),
        F.dropout2d: (nn.Dropout2d, ("p",)),
        F.alpha_dropout: (nn.AlphaDropout, ("p",)),
    },
    **{F.max_pool1d: (nn.MaxPool1d, _MAX), F.max_pool2d: (nn.MaxPool2d, _MAX), F.max_pool3d: (nn.MaxPool3d, _MAX)},
    **{F.avg_pool1d: (nn.AvgPool1d, _AVG), F.avg_pool2d: (nn.AvgPool2d, _AVG), F.avg_pool3d: (nn.AvgPool3d, _AVG)},
    F.adaptive_avg_pool1d: (nn.AdaptiveAvgPool1d, ("output_size",)),
    F.adaptive_avg_pool2d: (nn.AdaptiveAvgPool2d, ("output_size",)),
    F.adaptive_avg_pool3d: (nn.AdaptiveAvgPool3d, ("output_size",)),
}
SUMS = {operator.add: 1, torch.add: 1, "add": 1, "add_": 1}
SUMS |= {operator.sub: -1, torch.sub: -1, "sub": -1, "sub_": -1}
CONCATENATIONS = {torch.cat, torch.concat, torch.concatenate}
# They move entries, or read sizes: no distance grows.
MOVEMENT = {
    torch.flatten, torch.reshape, torch.permute, torch.transpose, torch.squeeze, torch.unsqueeze,
    torch.chunk, torch.split,
    getattr, operator.getitem, operator.mul, operator.floordiv, operator.add, operator.sub,
    "view", "reshape", "flatten", "permute", "transpose", "squeeze", "unsqueeze", "contiguous", "size", "dim", "chunk",
    "split", "unflatten", "clone", "to", "float", "double", "detach", "t", "mT",
}  # fmt: skip


_AUGMENTED: dict[Any, Callable[..., Any]] = {
    operator.iadd: operator.add, operator.isub: operator.sub, operator.imul: operator.mul,
    operator.itruediv: operator.truediv, operator.ifloordiv: operator.floordiv, operator.imod: operator.mod,
    operator.ipow: operator.pow,
}  # fmt: skip
_ALIASES = {"axis": "dim", "keepdims": "keepdim", "x": "input", "x1": "input", "a": "input", "x2": "other"}


def pass_by_position(node: fx.Node) -> None:
    """Pass inputs of modules and arguments of the functions above by position, with torch's names instead of numpy's.

    `y += z` becomes `y = y + z`: only its result is read.
    """
    order: tuple[str, ...]
    if node.op == "call_module" and not node.args and "input" in node.kwargs:  # its name in torch's modules
        node.args, node.kwargs = (node.kwargs["input"],), {k: v for k, v in node.kwargs.items() if k != "input"}
    if node.op not in ("call_function", "call_method"):
        return
    node.target = _AUGMENTED.get(node.target, node.target)
    if node.target in FUNCTIONS:
        order = ("input", *FUNCTIONS[node.target][1])
    elif node.target in SUMS:
        order = ("input", "other")
    elif node.target in CONCATENATIONS:
        order = ("tensors", "dim")
    else:
        return
    named = {_ALIASES.get(name, name): value for name, value in node.kwargs.items()}
    args = list(node.args)
    for name in order[len(args) :]:
        if name not in named:
            break
        args.append(named.pop(name))
    node.args, node.kwargs = tuple(args), named


def as_module(node: fx.Node) -> nn.Module | None:
    """The module that does what this call does to its one tensor, if there is one."""
    if node.op not in ("call_function", "call_method") or node.target not in FUNCTIONS:
        return None
    make, names = FUNCTIONS[node.target]
    arguments = {**dict(zip(names, node.args[1:], strict=False)), **node.kwargs}
    arguments = {k: v for k, v in arguments.items() if k not in _IGNORED}
    if any(isinstance(value, fx.Node) for value in arguments.values()) or not arguments.keys() <= set(names):
        return None
    return make(**{k: v for k, v in arguments.items() if v is not None or k == "dim"})


def picks_entries(node: fx.Node) -> bool:
    """Whether it indexes by lists or tensors, which may name an entry more than once, and so expand."""
    if node.target is not operator.getitem:
        return False
    index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    return any(isinstance(i, list | Tensor) or isinstance(i, fx.Node) and shape_of(i) is not None for i in index)


@dataclass(frozen=True)
class _Slot:
    """Where a tensor goes among the arguments of a call: the input, or a buffer of this name."""

    buffer: str | None = None


class NodeCall(nn.Module):
    """A function or method of a node, as a module of the only value among its arguments; others are `constants`."""

    def __init__(self, node: fx.Node, constants: Mapping[fx.Node, Tensor]) -> None:
        super().__init__()
        self.op, self.fn = node.op, node.target
        slots: dict[Any, _Slot] = {}
        for i, (constant, value) in enumerate(constants.items()):
            self.register_buffer(f"constant{i}", value, persistent=False)
            slots[constant] = _Slot(f"constant{i}")

        def slot(value: Any) -> Any:
            return slots.get(value, _Slot()) if isinstance(value, fx.Node) else value

        arguments: Any = (node.args, node.kwargs)
        self.rest, self.keywords = fx.node.map_aggregate(arguments, slot)

    def forward(self, x: Tensor) -> Any:
        """What the function of the node makes of `x`."""

        def fill(value: Any) -> Any:
            if not isinstance(value, _Slot):
                return value
            return x if value.buffer is None else getattr(self, value.buffer)

        arguments, keywords = fx.node.map_aggregate((self.rest, self.keywords), fill)
        if self.op == "call_method":
            return getattr(arguments[0], str(self.fn))(*arguments[1:], **keywords)
        fn: Callable[..., Any] = self.fn  # type: ignore[assignment]
        return fn(*arguments, **keywords)
