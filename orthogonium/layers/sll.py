"""Dense SDP-based Lipschitz residual blocks (SLL).

Araujo, Havens, Delattre, Allauzen, Hu (2023), "A unified algebraic perspective on Lipschitz neural networks".
"""

from __future__ import annotations

import torch

from orthogonium.kernels import ConvGeometry
from orthogonium.layers.block import DenseBlock, check_sizes
from orthogonium.layers.slopes import Activation
from orthogonium.linalg import DEFAULT_ORTHO_PARAMS, OrthoParams
from orthogonium.methods.aoc import OrthogonalKernel
from orthogonium.methods.kernel import Device
from orthogonium.methods.sll import SDPKernels
from orthogonium.methods.sll_aoc import FusedKernels


class SDPBasedLipschitzDense(DenseBlock):
    """1-Lipschitz residual dense block `x − 2WᵀT⁻¹σ(Wx + b)`, `T_i = Σ_j |WWᵀ|_ij e^(q_j − q_i)`.

    With `out_features ≠ in_features` an orthogonal matrix P follows, `Px − 2PWᵀT⁻¹σ(Wx + b)`, composed once per step.

    Guarantee: 1-Lipschitz (1e-5 in float32).

    Args:
        in_features: size of an input.
        out_features: size of an output.
        inner_dim: number of inner units.
        bias: whether the inner units have a bias.
        activation: an activation with slopes in [0, 1], by name or as a module.
        niter: number of steps that tighten T (one in the original).
        ortho_params: how P is made orthogonal.
        lipschitz: Lipschitz constant of the layer, any positive number; multiplies its output.

    >>> SDPBasedLipschitzDense(8, 8, inner_dim=32)(torch.randn(5, 8)).shape
    torch.Size([5, 8])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        inner_dim: int,
        bias: bool = True,
        activation: Activation = "relu",
        niter: int = 1,
        ortho_params: OrthoParams = DEFAULT_ORTHO_PARAMS,
        device: Device = None,
        dtype: torch.dtype | None = None,
        lipschitz: float = 1.0,
    ) -> None:
        super().__init__(activation)
        check_sizes(type(self).__name__, in_features=in_features, out_features=out_features, inner_dim=inner_dim)
        self.in_features, self.out_features, self.inner_dim = in_features, out_features, inner_dim
        kernels = SDPKernels(ConvGeometry.of(1, in_features, inner_dim, 1), niter)
        if out_features == in_features:
            self.constrain_weight(kernels, bias, device, dtype, lipschitz)
        else:
            post = OrthogonalKernel(ConvGeometry.of(1, in_features, out_features, 1), ortho_params)
            self.constrain_weight(FusedKernels(kernels, None, post), bias, device, dtype, lipschitz)

    def size_repr(self) -> str:
        """Sizes, for printing."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, inner_dim={self.inner_dim}, "
            f"bias={self.bias is not None}"
        )
