"""Activations allowed inside a block: elementwise, with all secant slopes in [0, 1].

Note [Slopes]
The proofs of SLL, CPL and Sandwich write the difference of two activations as a diagonal matrix D of secant slopes,
`σ(u) − σ(v) = D(u − v)`, and need `0 ⪯ D ⪯ I`. A slope of −1 (abs) or above 1 (GELU) breaks them, as do activations
that mix channels (MaxMin), whose D is not diagonal: such blocks are not 1-Lipschitz.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from orthogonium.errors import ParameterError

Activation = str | nn.Module | type[nn.Module]

_Check = Callable[[Any], bool]


def _always(_: Any) -> bool:
    return True


# module → (name, condition on its arguments in words, the condition)
_ALLOWED: dict[type[nn.Module], tuple[str, str, _Check]] = {
    nn.ReLU: ("relu", "", _always),
    nn.LeakyReLU: ("leaky_relu", "0 ≤ negative_slope ≤ 1", lambda a: 0 <= a.negative_slope <= 1),
    nn.Tanh: ("tanh", "", _always),
    # Above the threshold torch returns its input: a jump of log(1 + e^-threshold)/β, below rounding from 20 on.
    nn.Softplus: ("softplus", "beta > 0 and threshold ≥ 20", lambda a: a.beta > 0 and a.threshold >= 20),
    nn.ELU: ("elu", "0 ≤ alpha ≤ 1", lambda a: 0 <= a.alpha <= 1),
    nn.CELU: ("celu", "alpha > 0", lambda a: a.alpha > 0),
    nn.Sigmoid: ("sigmoid", "", _always),
    nn.LogSigmoid: ("logsigmoid", "", _always),
    nn.Softsign: ("softsign", "", _always),
    nn.Tanhshrink: ("tanhshrink", "", _always),
    nn.Softshrink: ("softshrink", "lambd ≥ 0", lambda a: a.lambd >= 0),
    nn.Hardtanh: ("hardtanh", "", _always),
    nn.ReLU6: ("relu6", "", _always),
    nn.Hardsigmoid: ("hardsigmoid", "", _always),
    nn.Identity: ("identity", "", _always),
}
_BY_NAME = {name: kind for kind, (name, _, _) in _ALLOWED.items()}

_MIXES = "it mixes channels, so that it has no slope for each entry"
_NEGATIVE = "its slope is −1 for negative inputs"
# lower-case class name without underscores → reason
_REFUSED = {
    "abs": _NEGATIVE,
    "gelu": "its slope lies between −0.13 and 1.13",
    "silu": "its slope lies between −0.10 and 1.10",
    "mish": "its slope lies between −0.11 and 1.09",
    "hardswish": "its slope lies between −0.5 and 1.5",
    "selu": "its slope reaches 1.76",
    "prelu": "its slope is learned and may leave [0, 1] (LeakyReLU has a fixed one)",
    "rrelu": "its slope is random, so that two inputs do not meet the same function",
    "maxmin": _MIXES,
    "groupsort": _MIXES,
    "householder": _MIXES,
    "householderorder2": _MIXES,
    "softmax": _MIXES,
    "logsoftmax": _MIXES,
    "glu": _MIXES,
    "softhuber": "its slope is negative for negative inputs",
    "hardshrink": "it jumps",
    "threshold": "it jumps unless value = threshold",
}


def bounded_slopes(activation: Activation, owner: str) -> nn.Module:
    """The activation as a module, if its slopes lie in [0, 1] (Note [Slopes]); `ParameterError` with the reason if not.

    >>> bounded_slopes("relu", "block")
    ReLU()
    >>> bounded_slopes(torch.nn.GELU(), "block")
    Traceback (most recent call last):
    ...
    orthogonium.errors.ParameterError: block: GELU is not allowed as an inner activation: its slope lies between ...
    """
    if isinstance(activation, str):
        kind = _BY_NAME.get(activation.lower())
        if kind is None:
            raise _refusal(activation, owner)
        return kind()
    if isinstance(activation, type) and issubclass(activation, nn.Module):
        if activation not in _ALLOWED:
            raise _refusal(activation.__name__, owner)
        return activation()
    if type(activation) not in _ALLOWED:
        raise _refusal(type(activation).__name__, owner)
    assert isinstance(activation, nn.Module)
    _, rule, holds = _ALLOWED[type(activation)]
    if not holds(activation):
        raise ParameterError(f"{owner}: {activation} leaves slopes in [0, 1], the proof of the block; needs {rule}.")
    return activation


def slopes_are_bounded(activation: nn.Module) -> bool:
    """Whether `bounded_slopes` accepts this module."""
    return type(activation) in _ALLOWED and _ALLOWED[type(activation)][2](activation)


def softplus_jumps(threshold: float, dtype: torch.dtype) -> bool:
    """Whether Softplus jumps by more than rounding: above its threshold torch returns the input.

    The jump is `log(1 + e^-threshold)/β`, at `threshold/β`.
    """
    return not (threshold > 0 and math.log1p(math.exp(-threshold)) < torch.finfo(dtype).eps / 8 * threshold)


def is_homogeneous(activation: nn.Module) -> bool:
    """Whether `σ(c·x) = c·σ(x)` for every `c ≥ 0`, so positive scalings commute with it."""
    return isinstance(activation, (nn.ReLU, nn.LeakyReLU, nn.Identity))


def _refusal(name: str, owner: str) -> ParameterError:
    reason = _REFUSED.get(name.lower().replace("_", ""), "nothing is known about its slopes")
    return ParameterError(
        f"{owner}: {name} is not allowed as an inner activation: {reason}, while the block is 1-Lipschitz only for "
        f"elementwise slopes in [0, 1]. Use one of {', '.join(sorted(_BY_NAME))}, or the torch module of that name."
    )
