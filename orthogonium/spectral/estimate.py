"""Estimates from below, for maps far too large for a matrix: power iteration, Lanczos and subspace iteration.

They access the map only through products with it and its adjoint, A x = f(x) − f(0) and Aᵀy by automatic
differentiation. Every number returned is the size of A on a unit vector or a singular value of A between subspaces, so
it never exceeds the true value (up to rounding) and may be smaller: an estimate can refute a bound, never replace one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from orthogonium.errors import ParameterError
from orthogonium.spectral.operator import Map, as_function


class LinearMap:
    """A linear or affine function as a matrix that is never formed; acts on the rows of (vectors, numbers) tensors."""

    def __init__(self, fn: Map, input_shape: Sequence[int], seed: int = 0) -> None:
        self.call, self.dtype, self.device = as_function(fn)
        self.input_shape = tuple(input_shape)
        self.generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            self.origin = self.call(self._samples(torch.zeros(1, 1)))
        self.inputs, self.outputs = torch.Size(self.input_shape).numel(), self.origin.numel()

    def _samples(self, rows: Tensor) -> Tensor:
        rows = rows.to(self.device, self.dtype)
        return rows.expand(-1, torch.Size(self.input_shape).numel()).reshape(-1, *self.input_shape)

    @torch.no_grad()
    def forward(self, rows: Tensor) -> Tensor:
        """A x for each row x."""
        return (self.call(self._samples(rows)) - self.origin).flatten(1)

    def adjoint(self, rows: Tensor) -> Tensor:
        """Aᵀ y for each row y."""
        with torch.enable_grad():
            x = torch.zeros(len(rows), *self.input_shape, dtype=self.dtype, device=self.device, requires_grad=True)
            out = self.call(x)
            (pulled,) = torch.autograd.grad(out, x, rows.to(out).reshape(out.shape))
        return pulled.flatten(1)

    def sides(self) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], int]:
        """(A, Aᵀ, inputs), or (Aᵀ, A, outputs) if outputs are fewer: the larger side always has a null space."""
        if self.outputs < self.inputs:
            return self.adjoint, self.forward, self.outputs
        return self.forward, self.adjoint, self.inputs

    def noise(self, rows: int, numbers: int) -> Tensor:
        """Random rows, the same for the same seed."""
        return torch.randn(rows, numbers, generator=self.generator, dtype=torch.float64).to(self.device, self.dtype)


def power_iteration(fn: Map, input_shape: Sequence[int], *, steps: int = 100, seed: int = 0) -> Tensor:
    """Estimate of the largest singular value from below, by x ← AᵀA x / ‖AᵀA x‖.

    Args:
        fn: a linear or affine module, function or `Convolution`, differentiable.
        input_shape: shape of one sample, without the batch dimension.
        steps: number of products with AᵀA.
        seed: seed of the random starting vector.

    >>> from orthogonium.spectral import power_iteration
    >>> round(power_iteration(lambda x: x * torch.tensor([1.0, 3.0]), (2,)).item(), 4)
    3.0
    """
    _check_positive(steps=steps)
    a = LinearMap(fn, input_shape, seed)
    x = _unit(a.noise(1, a.inputs))
    best = torch.zeros((), dtype=a.dtype, device=a.device)
    for _ in range(steps):
        y = a.forward(x)
        best = torch.maximum(best, torch.linalg.vector_norm(y).to(best))
        x = _unit(a.adjoint(y))
    return best


def lanczos(fn: Map, input_shape: Sequence[int], *, steps: int = 30, seed: int = 0) -> Tensor:
    """Ritz values, largest first: the singular values of A between two Krylov spaces (Golub–Kahan, reorthogonalized).

    The first is at most the largest singular value and converges to it much faster than the power iteration; the last
    is at least the smallest of the min(inputs, outputs) singular values.

    Args:
        fn: a linear or affine module, function or `Convolution`, differentiable.
        input_shape: shape of one sample, without the batch dimension.
        steps: dimension of the spaces (smaller if they close earlier).
        seed: seed of the random starting vector.

    Returns:
        (≤ steps,) float64 values.

    >>> from orthogonium.spectral import lanczos
    >>> [round(s, 4) for s in lanczos(lambda x: x * torch.tensor([1.0, 3.0]), (2,)).tolist()]
    [3.0, 1.0]
    """
    _check_positive(steps=steps)
    a = LinearMap(fn, input_shape, seed)
    there, back, numbers = a.sides()
    basis = _unit(a.noise(1, numbers))
    images: list[Tensor] = []
    for _ in range(min(steps, numbers)):
        images.append(there(basis[-1:]).double())
        fresh = back(images[-1].to(a.dtype))
        size = torch.linalg.vector_norm(fresh)
        for _ in range(2):  # once is not enough in floating point
            fresh = fresh - (fresh @ basis.T) @ basis
        if torch.linalg.vector_norm(fresh) <= 100 * torch.finfo(a.dtype).eps * size:
            break
        basis = torch.cat([basis, _unit(fresh)])
    # Orthonormal again in float64: a singular value between subspaces cannot exceed one of the whole map.
    image = torch.cat(images)
    triangle = torch.linalg.qr(basis[: len(image)].double().T).R
    return torch.linalg.svdvals(torch.linalg.solve_triangular(triangle.T, image, upper=False))


def top_singular_values(fn: Map, input_shape: Sequence[int], count: int, *, steps: int = 50, seed: int = 0) -> Tensor:
    """Estimates of the `count` largest singular values from below (PowerQR, Boroojeny et al. 2024).

    Subspace iteration X ← qr(X + AᵀA X), where AᵀA x is the gradient of ½‖f(x) − f(0)‖². The results are the singular
    values of A on the final subspace, which interlace: the i-th is at most the i-th of A.

    Args:
        fn: a linear or affine module, function or `Convolution`, differentiable.
        input_shape: shape of one sample, without the batch dimension.
        count: how many values to estimate.
        steps: number of iterations.
        seed: seed of the random starting subspace.

    Returns:
        (count,) float64 values, largest first.

    >>> from orthogonium.spectral import top_singular_values
    >>> scale = torch.tensor([1.0, 3.0, 9.0])
    >>> [round(s, 3) for s in top_singular_values(lambda x: x * scale, (3,), 2).tolist()]
    [9.0, 3.0]
    """
    _check_positive(steps=steps, count=count)
    a = LinearMap(fn, input_shape, seed)
    there, back, numbers = a.sides()
    if count > numbers:
        raise ParameterError(f"A map {a.inputs} → {a.outputs} has {numbers} singular values, {count} were asked for.")
    x = torch.linalg.qr(a.noise(count, numbers).double().T).Q
    for _ in range(steps):
        x = torch.linalg.qr(x + back(there(x.T)).double().T).Q
    return torch.linalg.svdvals(there(x.T).double())


def _check_positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise ParameterError(f"{name} must be at least 1, got {value}.")


def _unit(rows: Tensor) -> Tensor:
    return rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
