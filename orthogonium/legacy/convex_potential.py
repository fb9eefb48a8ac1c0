"""CPL: convex potential layers with power iteration, as first published.

Laurent Meunier, Blaise Delattre, Alexandre Araujo, Alexandre Allauzen: "A Dynamical System Perspective for Lipschitz
Neural Networks", ICML 2022.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orthogonium.errors import ShapeError
from orthogonium.legacy._common import MatrixPowerIteration, PowerIteration, require_positive


def _step(norm: Tensor) -> Tensor:
    """2/‖W‖², finite for W = 0."""
    return 2 / (norm.square() + torch.finfo(norm.dtype).tiny)


class ConvexPotentialLayerLinear(nn.Module):
    """Gradient step x − (2/‖W‖²) Wᵀ ReLU(Wx + b) on a convex potential; W (cout, cin), so `cout` is the inner width.

    Paper: Meunier et al., "A Dynamical System Perspective for Lipschitz Neural Networks", ICML 2022.

    Guarantee: 1-Lipschitz up to the error of the power iteration. Kept from the original: it finds ‖W‖ from below, and
    an estimate ρ‖W‖ makes the layer (2/ρ² − 1)-Lipschitz. Evaluation runs `eval_niter` iterations, deterministically:
    at most 1 + 5e-4 over 24 small layers. Training runs `niter` per call, which keeps up with Adam at rate 1e-3 but
    lags at 1e-2 (ρ = 0.89, so 1.5-Lipschitz) and above (2.3 seen): certify in evaluation mode only.

    >>> ConvexPotentialLayerLinear(4, 16)(torch.randn(2, 4)).shape
    torch.Size([2, 4])
    """

    def __init__(self, cin: int, cout: int, niter: int = 1, eval_niter: int = 100) -> None:
        super().__init__()
        require_positive(cin=cin, cout=cout, niter=niter, eval_niter=eval_niter)
        self.weight = nn.Parameter(nn.init.kaiming_uniform_(torch.empty(cout, cin), a=math.sqrt(5)))
        self.bias = nn.Parameter(torch.zeros(cout))
        self.norm = MatrixPowerIteration(self.weight[None], steps=niter, eval_steps=eval_niter)

    def forward(self, x: Tensor) -> Tensor:
        """The block applied to a batch of vectors."""
        step = _step(self.norm.of(self.weight[None]))
        return x - step * F.relu(F.linear(x, self.weight, self.bias)) @ self.weight


class ConvexPotentialLayerConv(nn.Module):
    """Gradient step x − (2/‖W‖²) Wᵀ ReLU(Wx + b), W a zero-padded convolution from cin to cout (inner) channels.

    Paper: Meunier et al., "A Dynamical System Perspective for Lipschitz Neural Networks", ICML 2022.

    Guarantee and what is kept from the original: as for `ConvexPotentialLayerLinear`. The power iteration runs on
    images of side `input_size`; smaller ones have a smaller norm and are covered, larger ones are refused. The leading
    singular values of a convolution lie close together, so it converges slowly: up to 1 + 1.6e-2 in evaluation.

    >>> ConvexPotentialLayerConv(3, 8, input_size=6)(torch.randn(1, 3, 6, 6)).shape
    torch.Size([1, 3, 6, 6])
    """

    def __init__(
        self, cin: int, cout: int, kernel_size: int = 3, input_size: int = 32, niter: int = 1, eval_niter: int = 100
    ) -> None:
        super().__init__()
        require_positive(cin=cin, cout=cout, kernel_size=kernel_size, input_size=input_size)
        require_positive(niter=niter, eval_niter=eval_niter)
        self.padding = kernel_size // 2
        self.weight = nn.Parameter(torch.empty(cout, cin, kernel_size, kernel_size))
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        self.bias = nn.Parameter(torch.zeros(cout))
        self.norm = PowerIteration(torch.randn(1, cin, input_size, input_size), steps=niter, eval_steps=eval_niter)
        self.norm.v = self.norm.iterate(self._conv, self._adjoint, 50)

    def _conv(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, padding=self.padding)

    def _adjoint(self, z: Tensor) -> Tensor:
        return F.conv_transpose2d(z, self.weight, padding=self.padding)

    def forward(self, x: Tensor) -> Tensor:
        """The block applied to a batch of images."""
        if max(x.shape[-2:]) > self.norm.v.shape[-1]:
            raise ShapeError(
                f"ConvexPotentialLayerConv: images {tuple(x.shape[-2:])} exceed input_size {self.norm.v.shape[-1]}, on "
                "which the norm is estimated; theirs may be larger. Raise input_size."
            )
        step = _step(self.norm(self._conv, self._adjoint))
        return x - step * self._adjoint(F.relu(self._conv(x) + self.bias.view(-1, 1, 1)))
