"""Functions with a constant of their own: activations, softmax, cumulated sums, dropout and BatchNorm in eval."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from orthogonium.certification.rule import NoBound, Rule, one_operand
from orthogonium.certification.tracking import Call
from orthogonium.certification.values import Value


def scaled(factor: float | Callable[[Call], float]) -> Rule:
    """A function of one operand with this constant."""

    def rule(call: Call) -> Value:
        x = one_operand(call)
        return x.value.scaled(factor if isinstance(factor, float) else factor(call))

    return rule


def _slopes(call: Call, position: int, name: str, default: float) -> float:
    slope = call.argument(position, name, default)
    steepest = float(slope.detach().abs().max()) if isinstance(slope, Tensor) else abs(float(slope))
    return max(steepest, 1.0)  # in this order NaN stays NaN


def _softplus(call: Call) -> float:
    beta, threshold = call.argument(1, "beta", 1.0), call.argument(2, "threshold", 20.0)
    if beta <= 0 or threshold < 20:
        raise NoBound("Softplus jumps at a threshold below 20.", "Use the default threshold.")
    return 1.0


def _celu(call: Call) -> float:
    if not call.argument(1, "alpha", 1.0) > 0:
        raise NoBound("CELU with alpha < 0 grows exponentially.", "Use alpha > 0.")
    return 1.0


def _dropout(call: Call) -> float:
    if call.argument(2, "training", True):
        raise NoBound("Dropout in training is another function at each call.", "Call model.eval() first.")
    return 1.0


def _power(call: Call) -> float:
    exponent = call.argument(1, "exponent")
    if isinstance(exponent, (int, float)) and exponent == 1:
        return 1.0
    raise NoBound("Powers are not Lipschitz.", "Use an activation with bounded slopes.")


def _entries(call: Call) -> int:
    """Number of entries along the axis the function works on."""
    dim = call.argument(1, "dim")
    if dim is None or dim % call.output.dim() == 0:
        raise NoBound("It combines the samples of the batch, or does not say which axis.", "Name another axis by dim=.")
    return call.output.shape[dim]


def _softmax(call: Call) -> float:
    return 0.5 if _entries(call) else 1.0


def _log_softmax(call: Call) -> float:
    return math.sqrt(_entries(call))


def _cumsum(call: Call) -> float:
    return 1 / (2 * math.sin(math.pi / (4 * _entries(call) + 2)))


def batch_norm(call: Call) -> Value:
    """In eval: max |γ|/√(Var + ε)."""
    if call.func is not torch.nn.functional.batch_norm:
        raise NoBound("Only torch.nn.functional.batch_norm is known.", "Use nn.BatchNorm in eval, or BatchCentering.")
    if call.argument(5, "training", False):
        raise NoBound(
            "BatchNorm in training divides by the deviation of the batch: no bound.",
            "Call model.eval(), or use BatchCentering.",
        )
    variance, gamma = call.argument(2, "running_var"), call.argument(3, "weight")
    scale = (variance.detach().double() + call.argument(7, "eps", 1e-5)).rsqrt()
    scale = scale if gamma is None else scale * gamma.detach().double().abs()
    return call.args[0].value.scaled(float(scale.max()) * (1 + 1e-12))


_PHI = 0.5 * (1 + math.erf(1.0)) + math.sqrt(2) * math.exp(-1.0) / math.sqrt(2 * math.pi)  # GELU is steepest at √2
ONE = scaled(1.0)
RULES: dict[str, Rule] = {
    **dict.fromkeys("contiguous clone detach to float double half bfloat16 type type_as".split(), ONE),
    **dict.fromkeys("cpu cuda data real positive pos".split(), ONE),
    **dict.fromkeys("relu relu6 tanh logsigmoid log_sigmoid softsign tanhshrink hardtanh softshrink".split(), ONE),
    **dict.fromkeys("abs neg sin cos atan arctan asinh arcsinh clamp clamp_min clamp_max".split(), ONE),
    "erf": scaled(2 / math.sqrt(math.pi)),
    "leaky_relu": scaled(lambda c: _slopes(c, 1, "negative_slope", 0.01)),
    "prelu": scaled(lambda c: _slopes(c, 1, "weight", 0.25)),
    "elu": scaled(lambda c: _slopes(c, 1, "alpha", 1.0)),
    "celu": scaled(_celu),
    "softplus": scaled(_softplus),
    "sigmoid": scaled(0.25),
    "hardsigmoid": scaled(0.16666668),  # torch multiplies by 1/6 in float32
    "gelu": scaled(lambda c: 1.128994 if c.argument(1, "approximate", "none") == "tanh" else _PHI * (1 + 1e-15)),
    "silu": scaled(1.0998396),
    "mish": scaled(1.0884983),
    "selu": scaled(1.7580994),
    "hardswish": scaled(1.5),
    "softmax": scaled(_softmax),
    "log_softmax": scaled(_log_softmax),
    "cumsum": scaled(_cumsum),
    "pow": scaled(_power),
    **dict.fromkeys("dropout dropout1d dropout2d dropout3d alpha_dropout feature_dropout".split(), scaled(_dropout)),
    "batch_norm": batch_norm,
}
