"""How far a computed tensor may be from the result of exact arithmetic.

Note [Rounding along the walk] Each tensor of a network carries bounds `a + b‖x‖` of two things, for an input x: its
norm (the norm at 0, and the Lipschitz constant times ‖x‖), and the norm of its error. An operation passes errors on
by its Lipschitz constant and adds its own:

- *proved*: `κ·u` times the norms it reads and writes, u the unit roundoff of the arithmetic in use. For sums of k
  products κ is `γ_k/u = k/(1 − ku)` times the norm of the absolute values of the matrix, which holds for every order of
  summation, blocked or fused; for elementary functions it is a small number of units in the last place;
- *floor*: u times the norm it writes, once; for products u is that of their factors, if those are shortened; for sums
  of k numbers √k/4 times that, if larger, of the summands, constants too, whatever is left of them. No rounding
  arithmetic does much better on inputs in general, whatever a measurement at one input, in one batch, says.

Intermediate powers under a root (norms) may underflow: the root is then off by `(k·tiny)^(1/p)` at most, proved and
floor alike. Both are valid only as far as no number can overflow: `LipschitzBound.reach` is the largest norm of an
input for which nothing can.

Assumptions on the arithmetic: each basic operation is within one rounding of the exact result, and elementary functions
(exp, tanh, erf, …) are within `ULPS` units in the last place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

ULPS = 8.0  # of elementary functions


@dataclass(frozen=True)
class Error:
    """Bounds `constant + slope·‖x‖` of an error: one proved for any rounding arithmetic, and its floor."""

    proved: tuple[float, float] = (0.0, 0.0)
    floor: tuple[float, float] = (0.0, 0.0)

    def scaled(self, factor: float) -> Error:
        """The error that is left behind a `factor`-Lipschitz function."""
        return Error(_scaled(self.proved, factor), _scaled(self.floor, factor))

    def plus(self, other: Error) -> Error:
        """A bound of the sum of two errors."""
        return Error(_sum(self.proved, other.proved), _sum(self.floor, other.floor))


def _scaled(line: tuple[float, float], factor: float) -> tuple[float, float]:
    return (line[0] * factor, line[1] * factor) if factor else (0.0, 0.0)


def _sum(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    return a[0] + b[0], a[1] + b[1]


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number."""
    return torch.finfo(dtype).eps / 2


def underflow(dtype: torch.dtype) -> float:
    """The largest error due to underflow. Only float16 is certain to keep subnormal numbers."""
    info = torch.finfo(dtype)
    return info.tiny * (info.eps if dtype == torch.float16 else 1.0)


def product_roundoff(dtype: torch.dtype, device: torch.device, convolution: bool) -> float:
    """Unit roundoff of the factors of products, which devices may shorten: TF32 has 10 bits, bfloat16 has 7.

    A convolution may be computed as a product of matrices.
    """
    unit = unit_roundoff(dtype)
    if dtype != torch.float32:
        return unit
    operators = ("matmul", "conv") if convolution else ("matmul",)
    return max({"tf32": 2.0**-11, "bf16": 2.0**-8}.get(_setting(device, o), unit) for o in operators)


def _setting(device: torch.device, operator: str) -> str:
    """The precision to which torch may shorten the factors of float32 products."""
    if hasattr(torch._C, "_get_fp32_precision_getter"):
        library = "mkldnn" if device.type in ("cpu", "xpu") else "cuda"
        return str(torch._C._get_fp32_precision_getter(library, operator))
    if operator == "conv":
        return "tf32" if device.type == "cuda" and torch.backends.cudnn.allow_tf32 else "ieee"
    return {"highest": "ieee", "high": "tf32", "medium": "bf16"}[torch.get_float32_matmul_precision()]


def sum_growth(terms: float) -> float:
    """By how many roundings a sum of `terms` terms is typically off: errors of blocks add up at random."""
    return max(1.0, math.sqrt(terms) / 4)


def sum_roundoff(terms: int, unit: float, products: float) -> float:
    """Error of a sum of products relative to the sum of moduli: `γ_terms` and the rounding of the factors."""
    own = terms * unit
    factors = (1 + products) ** 2 - 1 if products > unit else 0.0
    return math.inf if own >= 1 else own / (1 - own) * (1 + factors) + factors
