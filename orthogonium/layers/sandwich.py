"""Dense sandwich layers and the network made of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from orthogonium.kernels import ConvGeometry
from orthogonium.layers.block import DenseBlock, check_sizes
from orthogonium.layers.guarantee import Guarantee, check_constant
from orthogonium.layers.linear import OrthoLinear
from orthogonium.layers.slopes import Activation, is_homogeneous
from orthogonium.linalg import DEFAULT_ORTHO_PARAMS, OrthoParams
from orthogonium.methods.kernel import Device
from orthogonium.methods.sandwich import SandwichKernels


class SandwichLinear(DenseBlock):
    """1-Lipschitz dense layer with its activation inside: `√2 AᵀΨσ(√2 Ψ⁻¹Bx + b)`, `AAᵀ + BBᵀ = I`, `Ψ = diag(e^d)`.

    Wang, Manchester (2023), "Direct parameterization of Lipschitz-bounded deep networks".

    Guarantee: 1-Lipschitz (1e-5 in float32).

    Args:
        in_features: size of an input.
        out_features: size of an output, and number of inner units.
        bias: whether the inner units have a bias. Without one, Ψ commutes with ReLU, and is then left out.
        activation: an activation with slopes in [0, 1], by name or as a module.
        ortho_params: how `[A B]` is made orthogonal.
        lipschitz: Lipschitz constant of the layer, any positive number; multiplies its output.

    >>> layer = SandwichLinear(3, 8)
    >>> x, y = torch.randn(2, 5, 3)
    >>> bool((layer(x) - layer(y)).norm() <= (x - y).norm())
    True
    """

    residual = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        activation: Activation = "relu",
        ortho_params: OrthoParams = DEFAULT_ORTHO_PARAMS,
        device: Device = None,
        dtype: torch.dtype | None = None,
        lipschitz: float = 1.0,
    ) -> None:
        super().__init__(activation)
        check_sizes(type(self).__name__, in_features=in_features, out_features=out_features)
        self.in_features, self.out_features = in_features, out_features
        geometry = ConvGeometry.of(1, in_features, out_features, 1)
        kernels = SandwichKernels(geometry, ortho_params, scaled=bias or not is_homogeneous(self.activation))
        self.constrain_weight(kernels, bias, device, dtype, lipschitz)

    def size_repr(self) -> str:
        """Sizes, for printing."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class LBDN(nn.Module):
    """Lipschitz-bounded dense network: sandwich layers and an orthogonal head, `√γ` before and after them.

    Wang, Manchester (2023), "Direct parameterization of Lipschitz-bounded deep networks".

    Guarantee: `lipschitz`-Lipschitz (γ), for the network as a whole.

    Args:
        in_features: size of an input.
        hidden_features: number of outputs of each sandwich layer.
        out_features: size of an output.
        lipschitz: γ > 0.
        activation: an activation with slopes in [0, 1], by name or as a module.
        ortho_params: how matrices are made orthogonal.

    >>> net = LBDN(2, [16, 16], 3, lipschitz=10.0)
    >>> x, y = torch.randn(2, 5, 2)
    >>> bool((net(x) - net(y)).norm() <= 10 * (x - y).norm())
    True
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: Sequence[int],
        out_features: int,
        lipschitz: float = 1.0,
        activation: Activation = "relu",
        ortho_params: OrthoParams = DEFAULT_ORTHO_PARAMS,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        widths = [in_features, *hidden_features]
        layers = [
            SandwichLinear(p, q, activation=activation, ortho_params=ortho_params, device=device, dtype=dtype)
            for p, q in zip(widths[:-1], widths[1:], strict=True)
        ]
        head = OrthoLinear(widths[-1], out_features, True, ortho_params, device, dtype)
        self.layers = nn.Sequential(*layers, head)
        self.lipschitz = check_constant(lipschitz, "LBDN")

    @property
    def guarantee(self) -> Guarantee:
        """γ-Lipschitz."""
        return Guarantee("lipschitz", constant=self.lipschitz)

    def forward(self, input: Tensor) -> Tensor:
        """Apply the network to vectors."""
        return self.layers(input * self.lipschitz**0.5) * self.lipschitz**0.5
