"""Lipschitz constants of the values inside a network, and how they combine.

Note [Pieces of one tensor]
A tensor `t` that is cut into disjoint pieces is a *base*. A value `u` computed from its pieces carries a matrix `C`: `u`
consists of blocks `u_j`, and a change `δ` of `t` with pieces `δ_i` changes them by `‖Δu_j‖ ≤ Σ_i C_ji ‖δ_i‖`. Since
`Σ‖δ_i‖² ≤ ‖δ‖²`, the constant of `u` is that of `t` times `‖C‖₂`. So `cat(a, f(b))` of the halves of one tensor has the
constant max(1, L) and not √(1 + L²). The input of the network is a base of one piece and constant 1, where the same
rules are the familiar ones: series multiply, sums add, concatenation is √Σ². A value is *lifted* from its base to the
base of the tensor that was cut when it meets values that know nothing of the pieces.

Note [Rounding of constants]
Constants are float64 numbers; every product, sum or norm that may have been rounded is made larger by 2⁻⁵⁰ of itself (a
norm of a small matrix by 1e-13), which is more than the rounding was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Piece = tuple[int, int]  # from, to along the axis that was cut
WHOLE: Piece = (0, 1)


def _up(x: float) -> float:
    return x * (1 + 2.0**-50)


def _product(a: float, b: float) -> float:
    """`a·b`, rounded up unless it is exact; 0·∞ is ∞: what has no bound keeps none."""
    if math.isinf(a) or math.isinf(b):
        return math.inf
    return a * b if a == 1 or b == 1 else _up(a * b)


@dataclass(frozen=True, eq=False)
class Base:
    """A tensor that is cut into pieces: its value, None for the input of the network."""

    owner: Value | None = None

    @property
    def depth(self) -> int:
        """Number of bases above."""
        return 0 if self.owner is None else self.owner.base.depth + 1


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of the network as a function of the pieces of a base. Note [Pieces of one tensor]."""

    base: Base
    rows: tuple[dict[Piece, float], ...]

    @property
    def norm(self) -> float:
        """`‖C‖₂`."""
        pieces = sorted({piece for row in self.rows for piece in row})
        matrix = np.array([[row.get(piece, 0.0) for piece in pieces] for row in self.rows])
        if np.isinf(matrix).any():
            return math.inf
        if matrix.size == 1:
            return float(matrix[0, 0])
        diagonal = (np.count_nonzero(matrix, axis=0) <= 1).all() and (np.count_nonzero(matrix, axis=1) <= 1).all()
        return float(matrix.max()) if diagonal else float(np.linalg.norm(matrix, 2)) * (1 + 1e-13)

    @property
    def bound(self) -> float:
        """Lipschitz constant with respect to the input of the network."""
        return _product(self.norm, 1.0 if self.base.owner is None else self.base.owner.bound)

    def scaled(self, factor: float) -> Value:
        """The value behind a `factor`-Lipschitz function."""
        if factor == 1:
            return self
        return Value(self.base, tuple({p: _product(c, factor) for p, c in row.items()} for row in self.rows))

    def lifted(self) -> Value:
        """The value as a function of the tensor that was cut."""
        assert self.base.owner is not None
        return self.base.owner.scaled(self.norm)


def network_input() -> Value:
    """The input of a network."""
    return Value(Base(), ({WHOLE: 1.0},))


def _overlap(values: Sequence[Value]) -> bool:
    """Whether pieces overlap without being the same."""
    pieces = sorted({piece for value in values for row in value.rows for piece in row})
    return any(a[1] > b[0] for a, b in zip(pieces[:-1], pieces[1:], strict=True))


def _to_one_base(values: Sequence[Value], gather: bool) -> list[Value]:
    """All values over one base with disjoint pieces. With `gather`, the values of one base may be lifted as one."""
    values = list(values)
    while len({id(v.base) for v in values}) > 1 or _overlap(values):
        deepest = max(values, key=lambda v: v.base.depth).base
        group = [v for v in values if v.base is deepest]
        rest = [v for v in values if v.base is not deepest]
        if deepest.owner is None:
            raise AssertionError("Values of different networks do not meet.")
        if gather and not _overlap(group):
            group = [Value(deepest, tuple(row for v in group for row in v.rows))]
        values = rest + [v.lifted() for v in group]
    return values


def concatenated(values: Sequence[Value]) -> Value:
    """Several values side by side."""
    values = _to_one_base(values, gather=True)
    return Value(values[0].base, tuple(row for value in values for row in value.rows))


def added(values: Sequence[Value]) -> Value:
    """The sum of values."""
    values = _to_one_base(values, gather=False)
    while any(len(v.rows) > 1 for v in values) and values[0].base.owner is not None:
        values = _to_one_base([v.lifted() for v in values], gather=False)
    total: dict[Piece, float] = {}
    for value in values:
        row = value.rows[0] if len(value.rows) == 1 else {WHOLE: value.norm}
        for piece, coefficient in row.items():
            total[piece] = _up(total[piece] + coefficient) if piece in total else coefficient
    return Value(values[0].base, (total,))
