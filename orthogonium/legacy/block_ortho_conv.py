"""BCOP: block convolution orthogonal parametrization, as first published.

Qiyang Li, Saminul Haque, Cem Anil, James Lucas, Roger Grosse, Jörn-Henrik Jacobsen: "Preventing Gradient Attenuation in
Lipschitz Constrained Convolutional Networks", NeurIPS 2019.
"""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orthogonium.errors import GuaranteeWarning, ParameterError, ShapeError
from orthogonium.legacy._common import (
    MatrixPowerIteration,
    add_bias,
    downsample,
    require_positive,
)


def bjorck(
    x: Tensor,  # (…, m, n), singular values < √3 (order 1) or ≤ 1
    iters: int = 20,
    beta: float = 0.5,
    order: int = 1,
) -> Tensor:
    """Orthonormal factor of matrices by Björck & Bowie's iteration X ← (1+β)X − βXXᵀX.

    A higher order, where β is always ½, takes more terms of `(1 − Q)^(-1/2) = 1 + Q/2 + 3Q²/8 + …` with Q = 1 − XᵀX:
    singular values up to 1 never exceed it, and get closer to it with each term.

    With β = ½ and singular values up to 2, none of the result exceeds 1; each σ tends to 1, slowly if it starts small:
    20 iterations bring σ = 1e-3 to 0.9999, but σ = 1e-4 only to 0.32.

    >>> q = bjorck(torch.tensor([[1.0, 0.5], [0.0, 1.0]]))
    >>> torch.allclose(q @ q.T, torch.eye(2), atol=1e-5)
    True
    """
    wide = x.shape[-2] < x.shape[-1]
    for _ in range(iters):
        if order == 1:
            x = (1 + beta) * x - beta * ((x @ x.mT) @ x if wide else x @ (x.mT @ x))
            continue
        term = total = x
        for i in range(1, order + 1):
            term = (term - ((x @ x.mT) @ term if wide else term @ (x.mT @ x))) * ((2 * i - 1) / (2 * i))
            total = total + term
        x = total
    return x


class ScaledBjorck(nn.Module):
    """Björck's iteration on matrices first divided by their norm, which a running power iteration estimates.

    The estimate is from below and Björck diverges for singular values above √3, so it is kept above √‖XXᵀ‖_F / 1.7: the
    root is an upper bound on the norm, so nothing exceeds 1.7 however far the weights have moved. Orders above 1
    already diverge above 1: there the root itself is the scale.
    """

    def __init__(
        self, matrices: Tensor, iters: int, beta: float, power_iteration_scaling: bool, order: int = 1
    ) -> None:
        super().__init__()
        require_positive(bjorck_iters=iters, bjorck_order=order)
        if order > 1 and beta != 0.5:
            raise ParameterError(f"bjorck_order {order} is a series with bjorck_beta = 1/2, got {beta}. Use 0.5.")
        if not 0 < beta <= 0.5:
            raise ParameterError(
                f"bjorck_beta must lie in (0, 1/2], got {beta}: larger steps do not converge. Use 0.5."
            )
        self.iters, self.beta, self.order = iters, beta, order
        self.norm = MatrixPowerIteration(matrices) if power_iteration_scaling else None

    def forward(self, matrices: Tensor) -> Tensor:  # (batch, m, n) → same
        """The orthonormal factors."""
        if self.norm is not None:
            narrow = matrices if matrices.shape[-2] <= matrices.shape[-1] else matrices.mT
            upper = torch.linalg.matrix_norm(narrow @ narrow.mT).sqrt()
            scale = torch.maximum(self.norm.of(matrices), upper / 1.7) if self.order == 1 else upper
            matrices = matrices / scale.clamp_min(torch.finfo(scale.dtype).tiny).view(-1, 1, 1)
        return bjorck(matrices, self.iters, self.beta, self.order)


def block_conv(
    outer: Tensor,  # (c3, c2, k1, k2)
    inner: Tensor,  # (c2, c1, l1, l2)
) -> Tensor:  # (c3, c1, k1+l1−1, k2+l2−1)
    """Block convolution: the kernel of "convolve with `inner`, then with `outer`"; Σ_s outer[s] · inner[t − s]."""
    (k1, k2), (l1, l2) = outer.shape[-2:], inner.shape[-2:]
    composed = outer.new_zeros(outer.shape[0], inner.shape[1], k1 + l1 - 1, k2 + l2 - 1)
    for i in range(k1):
        for j in range(k2):
            tap = torch.einsum("ab,bcxy->acxy", outer[:, :, i, j], inner)
            composed = composed + F.pad(tap, (j, k2 - 1 - j, i, k1 - 1 - i))
    return composed


def projector_block(p: Tensor, q: Tensor) -> Tensor:  # (c, c), (c, c) → (c, c, 2, 2)
    """The 2 × 2 kernel [[PQ, P(I−Q)], [(I−P)Q, (I−P)(I−Q)]], orthogonal when P and Q are orthogonal projectors."""
    eye = torch.eye(len(p), dtype=p.dtype, device=p.device)
    rows = [torch.stack([half @ q, half @ (eye - q)], dim=-1) for half in (p, eye - p)]
    return torch.stack(rows, dim=-2)


def bcop_kernel(
    bases: Tensor,  # (2(k−1), c, r), orthonormal columns
    orthogonal: Tensor,  # (co, c), orthonormal rows or columns
) -> Tensor:  # (co, c, k, k)
    """H ⊛ F₁ ⊛ … ⊛ F_{k−1} by explicit 2 × 2 block convolutions; F_{k−1} meets the image first.

    F_i is the `projector_block` of P = MMᵀ and Q = NNᵀ, where M = bases[2(i−1)] (first, vertical axis) and
    N = bases[2(i−1)+1] (second axis). Orthogonal on circular images, like H.

    >>> bases = torch.linalg.qr(torch.randn(4, 6, 3)).Q
    >>> kernel = bcop_kernel(bases, torch.eye(6))
    >>> kernel.shape
    torch.Size([6, 6, 3, 3])
    >>> kernel.norm() ** 2  # as orthogonal as the identity: c in all
    tensor(6.00...)
    """
    kernel = orthogonal[..., None, None]
    projectors = bases @ bases.mT
    for p, q in zip(projectors[::2], projectors[1::2], strict=True):
        kernel = block_conv(kernel, projector_block(p, q))
    return kernel


class BCOP(nn.Module):
    """Orthogonal convolution of stride 1 from 2(k−1) projectors of rank ⌊c/2⌋ and one orthogonal matrix.

    Paper: Li et al., "Preventing Gradient Attenuation in Lipschitz Constrained Convolutional Networks", NeurIPS 2019.
    Built on c = max(in, out) channels and cut, which keeps columns (in ≤ out) or rows (in ≥ out) orthonormal.

    Guarantee: with circular padding every singular value is 1, to 1e-5 in float32 and 1e-12 in float64, as long as
    Björck converges. With `padding_mode="zeros"` it is 1-Lipschitz.

    Kept from the original: a fixed number of Björck iterations, unrolled by autograd. If training makes a raw matrix
    ill-conditioned, they stop short; projectors then have eigenvalues in [0, 1], and the layer is 1-Lipschitz but no
    longer orthogonal. `padding` is accepted for the sake of scripts that pass it, but has no effect: images keep their
    size. All matrices are orthonormalised at full size c × c, even those of which only half the columns are used. The
    kernel is rebuilt at every call. Stride is a pixel-unshuffle before a convolution of the same kernel size on
    in·stride² channels.

    >>> layer = BCOP(2, 4, kernel_size=3, stride=2)
    >>> layer(torch.randn(1, 2, 8, 8)).shape
    torch.Size([1, 4, 4, 4])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        stride: int = 1,
        padding: int | str | None = None,
        padding_mode: str = "circular",
        bias: bool = True,
        bjorck_beta: float = 0.5,
        bjorck_iters: int = 20,
        bjorck_order: int = 1,
        power_iteration_scaling: bool = True,
    ) -> None:
        super().__init__()
        require_positive(in_channels=in_channels, out_channels=out_channels, kernel_size=kernel_size, stride=stride)
        if padding_mode not in ("circular", "zeros"):
            raise ParameterError(f"BCOP: padding_mode must be 'circular' or 'zeros', got {padding_mode!r}.")
        self.in_channels, self.out_channels = in_channels * stride**2, out_channels
        self.kernel_size, self.stride, self.padding_mode = kernel_size, stride, padding_mode
        before, after = (kernel_size - 1) // 2, kernel_size // 2
        self._pad = (before, after, before, after)
        c = max(self.in_channels, out_channels)
        if c == 1 and kernel_size > 1:
            warnings.warn(
                "BCOP: an orthogonal convolution of one channel is a shift (and a sign), so this kernel cannot train. "
                "Use more channels, or SOC.",
                GuaranteeWarning,
                stacklevel=2,
            )
        count = 1 + 2 * (kernel_size - 1)  # an orthogonal matrix, then two bases per 2 × 2 factor
        self.conv_matrices = nn.Parameter(torch.stack([nn.init.orthogonal_(torch.empty(c, c)) for _ in range(count)]))
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None
        self.orthonormalize = ScaledBjorck(
            self.conv_matrices, bjorck_iters, bjorck_beta, power_iteration_scaling, bjorck_order
        )

    def kernel(self) -> Tensor:  # (out, in·stride², k, k)
        """The orthogonal kernel of the current parameters."""
        orthogonal = self.orthonormalize(self.conv_matrices)
        bases = orthogonal[1:, :, : orthogonal.shape[-1] // 2]
        return bcop_kernel(bases, orthogonal[0, : self.out_channels])[:, : self.in_channels]

    def forward(self, x: Tensor) -> Tensor:
        """The convolution of a batch of images."""
        x = downsample(x, self.stride)
        if self.padding_mode == "circular" and min(x.shape[-2:]) < self.kernel_size // 2:
            raise ShapeError(
                f"BCOP: a kernel of size {self.kernel_size} wraps more than once around images {tuple(x.shape[-2:])}. "
                "Use larger images or a smaller kernel."
            )
        mode = "constant" if self.padding_mode == "zeros" else "circular"
        return add_bias(F.conv2d(F.pad(x, self._pad, mode=mode), self.kernel()), self.bias)

    def extra_repr(self) -> str:
        """The geometry of the convolution on the unshuffled image."""
        return f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
