"""SOC: skew orthogonal convolution with the implicit series and the "fantastic four" norm, as first published.

Sahil Singla, Soheil Feizi: "Skew Orthogonal Convolutions", ICML 2021; the norm bound is from the same authors'
"Fantastic Four: Differentiable Bounds on Singular Values of Convolution Layers", ICLR 2021.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orthogonium.errors import GeometryError, ParameterError
from orthogonium.legacy._common import (
    MatrixPowerIteration,
    add_bias,
    downsample,
    require_positive,
    require_same_padding,
)


def skew_kernel(m: Tensor) -> Tensor:  # (c, c, k1, k2), odd k → same
    """½(M − adjoint of M), channels swapped and taps flipped: a skew operator, circular or zero padded."""
    return (m - m.transpose(0, 1).flip(2, 3)) / 2


def unfoldings(kernel: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # (co, ci, k1, k2) → four matrices
    """The kernel as a matrix in four ways: co·k1 × ci·k2, co·k2 × ci·k1, co·k1·k2 × ci and co × ci·k1·k2."""
    co, ci, k1, k2 = kernel.shape
    return (
        kernel.permute(0, 2, 1, 3).reshape(co * k1, ci * k2),
        kernel.permute(0, 3, 1, 2).reshape(co * k2, ci * k1),
        kernel.permute(0, 2, 3, 1).reshape(co * k1 * k2, ci),
        kernel.reshape(co, ci * k1 * k2),
    )


def fantastic_four(conv_filter: Tensor, num_iters: int | None = None) -> Tensor:  # (co, ci, k1, k2) → scalar
    """Upper bound √(k1·k2) · min ‖unfolding‖ on the norm of a convolution, over its four `unfoldings`.

    A certificate for any image size, circular or zero padded: the matrix norms are exact, by SVD. With `num_iters` they
    are instead estimated from below by that many power iterations, as first published.

    >>> fantastic_four(torch.eye(4)[..., None, None])
    tensor(1.)
    """
    matrices = unfoldings(conv_filter)
    if num_iters is None:
        norms = torch.stack([torch.linalg.matrix_norm(matrix, ord=2) for matrix in matrices])
    else:
        require_positive(num_iters=num_iters)
        norms = torch.cat(
            [MatrixPowerIteration(matrix[None], num_iters).eval().of(matrix[None]) for matrix in matrices]
        )
    return math.sqrt(conv_filter.shape[2] * conv_filter.shape[3]) * norms.min()


def soc_series(
    x: Tensor,  # (batch, c, h, w)
    kernel: Tensor,  # (c, c, k1, k2), skew, odd k
    terms: int,
    padding_mode: str = "zeros",
) -> Tensor:  # (batch, c, h, w)
    """Implicit exponential Σ_{i ≤ terms} Kⁱx / i!, one convolution per term.

    For a skew K the full series is orthogonal, with zero as well as circular padding: cropping preserves skewness.

    >>> kernel = skew_kernel(torch.randn(3, 3, 3, 3)) / 10
    >>> x = torch.randn(1, 3, 5, 5)
    >>> torch.allclose(soc_series(x, kernel, 12).norm(), x.norm())
    True
    """
    v, h = kernel.shape[2] // 2, kernel.shape[3] // 2
    mode = "constant" if padding_mode == "zeros" else padding_mode
    total = term = x
    for i in range(1, terms + 1):
        term = F.conv2d(F.pad(term, (h, h, v, v), mode=mode), kernel) / i
        total = total + term
    return total


class SOC(nn.Module):
    """Exponential of a skew convolution on c = max(in, out) channels: inputs are zero-filled, or outputs are cut.

    Paper: Singla & Feizi, "Skew Orthogonal Convolutions", ICML 2021.

    Guarantee (3 × 3, power iterations near their limit): in evaluation, with 12 terms, no singular value exceeds 1 and
    none is below 1 − 1e-5, with zero or circular padding.

    Kept from the original: K is divided by the smallest spectral norm of the four unfoldings and multiplied by
    `correction`, without the √(k1·k2) of the bound. So only ‖K‖ ≤ correction·k holds, 2.1 for 3 × 3 (1.2 to 1.8 seen).
    Twelve terms do not expand for ‖K‖ ≤ 3.38, which covers 3 × 3; the five used in training expand by up to 0.5 % and
    shrink by up to 2 % at ‖K‖ = 2.1. `fantastic_four` is the sound bound.
    The spectral norms are power-iteration estimates from below, advanced by `update_iters` steps in every
    `update_freq`-th training call. Rare updates lag behind the optimizer: with `update_freq=200` and 190 steps of Adam,
    ‖K‖ reached 3.6, and the singular values in evaluation reached 1 + 4e-6 and 1 − 1e-4.
    Even kernels are refused: their adjoint is off by half a pixel, and no kernel of that size is skew. Stride is a
    pixel-unshuffle before a convolution of the same kernel size on in·stride² channels.

    >>> layer = SOC(3, 8).eval()
    >>> x = torch.randn(1, 3, 6, 6)
    >>> torch.allclose(layer(x).norm(), x.norm(), rtol=1e-4)
    True
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 3,
        stride: int = 1,
        padding: int | str | None = None,
        bias: bool = True,
        train_terms: int = 5,
        eval_terms: int = 12,
        init_iters: int = 50,
        update_iters: int = 1,
        update_freq: int = 200,
        correction: float = 0.7,
        padding_mode: str = "zeros",
    ) -> None:
        super().__init__()
        require_positive(in_channels=in_channels, out_channels=out_channels, kernel_size=kernel_size, stride=stride)
        require_positive(train_terms=train_terms, eval_terms=eval_terms, init_iters=init_iters)
        require_positive(update_iters=update_iters, update_freq=update_freq)
        if kernel_size % 2 == 0:
            raise GeometryError(f"SOC: only kernels of odd size can be skew, got {kernel_size}. Use {kernel_size + 1}.")
        require_same_padding("SOC", kernel_size, padding)
        if padding_mode not in ("zeros", "circular"):
            raise ParameterError(f"SOC: padding_mode must be 'zeros' or 'circular', got {padding_mode!r}.")
        if not correction > 0:
            raise ParameterError(f"SOC: correction must be positive, got {correction}. The paper uses 0.7.")
        self.in_channels, self.out_channels = in_channels * stride**2, out_channels
        self.kernel_size, self.stride, self.padding_mode = kernel_size, stride, padding_mode
        self.train_terms, self.eval_terms, self.correction = train_terms, eval_terms, correction
        c = max(self.in_channels, out_channels)
        self.weight = nn.Parameter(torch.randn(c, c, kernel_size, kernel_size) / math.sqrt(c))
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None
        self.norms = nn.ModuleList(
            MatrixPowerIteration(matrix[None], init_iters, update_iters, every=update_freq)
            for matrix in unfoldings(skew_kernel(self.weight))
        )

    def kernel(self) -> Tensor:  # (c, c, k, k)
        """The skew kernel, scaled as published."""
        skew = skew_kernel(self.weight)
        norms = [norm.of(matrix[None]) for norm, matrix in zip(self.norms, unfoldings(skew), strict=True)]  # type: ignore[operator]
        return self.correction * skew / torch.cat(norms).min().clamp_min(torch.finfo(skew.dtype).tiny)

    def forward(self, x: Tensor) -> Tensor:
        """The truncated exponential of a batch of images."""
        x = downsample(x, self.stride)
        x = F.pad(x, (0, 0, 0, 0, 0, max(self.out_channels - self.in_channels, 0)))
        terms = self.train_terms if self.training else self.eval_terms
        return add_bias(soc_series(x, self.kernel(), terms, self.padding_mode)[:, : self.out_channels], self.bias)

    def extra_repr(self) -> str:
        """The geometry of the convolution on the unshuffled image, and the orders of the series."""
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"train_terms={self.train_terms}, eval_terms={self.eval_terms}"
        )
