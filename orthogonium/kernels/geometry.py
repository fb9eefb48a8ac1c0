"""The geometry of a convolution, and the rule that tells whether an orthogonal one of that geometry exists.

Note [Existence]
Per axis let `e = min(s / gcd(s, d), k)` be the effective stride (stride s, dilation d, kernel size k); channels are
per group. Orthonormal *rows* are possible iff `out ≤ in·∏e`: there are `∏e` taps that one output shares with no shifted
copy of itself. Otherwise orthonormal *columns* are needed; every input must then be seen by some window, which requires
`gcd(s, d) = 1` and `k ≥ s` on every axis, i.e. `e = s`.

Note [Construction]
`K = RKO ⊛ BCOP`: a stride-1 orthogonal kernel of size `k − e + 1`, then a reshaped, strided orthogonal matrix of size
e. Between them are `in` channels in the row case, `⌊out / ∏e⌋ ≥ in` in the column case. If `k = e`, the stride-1 kernel
has one tap, which would add nothing to the matrix: RKO alone, whose raw matrix is as large as the weight. Only if
`e = 1` and in = out is that one tap BCOP's: a product of two reflections, with as many numbers, which is always a
rotation and takes 0.6 times as long to build for 256 channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from orthogonium.annotations import as_int
from orthogonium.errors import GeometryError

Size = int | Sequence[int]


def to_tuple(value: Size, dims: int, name: str, minimum: int = 1) -> tuple[int, ...]:
    """A size for each axis."""
    sizes = tuple(map(as_int, value)) if isinstance(value, Sequence) else (as_int(value),) * dims
    if len(sizes) == 1 and dims > 1:
        sizes = sizes * dims
    if len(sizes) != dims or not all(isinstance(v, int) and v >= minimum for v in sizes):
        raise GeometryError(f"{name} must be an integer of at least {minimum}, or {dims} of them, got {value!r}.")
    return sizes


@dataclass(frozen=True)
class ConvGeometry:
    """Sizes of a convolution, as tuples with one entry for each axis.

    >>> ConvGeometry.of(2, 64, 128, kernel_size=3, stride=2).effective_stride
    (2, 2)
    """

    in_channels: int
    out_channels: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    # Read at every call of a layer, also while compilers trace, so not computed on demand.
    dims: int = field(init=False, repr=False, compare=False)  # number of spatial axes
    group_in: int = field(init=False, repr=False, compare=False)  # channels of a group
    group_out: int = field(init=False, repr=False, compare=False)
    weight_shape: tuple[int, ...] = field(init=False, repr=False, compare=False)  # (out, in/groups, *kernel_size)
    effective_stride: tuple[int, ...] = field(init=False, repr=False, compare=False)  # e of Note [Existence]
    extent: tuple[int, ...] = field(init=False, repr=False, compare=False)  # pixels from the first to the last tap
    is_strided: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        axes = list(zip(self.kernel_size, self.stride, self.dilation, strict=True))
        group_in = self.in_channels // self.groups
        derived = {
            "dims": len(axes),
            "group_in": group_in,
            "group_out": self.out_channels // self.groups,
            "weight_shape": (self.out_channels, group_in, *self.kernel_size),
            "effective_stride": tuple(min(s // math.gcd(s, d), k) for k, s, d in axes),
            "extent": tuple(d * (k - 1) + 1 for k, _, d in axes),
            "is_strided": any(s > 1 for s in self.stride),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def then(self, outer: ConvGeometry) -> ConvGeometry:
        """The geometry of `outer ∘ inner` as one convolution, where `self` is the inner one and has stride 1."""
        size = tuple(k + n - 1 for k, n in zip(self.kernel_size, outer.kernel_size, strict=True))
        return replace(outer, in_channels=self.in_channels, kernel_size=size)

    def adjoint(self) -> ConvGeometry:
        """The geometry of the adjoint, for stride 1."""
        return replace(self, in_channels=self.out_channels, out_channels=self.in_channels)

    @classmethod
    def of(
        cls,
        dims: int,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        dilation: Size = 1,
        groups: int = 1,
    ) -> ConvGeometry:
        """Validate the sizes and make them tuples."""
        in_channels, out_channels, groups = map(as_int, (in_channels, out_channels, groups))
        if not isinstance(groups, int) or groups < 1:
            raise GeometryError(f"groups must be an integer of at least 1, got {groups!r}.")
        for name, channels in (("in_channels", in_channels), ("out_channels", out_channels)):
            if not isinstance(channels, int) or channels < 1 or channels % groups:
                raise GeometryError(
                    f"{name} must be a positive multiple of groups, got {channels!r} with groups={groups}."
                )
        return cls(
            in_channels,
            out_channels,
            to_tuple(kernel_size, dims, "kernel_size"),
            to_tuple(stride, dims, "stride"),
            to_tuple(dilation, dims, "dilation"),
            groups,
        )


@dataclass(frozen=True)
class Construction:
    """How an orthogonal kernel of a geometry is built; sizes are per group."""

    orthonormal: Literal["rows", "columns"]
    method: Literal["bcop", "rko", "rko ⊛ bcop"]
    inner_channels: int
    bcop_size: tuple[int, ...]
    rko_size: tuple[int, ...]


def select_method(geometry: ConvGeometry) -> Construction:
    """The construction an adaptive orthogonal layer of this geometry uses; `GeometryError` if none can exist.

    >>> select_method(ConvGeometry.of(2, 64, 64, kernel_size=3)).method
    'bcop'
    >>> select_method(ConvGeometry.of(2, 64, 128, kernel_size=3, stride=2)).method
    'rko ⊛ bcop'
    >>> select_method(ConvGeometry.of(2, 3, 48, kernel_size=4, stride=4)).method
    'rko'
    >>> select_method(ConvGeometry.of(2, 512, 256, kernel_size=1)).method
    'rko'
    """
    ci, co, e = geometry.group_in, geometry.group_out, geometry.effective_stride
    volume = math.prod(e)
    rows = co <= ci * volume
    if not rows and e != geometry.stride:
        raise GeometryError(
            f"No orthogonal convolution has kernel {geometry.kernel_size}, stride {geometry.stride} and dilation "
            f"{geometry.dilation} for {ci}→{co} channels per group: with more outputs than in·∏e = {ci}·{volume} = "
            f"{ci * volume} (effective stride e = min(s/gcd(s, d), k) = {e}), every input must be seen by a window, "
            f"which needs e = stride. Use at most {ci * volume * geometry.groups} output channels, a kernel at least "
            "as large as the stride, or a dilation coprime to it."
        )
    bcop_size = tuple(k - f + 1 for k, f in zip(geometry.kernel_size, e, strict=True))
    one_tap = set(bcop_size) <= {1}
    method: Literal["bcop", "rko", "rko ⊛ bcop"]
    if one_tap and (volume > 1 or ci != co):
        method = "rko"
    else:
        method = "bcop" if volume == 1 else "rko ⊛ bcop"
    inner = ci if rows or method == "rko" else co // volume
    return Construction("rows" if rows else "columns", method, inner, bcop_size, e)
