"""Block reflectors at each frequency of the image.

Lai et al. (2025), "Enhancing certified robustness via block reflector orthogonal layers and logit annealing loss":
`I − 2V(VᴴV)⁻¹Vᴴ` for V with r columns, which needs no iteration. It reflects the range of V, so it is its own inverse;
with `r = c` it would be −I, whatever V is. If inputs and outputs differ in number, rows or columns of the larger square
are dropped. Here QR gives the range an orthonormal basis, which is exact for every V.

Note [Lost rank]
If columns of V are linearly dependent, QR fills up the basis with directions decided by rounding. Those of a real
form need not come in pairs, v and iv, and those at frequencies ω and −ω need not be conjugate: what is left of such a
reflector in a real kernel would expand. So if the result is not the real form of a complex matrix, or cannot be read,
values come from complex QR at one of each two frequencies. Derivatives come from the real form, where they are finite.
"""

from __future__ import annotations

import torch
from torch import Tensor

from orthogonium.errors import GeometryError, ParameterError
from orthogonium.kernels import ConvGeometry
from orthogonium.kernels.circle import conjugate_symmetric
from orthogonium.linalg.complex_matrices import complex_form, off_complex, real_form
from orthogonium.linalg.evaluation import may_look
from orthogonium.linalg.triangular import qr
from orthogonium.methods.aol import central_tap
from orthogonium.methods.circle import CircleKernel, Grid, symbol
from orthogonium.methods.kernel import Device, unit_groups

_PAIRED = 1e3  # rounding of a real form that is that of a complex matrix, in units of eps


def block_reflector(v: Tensor) -> Tensor:  # (..., c, r), r ≤ c → (..., c, c)
    """`I − 2V(VᵀV)⁻¹Vᵀ`, orthogonal and symmetric.

    >>> w = block_reflector(torch.tensor([[1.0], [1.0]]))
    >>> torch.testing.assert_close(w, torch.tensor([[0.0, -1.0], [-1.0, 0.0]]))
    """
    basis = qr(v)
    return torch.eye(v.shape[-2], dtype=v.dtype, device=v.device) - 2 * basis @ basis.mT


def complex_reflectors(
    v: Tensor, grid: Grid
) -> Tensor:  # complex (*half of grid, ..., c, r) → (*half of grid, ..., c, c)
    """`I − 2V(VᴴV)⁻¹Vᴴ` at each frequency, unitary and Hermitian, for every V. Note [Lost rank]."""
    real = block_reflector(real_form(v))
    w = complex_form(real)
    if may_look(real) and off_complex(real.detach()) <= _PAIRED * torch.finfo(real.dtype).eps:
        return w
    basis = torch.linalg.qr(conjugate_symmetric(v.detach(), grid))[0]
    exact = torch.eye(v.shape[-2], dtype=v.dtype, device=v.device) - 2 * basis @ basis.mH
    return conjugate_symmetric(exact, grid) + (w - w.detach())


class BlockReflectorKernel(CircleKernel):
    """Raw parameter: taps of V after the stride, `(g·c, r, *⌈k/s⌉)` with `c = max(out, in·∏s)` channels of a group."""

    group_axes = (0,)

    def __init__(self, geometry: ConvGeometry, rank: int | None = None) -> None:
        super().__init__(geometry)
        if self.channels < 2:
            raise GeometryError(
                "BRO reflects some of several channels: with one for each group there is nothing to choose. Use "
                "method='cayley', 'lot' or 'eco', or fewer groups."
            )
        if rank is not None and (not isinstance(rank, int) or not 0 < rank < self.channels):
            raise ParameterError(
                f"BRO: rank, the number of directions that are reflected, must be between 1 and {self.channels - 1} "
                f"for {self.channels} channels of a group (outputs, or inputs times strides), got {rank!r}."
            )
        self.rank = self.channels // 2 if rank is None else rank

    def initial(self, device: Device, dtype: torch.dtype) -> Tensor:
        """Orthonormal columns in the middle plus a little noise."""
        g = self.geometry
        channels = g.groups * self.rank, g.groups * self.channels
        return central_tap(ConvGeometry.of(g.dims, *channels, self.taps_grid, groups=g.groups), device, dtype)

    def unitary(self, grid: Grid, *raw: Tensor) -> Tensor:
        g = self.geometry
        v = symbol(unit_groups(raw[0], g.groups)[0], grid, (1,) * g.dims)
        return complex_reflectors(v, grid)[..., : g.group_out, : self.columns]
