"""Kernels as functions of frequency: K(ω) = Σ_t K_t e^{iω·t}.

Note [Phases]
A window of stride s and dilation d reads the pixels s·i + d·j. Only multiples of g = gcd(s, d) occur, so (s, d) is
(s/g, d/g) on every g-th pixel. With s and d coprime the taps j of one class modulo s read one residue class of pixels:
each class is an input channel of its own, with taps K[ρ + s·t] spaced by d, and its offset is a factor e^{iωc} that
singular values do not see. So the convolution is that of the *phase-stacked* kernel, (co, ci·∏e, ⌈k/e⌉), e = min(s/g,
k), of stride 1, read at the frequencies (d/g)·ω. On the infinite lattice that is every frequency: dilation plays no
role.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from orthogonium.errors import ParameterError
from orthogonium.spectral.geometry import Convolution
from orthogonium.spectral.reductions import Reduction
from orthogonium.spectral.rounding import double, scale_out

_CHUNK = 2**20  # complex numbers held at a time


def phases(conv: Convolution, stride: Sequence[int] | None = None) -> Tensor:
    """The phase-stacked kernel (groups, co/g, ci/g·∏e, *⌈k/e⌉) in float64, Note [Phases]."""
    if not torch.isfinite(conv.weight).all():
        raise ParameterError("The weight has infinite or NaN entries: no bound exists. Look for diverged training.")
    kernel = double(conv.weight).unflatten(0, (conv.groups, -1))
    for axis, (s, d) in enumerate(zip(stride or conv.stride, conv.dilation, strict=True)):
        at, k = 3 + axis, kernel.shape[3 + axis]
        e = min(s // math.gcd(s, d), k)
        if e > 1:
            fill = (0, 0) * (kernel.ndim - 1 - at) + (0, -k % e)
            kernel = pad(kernel, fill).unflatten(at, (-1, e)).movedim(at + 1, 3).flatten(2, 3)
    return kernel


@dataclass(frozen=True)
class Frequencies:
    """The frequencies 2π·(multiple·m)/points of each axis, m = 0 … points−1: a grid, or the spectrum of a circle.

    For a real kernel K(−ω) is the conjugate of K(ω), so half of the last axis is enough.
    """

    points: tuple[int, ...]
    multiple: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Frequencies per axis, half of the last."""
        return (*self.points[:-1], self.points[-1] // 2 + 1) if self.points else ()

    def __len__(self) -> int:
        return math.prod(self.shape)

    def multiplicity(self, like: Tensor) -> Tensor:
        """(F,) how often the spectrum of each frequency occurs in the whole grid."""
        if not self.points:
            return like.new_ones(1)
        last = self.points[-1]
        count = [1.0 if 2 * m % last == 0 else 2.0 for m in range(last // 2 + 1)]
        return like.new_tensor(count).repeat(math.prod(self.points[:-1]))

    def waves(self, taps: Sequence[int], index: Tensor, centred: bool = False) -> Tensor:
        """(F, taps) complex matrix of e^{iω·t}, t = 0 … k−1 per axis, or from −(k−1)/2 if centred.

        Angles are reduced as integers, so every entry is off by at most a few units of rounding.
        """
        out = torch.ones(len(index), 1, dtype=torch.complex128, device=index.device)
        number = index
        for points, multiple, size, k in reversed(list(zip(self.points, self.multiple, self.shape, taps, strict=True))):
            number, m = number // size, number % size
            t = torch.arange(k, device=index.device) - (k // 2 if centred else 0)
            turns = (m[:, None] * multiple * t) % points
            wave = torch.polar(torch.ones_like(turns, dtype=torch.float64), turns.double() * (2 * math.pi / points))
            out = (wave[:, :, None] * out[:, None, :]).flatten(1)
        return out

    def chunks(self, kernel: Tensor) -> Iterator[Tensor]:
        """All frequency indices, in pieces small enough that the matrices of the kernel need little memory."""
        each = max(1, _CHUNK // max(kernel.shape[:3].numel(), kernel.shape[3:].numel()))
        yield from torch.arange(len(self), device=kernel.device).split(each)


def circle_frequencies(conv: Convolution, reduction: Reduction) -> Frequencies | None:
    """The frequencies of the circles of a reduction for the phase-stacked kernel; None if an axis is a line."""
    if any(n is None for n in reduction.circle):
        return None
    points = tuple(n // s for n, s in zip(reduction.circle, reduction.stride, strict=True) if n is not None)
    return Frequencies(points, _multiples(conv, reduction.stride))


def _multiples(conv: Convolution, stride: Sequence[int]) -> tuple[int, ...]:
    return tuple(d // math.gcd(s, d) for s, d in zip(stride, conv.dilation, strict=True))


def grid_factor(taps: int, points: int) -> float:
    """How much larger a polynomial of `taps` coefficients can be between `points` frequencies than on them."""
    if taps == 1:
        return 1.0
    degree = taps - 1
    if points <= degree:
        return math.inf
    return min((1 - degree / points) ** -0.5, 1 / math.cos(math.pi * degree / (2 * points)))


def covering_frequencies(
    conv: Convolution, reduction: Reduction, taps: Sequence[int], rtol: float, most: float = math.inf
) -> tuple[Frequencies, float]:
    """Frequencies whose largest norm, times the returned factor, bounds all on the circles or lines of a reduction.

    On each axis these are the frequencies of the circle itself (factor 1), or a grid whose excess is at most its share
    of `rtol`, whichever are fewer. If the grid has more than `most`, it is thinned and the factor grows.
    """
    wide = [a for a, k in enumerate(taps) if k > 1]
    share = (1 + rtol) ** (-1 / len(wide)) if wide else 1.0
    density = math.pi / (2 * math.acos(share)) if share < 1 else math.inf
    multiples = _multiples(conv, reduction.stride)
    while True:
        points, multiple, factor = [], [], 1.0
        for a, (k, n) in enumerate(zip(taps, reduction.circle, strict=True)):
            own = math.inf if n is None else n // reduction.stride[a]
            needed = 1 if k == 1 else math.inf if density == math.inf else math.ceil(density * (k - 1)) + 1
            if math.isinf(min(own, needed)):
                raise ParameterError("rtol = 0 needs the frequencies of a circle: give the size, or a positive rtol.")
            all_frequencies = own <= needed
            points.append(int(min(own, needed)))
            multiple.append(multiples[a] if all_frequencies else 1)
            factor *= 1.0 if all_frequencies else grid_factor(k, points[-1])
        frequencies = Frequencies(tuple(points), tuple(multiple))
        if len(frequencies) <= most or density < 2:
            return frequencies, factor
        density = 0.9 * density if math.isfinite(density) else 64.0


def symbol(
    kernel: Tensor,  # (groups, rows, columns, *k)
    waves: Tensor,  # (F, taps), or (groups, F, taps) for other frequencies in each group
) -> Tensor:
    """(groups, F, rows, columns) matrices K(ω); real without spatial axes."""
    g, rows, columns = kernel.shape[:3]
    if kernel.ndim == 3:
        return kernel[:, None].expand(g, waves.shape[-2], rows, columns)
    taps = kernel.reshape(g, rows * columns, -1).transpose(1, 2)  # (g, taps, rows·columns)
    both = torch.cat([waves.real, waves.imag], -2) @ taps
    return torch.complex(*both.reshape(g, 2, -1, rows, columns).unbind(1))


def unit_kernel(conv: Convolution, reduction: Reduction) -> tuple[Tensor, Tensor]:
    """The phase-stacked kernel with rows ≤ columns and entries up to 1, and the scale (groups,) divided out.

    Swapping channels transposes every K(ω) and keeps its singular values.
    """
    kernel = phases(conv, reduction.stride)
    kernel = kernel.transpose(1, 2) if kernel.shape[1] > kernel.shape[2] else kernel
    return scale_out(kernel, kernel.detach().abs().amax(dim=tuple(range(1, kernel.ndim))))


def autocorrelation(kernel: Tensor) -> Tensor:
    """G_t = Σ_j K_{j+t} K_jᵀ, (groups, rows, rows, *(2k−1)), centred: the kernel of K Kᵀ, with symbol K(ω)K(ω)*."""
    g, rows = kernel.shape[:2]
    size = kernel.shape[3:]
    out = kernel.new_zeros(g, rows, rows, *(2 * k - 1 for k in size))
    for lag in itertools.product(*(range(1 - k, k) for k in size)):
        if lag < tuple(-t for t in lag):
            continue  # G_{−t} = G_tᵀ
        axes = list(zip(lag, size, strict=True))
        ahead, behind = kernel, kernel
        for a, (t, k) in enumerate(axes):
            ahead = ahead.narrow(3 + a, max(t, 0), k - abs(t))
            behind = behind.narrow(3 + a, max(-t, 0), k - abs(t))
        product = ahead.flatten(2) @ behind.flatten(2).transpose(1, 2)
        select(out, [k - 1 + t for t, k in axes]).copy_(product)
        select(out, [k - 1 - t for t, k in axes]).copy_(product.transpose(1, 2))
    return out


def select(kernel: Tensor, tap: Sequence[int]) -> Tensor:
    """(groups, rows, columns) view of one tap."""
    for t in tap:
        kernel = kernel.select(3, t)
    return kernel


def mass(kernel: Tensor) -> Tensor:
    """(groups, rows, columns) Σ_t |K_t|: no K(ω) has a larger entry."""
    return kernel.abs().sum(dim=tuple(range(3, kernel.ndim))) if kernel.ndim > 3 else kernel.abs()
