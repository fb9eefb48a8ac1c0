"""Kernels by their symbols at the points of a frequency grid, in real arithmetic.

The symbol of a kernel is `K(ω) = Σ_t K[t] e^{iω·t}`, and the composition ⊛ of kernels is the product of their symbols.
A product with at most N taps on each axis is determined by N frequencies on each: sampling, multiplying matrices and
interpolating gives it exactly, for a fraction of the arithmetic of a block convolution.

Note [Halves]
All boxes have odd sizes and are centred at 0. A real kernel has `K(−ω) = conj K(ω)`, so half of the frequencies
suffice: the middle of the box and what follows it in lexicographic order. The taps of a kernel that is its own adjoint
(`K[−t] = K[t]ᵀ`), or minus its own adjoint, are known from the same half of their box.

A symbol is a pair (real part, imaginary part) of tensors `(frequencies, groups, rows, columns)`; the imaginary part is
None on the grid of one point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from orthogonium.linalg.evaluation import HandWritten, evaluate

Symbol: TypeAlias = tuple[Tensor, Tensor | None]


def _half_box(sizes: tuple[int, ...], device: torch.device) -> Tensor:  # (half the points, axes), integers
    """The points of a centred box of odd sizes from its middle on. Note [Halves]."""
    box = _box(sizes, device, centred=True)
    return box[len(box) // 2 :]


def _box(sizes: tuple[int, ...], device: torch.device, centred: bool = False) -> Tensor:  # (points, axes), integers
    axes = [torch.arange(n, device=device) - n // 2 * centred for n in sizes]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).flatten(0, -2)


def _waves(
    grid: tuple[int, ...],
    sizes: tuple[int, ...],
    half: bool,
    weights: tuple[float, float],
    device: torch.device,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of ω·t, (half of the frequencies of the grid, positions in a box or in half of one).

    The columns are weighted; the one that belongs to the middle of a half box gets the first weight.
    """
    frequencies = _half_box(grid, device)
    positions = _half_box(sizes, device) if half else _box(sizes, device)
    # Multiples of the period are removed in integers, so the tables are as exact as their dtype.
    wide = torch.float32 if device.type == "mps" else torch.float64
    turns = torch.zeros(len(frequencies), len(positions), dtype=wide, device=device)
    for axis, n in enumerate(grid):
        product = frequencies[:, axis, None] * positions[None, :, axis]
        turns = turns + (torch.remainder(product + n // 2, n) - n // 2).to(wide) / n
    angles = 2 * math.pi * turns
    scale = torch.full_like(angles[0], weights[1])
    scale[:1].fill_(weights[0])
    return (angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype)


# Set by `torch.compiler.assume_constant_result`; calling that here would import the compiler, which takes a second.
_waves._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _combine(table: Tensor, values: Tensor) -> Tensor:
    return (table @ values.flatten(1)).view(-1, *values.shape[1:])


def symbol(kernel: Tensor, grid: Sequence[int]) -> Symbol:  # (g, m, n, *k)
    """Symbol of any kernel, up to a phase factor that depends on the position of its first tap."""
    sizes = kernel.shape[3:]
    taps = kernel.flatten(3).permute(3, 0, 1, 2) if sizes else kernel[None]  # (taps, g, m, n)
    if math.prod(grid) == 1:
        return taps, None
    cosine, sine = _waves(tuple(grid), tuple(sizes), False, (1.0, 1.0), kernel.device, kernel.dtype)
    taps = taps.contiguous()
    return _combine(cosine, taps), _combine(sine, taps)


def symbol_at(kernel: Tensor, grid: Sequence[int], frequency: Tensor) -> Symbol:  # (g, m, n, *k), (g,)
    """Symbol of each group at a frequency of its own, an index into half of a grid: `(1, g, m, n)`."""
    if math.prod(grid) == 1:
        return symbol(kernel, grid)
    cosine, sine = _waves(tuple(grid), tuple(kernel.shape[3:]), False, (1.0, 1.0), kernel.device, kernel.dtype)
    taps = kernel.flatten(3)
    real = torch.einsum("gmnt,gt->gmn", taps, cosine[frequency])
    return real[None], torch.einsum("gmnt,gt->gmn", taps, sine[frequency])[None]


def symmetric_symbol(half: Tensor, sizes: Sequence[int], grid: Sequence[int], sign: int = 1) -> Symbol:
    """(Anti-)Hermitian symbol of a kernel with `K[−t] = sign·K[t]ᵀ`, from half of its taps `(taps, g, c, c)`."""
    return _symmetric_symbols(half, sizes, grid, sign)(slice(None))


def hermitian_symbols(half: Tensor, sizes: Sequence[int], grid: Sequence[int], count: int) -> Iterator[Symbol]:
    """The Hermitian symbol in `count` parts, one by one: every `count`-th frequency, from the first ones on."""
    part = _symmetric_symbols(half, sizes, grid, 1)
    return (part(slice(first, None, count)) for first in range(count))


def _symmetric_symbols(half: Tensor, sizes: Sequence[int], grid: Sequence[int], sign: int) -> Callable[[slice], Symbol]:
    """The symbol as a function of frequencies."""
    mirrored = half.mT if sign > 0 else -half.mT
    even = half + mirrored
    if math.prod(grid) == 1:
        return lambda part: ((even / 2)[part], None)
    odd = half - mirrored
    # The middle tap is in `even` twice; its sine is zero.
    cosine, sine = _waves(tuple(grid), tuple(sizes), True, (0.5, 1.0), half.device, half.dtype)
    return lambda part: (_combine(cosine[part], even), _combine(sine[part], odd))


def product(x: Symbol, y: Symbol) -> Symbol:
    """Symbol of the composition, `y` first: three real products instead of four (Gauss)."""
    (a, b), (c, d) = x, y
    if b is None or d is None:
        return a @ c, None
    ac, bd = a @ c, b @ d
    return ac - bd, (a + b) @ (c + d) - ac - bd


class _Gram(HandWritten):
    """(A, B) → real and imaginary parts of `(A + iB)(A + iB)ᴴ`, stacked.

    Two products instead of three: `P = ½(A + B)(A − B)ᵀ` has `P − Pᵀ = BAᵀ − ABᵀ` and `P + Pᵀ = AAᵀ − BBᵀ`.

    The gradient `(S + iT)(A + iB)`, with S and T the symmetric and antisymmetric parts of the incoming gradients (times
    2), takes three products; that of the single products would take four.
    """

    @staticmethod
    def compute(real: Tensor, imaginary: Tensor) -> tuple[Tensor, list[Tensor]]:
        cross = torch.lerp(real, imaginary, 0.5) @ (real - imaginary).mT
        return torch.stack((cross + cross.mT + (2 * imaginary) @ imaginary.mT, cross - cross.mT)), []

    @staticmethod
    def adjoint(
        inputs: Sequence[Tensor], saved: list[Tensor], wants: Sequence[bool], grad: Tensor
    ) -> tuple[Tensor, Tensor]:
        real, imaginary = grad
        result = product((real + real.mT, imaginary - imaginary.mT), (inputs[0], inputs[1]))
        assert result[1] is not None
        return result[0], result[1]


def gram(x: Symbol) -> Symbol:
    """Symbol of `K Kᵀ`: the square of a Hermitian symbol, minus the square of an anti-Hermitian one."""
    real, imaginary = x
    if imaginary is None:
        return real @ real.mT, None
    both = evaluate(_Gram, real, imaginary)
    return both[0], both[1]


def _half_taps(x: Symbol, sizes: Sequence[int]) -> tuple[Tensor, Tensor | None]:
    """Even and odd part of the taps in half of a box, from the symbol on the grid of that size."""
    real, imaginary = x
    if imaginary is None:
        return real, None
    box, total = tuple(sizes), math.prod(sizes)
    cosine, sine = _waves(box, box, True, (1 / total, 2 / total), real.device, real.dtype)
    return _combine(cosine, real), _combine(sine, imaginary)


def hermitian_taps(x: Symbol, sizes: Sequence[int]) -> Tensor:  # (half the taps, g, c, c)
    """Half of the taps of a kernel that is its own adjoint, from its symbol on the grid of its size."""
    even, odd = _half_taps(x, sizes)
    return even if odd is None else even + odd


def kernel_of(x: Symbol, sizes: Sequence[int]) -> Tensor:  # (g, m, n, *sizes)
    """The kernel, centred, from its symbol on the grid of its size."""
    even, odd = _half_taps(x, sizes)
    taps = even if odd is None else torch.cat(((even - odd)[1:].flip(0), even + odd))
    return taps.permute(1, 2, 3, 0).unflatten(-1, tuple(sizes)) if sizes else taps[0]
