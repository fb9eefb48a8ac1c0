"""Adaptive skew orthogonal convolution: the explicit exponential of a skew kernel, for any stride and channels.

Singla, Feizi (2021), "Skew orthogonal convolutions"; the explicit kernel and the combination with a strided stage after
Boissin et al. (2025), "An adaptive orthogonal convolution scheme for efficient and flexible CNN architectures".

Note [Skew kernels]
`K[−t] = −K[t]ᵀ` makes the operator of K skew; this requires taps that are symmetric around 0, so sizes are odd. Half
of the taps are free, and these are the raw parameters. `K ← D^½ K D^½` keeps K skew. With `D = diag(t)⁻¹` and t a
dominating diagonal of the Hermitian iK (Note [Dominating diagonal] of `kernels/dominance.py`) its norm is at most 1.
Entries of t below 1 are raised to 1, so small kernels are unchanged and the identity can be reached.

Note [Sizes]
`kernel_size` k is shared between the stages as in AOC: the strided one has size e (effective stride), the skew kernel
`k − e + 1`, or one more if that is even. Its exponential of order n has size `n(κ − 1) + 1` for the skew size κ, and
the whole kernel has e − 1 more taps. So a 3×3 kernel of stride 1 and order 4 grows to 9×9, one of stride 2 to 10×10.

Note [Series]
On a circle a layer may apply the series to its images by Horner's rule, `y ← x + K ⋆ y / j` for j from the order to 1:
the same function, up to rounding. For a 3×3 kernel of order 4 that takes 36 taps per pixel instead of 81, and the
exponential is not built. With zero padding, what leaves the image between steps would be lost. A derivative needs the
intermediate images, as many as the order, so this is not done for large images.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from orthogonium.errors import ParameterError
from orthogonium.kernels import ConvGeometry, adjoint, block_conv, select_method
from orthogonium.kernels.dominance import check_steps, dominating_diagonal, rounding
from orthogonium.kernels.exponential import SAFE_ORDERS, grown_size, skew_exponential, smallest_singular_value
from orthogonium.linalg import OrthoParams, qr, random_orthogonal
from orthogonium.methods.bcop.inverse import inner_kernels, outer_matrices
from orthogonium.methods.fitting import fit_kernel
from orthogonium.methods.kernel import ConvKernel, Device, Raw
from orthogonium.methods.sll import smallest_scale

_STEPS = 300  # of the first fit to a weight
_SCALINGS = 500  # steps of the search for what was scaled
_SCALED = 1e-7  # relative change at its end


def _with_skew_middle(raw: Tensor) -> Tensor:
    """Half of the taps of a skew kernel: the tap at place 0 is skew itself."""
    return torch.cat(((raw[:1] - raw[:1].mT) / 2, raw[1:]))


class SkewExponentialKernel(ConvKernel):
    """Adaptive SOC kernel of a geometry. Raw parameters: half of the skew taps `(taps, g, c, c)`, and the RKO matrix.

    `geometry` has the requested kernel size; the kernel that is built has size `kernel_size`.
    """

    group_axes = (1, 0)

    def __init__(self, geometry: ConvGeometry, order: int, niter: int, ortho_params: OrthoParams) -> None:
        super().__init__()
        if order not in SAFE_ORDERS:
            raise ParameterError(
                f"Adaptive SOC: the series may be cut after order {', '.join(map(str, SAFE_ORDERS))} only, got "
                f"{order!r}: others expand. Each order grows the kernel by k − 1; order 4 leaves all singular values "
                "above 0.993, order 8 above 0.99999."
            )
        check_steps(niter, "Adaptive SOC", "squarings", least=0)
        self.geometry, self.order, self.niter = geometry, order, niter
        plan = select_method(geometry)
        g, ci, co = geometry.groups, geometry.group_in, geometry.group_out
        self.has_rko = math.prod(plan.rko_size) > 1
        self.skew_size = tuple(k + 1 - k % 2 for k in plan.bcop_size)
        self.rko_size = plan.rko_size
        self.kernel_size = self.size_of_order(order)
        # Channels that the skew kernel mixes, and how many of its inputs are kept.
        self.channels, self.columns = (plan.inner_channels, ci) if self.has_rko else (max(ci, co), min(ci, co))
        self.trainable = self.has_rko or self.channels > 1 or math.prod(self.skew_size) > 1
        self.smallest = smallest_singular_value(order)
        self.skew_shape = ((math.prod(self.skew_size) + 1) // 2, g, self.channels, self.channels)
        if self.has_rko:
            self.rko_shape = (g, co, plan.inner_channels * math.prod(plan.rko_size))
            self.orthogonalize = ortho_params.build(self.rko_shape)

    @property
    def weight_geometry(self) -> ConvGeometry:
        """The geometry with the size of the exponential: Note [Sizes]."""
        return replace(self.geometry, kernel_size=self.kernel_size)

    def size_of_order(self, order: int) -> tuple[int, ...]:
        """The size of the kernel if the series is cut after this order: Note [Sizes]."""
        return tuple(n + e - 1 for n, e in zip(grown_size(self.skew_size, order), self.rko_size, strict=True))

    def initial(self, device: Device, dtype: torch.dtype) -> Raw:
        """Normal taps of variance 1/c, which the scaling brings close to norm 1, and a random orthogonal matrix."""
        wide = torch.promote_types(dtype, torch.float32)
        raw = (torch.randn(self.skew_shape, device=device, dtype=wide) / math.sqrt(self.channels)).to(dtype)
        return (raw, random_orthogonal(self.rko_shape, device, dtype)) if self.has_rko else (raw,)

    def guess(self, weight: Tensor) -> tuple[Tensor, ...]:
        """A fit without the scaling, whose kinks slow fits down, and which kernels of the set do not need."""
        skew, *matrix = super().guess(weight)
        # The norm of the skew kernel is at most 1: near 0 there are few other minima, and none for a square kernel, of
        # which it is the logarithm. Dropped channels start anywhere, since the fit does not depend on them at 0.
        skew = skew * (0.0 if self.columns == self.channels else 0.3)
        if self.has_rko and self.columns < self.channels:
            skew, outer = self._two_stages(weight, skew)
            return self._unscaled(skew), outer
        start = (skew, *(self._middle(weight) for _ in matrix))

        def unscaled(skew: Tensor, *matrix: Tensor) -> Tensor:
            return self._exponential(_with_skew_middle(skew), *matrix)

        skew, *matrix = fit_kernel(unscaled, weight, start, _STEPS, "first fit of a skew kernel")
        return self._unscaled(skew), *matrix

    def _two_stages(self, weight: Tensor, skew: Tensor) -> tuple[Tensor, Tensor]:
        """The skew taps and the strided stage: Note [Two stages] of `bcop/inverse.py`.

        The inner stage is known up to a rotation of its outputs, which is fitted along with the skew taps.
        """
        groups = weight.double().unflatten(0, (self.geometry.groups, -1))
        inner = inner_kernels(groups, self.channels, self.rko_size)  # (g, c, m, *taps)
        # At first, the middle tap is turned into the first columns of the identity, or close to it.
        middle = inner.flatten(3)[..., math.prod(inner.shape[3:]) // 2]
        basis, triangle = torch.linalg.qr(middle, mode="complete")
        sign = torch.where(triangle.diagonal(dim1=1, dim2=2) < 0, -1.0, 1.0).to(basis.dtype)
        turn = torch.cat((basis[..., : self.columns] * sign[:, None], basis[..., self.columns :]), 2).mT

        def turned_back(skew: Tensor, turn: Tensor) -> Tensor:
            stage = skew_exponential(_with_skew_middle(skew), self.skew_size, self.order, self.columns)
            return torch.bmm(qr(turn).mT, stage.flatten(2)).view_as(stage)

        skew, turn = fit_kernel(turned_back, inner, (skew, turn), _STEPS, "first fit of a skew kernel")
        stages = skew_exponential(_with_skew_middle(skew), self.skew_size, self.order, self.columns)
        return skew, outer_matrices(groups, stages, self.rko_size)

    def _unscaled(self, half: Tensor) -> Tensor:
        """Raw taps `D^½ K D^½` that are scaled to these, `D = diag(t)`; the taps themselves if there are none.

        Taps of the set always have some. The search converges like power iteration.
        """
        half = _with_skew_middle(half)
        root = torch.ones_like(half[0, ..., 0])
        for _ in range(_SCALINGS):
            raw = half * root[..., None] * root[..., None, :]
            ratio = self._diagonal(raw).sqrt() / root
            root = root * ratio
            if (ratio - 1).abs().max() <= _SCALED:
                return raw
        return half

    def _middle(self, weight: Tensor) -> Tensor:
        """The strided stage if the exponential were the identity: the middle taps."""
        taps = weight.unflatten(0, (self.geometry.groups, -1))
        for axis, (n, e) in enumerate(zip(self.kernel_size, self.rko_size, strict=True), 3):
            taps = taps.narrow(axis, (n - e) // 2, e)
        return taps.flatten(2)

    def skew_taps(self, raw: Tensor) -> Tensor:
        """Half of the taps of the scaled skew kernel, of norm at most 1. Note [Skew kernels]."""
        half = _with_skew_middle(raw)
        root = self._diagonal(half).rsqrt()
        return half * root[..., None] * root[..., None, :]

    def _diagonal(self, half: Tensor) -> Tensor:  # (g, c)
        """A diagonal that dominates the skew kernel, at least 1. Note [Skew kernels]."""
        # The largest entry of each group keeps squares in range: a constant for the gradient.
        scale = half.detach().abs().amax((0, 2, 3)).clamp_min(smallest_scale(half.dtype))
        unit = half / scale[:, None, None]
        t = (scale[:, None] * dominating_diagonal(unit, self.skew_size, None, self.niter, sign=-1)).clamp_min(1)
        return t * rounding(self.channels, t.dtype)

    def build(self, *raw: Tensor) -> Tensor:
        return self._exponential(self.skew_taps(raw[0]), *raw[1:])

    def stages(self, *raw: Tensor) -> tuple[Tensor, ...]:
        """The skew kernel `(g·c, c, *κ)` of a series (Note [Series]), and the strided one `(out, c, *e)`, if any."""
        half = self.skew_taps(raw[0])
        taps = torch.cat((-half[1:].flip(0).mT, half))  # (taps, g, c, c)
        skew = taps.flatten(1, 2).movedim(0, -1).unflatten(-1, self.skew_size)
        return (skew, self._strided(raw[1])) if self.has_rko else (skew,)

    def _strided(self, matrix: Tensor) -> Tensor:
        return self.orthogonalize(matrix).reshape(self.geometry.out_channels, -1, *self.rko_size)

    def _exponential(self, half: Tensor, *matrix: Tensor) -> Tensor:
        g = self.geometry
        kernel = skew_exponential(half, self.skew_size, self.order, self.columns).flatten(0, 1)
        if self.has_rko:
            return block_conv(kernel, self._strided(matrix[0]), groups=g.groups)
        return kernel if g.group_out >= g.group_in else adjoint(kernel, groups=g.groups)
