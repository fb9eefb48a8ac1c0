"""Functions that a forward calls, as the modules that do the same: rules are written for modules only."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

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
SUMS = {operator.add: 1, operator.iadd: 1, torch.add: 1, "add": 1, "add_": 1}
SUMS |= {operator.sub: -1, operator.isub: -1, torch.sub: -1, "sub": -1, "sub_": -1}
CONCATENATIONS = {torch.cat, torch.concat, torch.concatenate}
# They move entries, or tell sizes: no distance grows.
MOVEMENT = {
    torch.flatten, torch.reshape, torch.permute, torch.transpose, torch.squeeze, torch.unsqueeze,
    torch.chunk, torch.split,
    getattr, operator.getitem, operator.mul, operator.floordiv, operator.add, operator.sub,
    "view", "reshape", "flatten", "permute", "transpose", "squeeze", "unsqueeze", "contiguous", "size", "dim", "chunk",
    "split", "unflatten", "clone", "to", "float", "double", "detach", "t", "mT",
}  # fmt: skip


def as_module(node: fx.Node) -> nn.Module | None:
    """The module that does what this call does to its one tensor, if there is one."""
    if node.op not in ("call_function", "call_method") or node.target not in FUNCTIONS:
        return None
    make, names = FUNCTIONS[node.target]
    arguments = {**dict(zip(names, node.args[1:], strict=False)), **node.kwargs}
    arguments = {k: v for k, v in arguments.items() if k not in _IGNORED and k != "input"}
    if any(isinstance(value, fx.Node) for value in arguments.values()) or not arguments.keys() <= set(names):
        return None
    return make(**{k: v for k, v in arguments.items() if v is not None or k == "dim"})
