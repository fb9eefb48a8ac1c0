"""Dense convex potential layers with a certified step size."""

from __future__ import annotations

import torch

from orthogonium.kernels import ConvGeometry
from orthogonium.layers.argument_names import also_named
from orthogonium.layers.block import DenseBlock, check_sizes
from orthogonium.layers.slopes import Activation
from orthogonium.methods.cpl import PotentialKernels
from orthogonium.methods.kernel import Device


class CPLLinear(DenseBlock):
    """1-Lipschitz residual dense layer `x − (2/β) Wᵀσ(Wx + b)`, `β ≥ ‖W‖²`: a step of descent on a convex potential.

    Meunier, Delattre, Araujo, Allauzen (2022), "A dynamical system perspective for Lipschitz neural networks", with a
    certified bound (Gram iteration) where the paper uses power iteration.

    Guarantee: 1-Lipschitz (1e-5 in float32).

    Args:
        in_features: size of an input and of an output; also `features`.
        inner_features: number of inner units; `in_features` if None.
        bias: whether the inner units have a bias.
        activation: an activation with slopes in [0, 1], by name or as a module.
        niter: number of Gram steps that tighten β, at least 0.
        lipschitz: Lipschitz constant of the layer, any positive number; multiplies its output.

    >>> layer = CPLLinear(4, 16)
    >>> x, y = torch.randn(2, 5, 4)
    >>> bool((layer(x) - layer(y)).norm() <= (x - y).norm())
    True
    """

    @also_named(features="in_features")
    def __init__(
        self,
        in_features: int,
        inner_features: int | None = None,
        bias: bool = True,
        activation: Activation = "relu",
        niter: int = 5,
        device: Device = None,
        dtype: torch.dtype | None = None,
        lipschitz: float = 1.0,
    ) -> None:
        super().__init__(activation)
        inner = in_features if inner_features is None else inner_features
        check_sizes(type(self).__name__, in_features=in_features, inner_features=inner)
        self.in_features, self.out_features, self.inner_features = in_features, in_features, inner
        kernels = PotentialKernels(ConvGeometry.of(1, in_features, inner, 1), niter)
        self.constrain_weight(kernels, bias, device, dtype, lipschitz)

    def size_repr(self) -> str:
        """Sizes, for printing."""
        return f"features={self.in_features}, inner_features={self.inner_features}, bias={self.bias is not None}"
