"""Constrained dense layers: real `nn.Linear`s whose `weight` is parametrized."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orthogonium.errors import ParameterError
from orthogonium.kernels import ConvGeometry
from orthogonium.kernels.dominance import check_steps
from orthogonium.layers.guarantee import Guarantee
from orthogonium.layers.inversion import Inverse, InversionError
from orthogonium.layers.parametrization import Constrained, Source, constrain
from orthogonium.linalg import DEFAULT_ORTHO_PARAMS, OrthoParams
from orthogonium.linalg.in_turn import apply_orthonormal_rows, are_few, needs_no_rows
from orthogonium.methods.aol import AlmostOrthogonalKernel
from orthogonium.methods.batches import kind
from orthogonium.methods.kernel import Device
from orthogonium.methods.rko import OrthogonalMatrix
from orthogonium.methods.spectral import UnitBall, UnitRows

__path__: list[str] = []  # Note [Published paths] of `published/paths.py`

_FEWEST_NUMBERS = 2**16  # of a weight: with fewer, operators cost more than their arithmetic


class _ConstrainedLinear(Constrained, nn.Linear):
    def __init__(
        self, in_features: int, out_features: int, bias: bool, device: Device, dtype: torch.dtype | None
    ) -> None:
        if in_features < 1 or out_features < 1:
            raise ParameterError(
                f"{type(self).__name__} needs at least one input and one output, got {in_features}→{out_features}."
            )
        super().__init__(in_features, out_features, bias, device, dtype)

    @property
    def guarantee(self) -> Guarantee:
        """No singular value exceeds `lipschitz`."""
        return Guarantee("lipschitz", self.lipschitz)

    def inverse(self) -> Inverse:
        """The module that undoes this one, `x = Wᵀ(y − b) / lipschitz²`, with the same parameters. See `inverse`."""
        name = type(self).__name__
        if self.guarantee.kind != "orthogonal":
            raise InversionError(f"{name} promises no smallest singular value. Use OrthoLinear.")
        if self.out_features < self.in_features:
            raise InversionError(
                f"{name}: {self.out_features} outputs do not determine {self.in_features} inputs. Use at least as many."
            )
        return Inverse(self, both_sides=self.out_features == self.in_features)

    @property
    def inverse_constant(self) -> float | None:
        """The singular values of the inverse are the reciprocals of those of the layer."""
        return 1 / self.lipschitz if self.guarantee.kind == "orthogonal" else None

    def undo(self, y: Tensor) -> Tensor:
        """The inputs that give these outputs."""
        centred = y if self.bias is None else y - self.bias
        return F.linear(centred, self.weight.mT) / self.lipschitz**2

    def singular_values(self) -> tuple[float, float, float]:
        """`(σ_min, σ_max, stable rank)` of the weight by SVD in float64.

        The stable rank `‖W‖_F² / ‖W‖₂²` is a fraction of the full rank: 1 for an orthogonal matrix.
        """
        with torch.no_grad():
            sigma = torch.linalg.svdvals(self.weight.double())
        stable_rank = (sigma / sigma[0]).square().mean().item() if sigma[0] > 0 else 0.0
        return sigma[-1].item(), sigma[0].item(), stable_rank


class OrthoLinear(_ConstrainedLinear):
    """Dense layer with orthonormal rows (columns if it has more outputs than inputs): all singular values are 1.

    Guarantee: orthogonal; singular values deviate from 1 as stated by the preset, 1e-6 in float32 for the default.

    Args:
        in_features: size of an input.
        out_features: size of an output.
        bias: whether to add a learned bias.
        ortho_params: how the raw matrix is made orthogonal (`orthogonium.reparametrizers` has the presets).
        lipschitz: Lipschitz constant of the layer, any positive number; multiplies its weight.

    >>> layer = OrthoLinear(8, 4)
    >>> x = torch.randn(2, 8)
    >>> layer(x).shape
    torch.Size([2, 4])
    >>> sigma_min, sigma_max, stable_rank = layer.singular_values()
    >>> all(abs(value - 1) < 1e-5 for value in (sigma_min, sigma_max, stable_rank))
    True
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        ortho_params: OrthoParams = DEFAULT_ORTHO_PARAMS,
        device: Device = None,
        dtype: torch.dtype | None = None,
        lipschitz: float = 1.0,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        constrain(self, OrthogonalMatrix((out_features, in_features), ortho_params), lipschitz)

    def forward(self, input: Tensor) -> Tensor:
        """`xWᵀ + b`, for wide layers in training without building W: Note [Without W] of `linalg/in_turn.py`."""
        source = self.source()
        if not self._pays_in_turn(input, source):
            return F.linear(input, self.weight_of(source), self.bias)
        assert source is not None
        y = apply_orthonormal_rows(input.reshape(-1, self.in_features), source[1][0])
        y = y.reshape(*input.shape[:-1], self.out_features)
        y = y if self.lipschitz == 1 else self.lipschitz * y
        return y if self.bias is None else y + self.bias

    def _pays_in_turn(self, x: Tensor, source: Source | None) -> bool:
        if source is None or self.in_features < 4 * self.out_features:
            return False
        few = are_few(x.numel() // self.in_features, self.in_features)
        if self.in_features * self.out_features < _FEWEST_NUMBERS or not few:
            return False
        constraint, raw = source[0], source[1][0]
        kernel: Any = constraint.kernel
        if not needs_no_rows(kernel.orthogonalize, x, raw) or kind(kernel) is None:
            return False
        if not constraint.must_build(source[1]):
            return False
        # What torch refuses goes through the weight, so torch raises its own error.
        tensors = (raw, x) if self.bias is None else (raw, x, self.bias)
        fits = x.dim() > 0 and x.shape[-1] == self.in_features and raw.dtype.itemsize >= 4
        return fits and len({(t.dtype, t.device) for t in tensors}) == 1

    @property
    def spectral_geometry(self) -> Callable[[], dict[str, Any]] | None:
        """Says that the layer applies its weight as it is, unless a subclass has its own forward."""
        return dict if type(self).forward is OrthoLinear.forward else None

    @property
    def guarantee(self) -> Guarantee:
        """All singular values are `lipschitz`."""
        return Guarantee("orthogonal", self.lipschitz, note="for raw parameters of full rank")


class UnitNormLinear(_ConstrainedLinear):
    """Dense layer whose rows have norm 1: each output is 1-Lipschitz by itself (a head for one-vs-all certificates).

    Guarantee: each output is 1-Lipschitz; the layer as a whole is `√out_features`-Lipschitz at worst.

    >>> UnitNormLinear(3, 10).weight.norm(dim=1).allclose(torch.ones(10))
    True
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        lipschitz: float = 1.0,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        constrain(self, UnitRows((out_features, in_features)), lipschitz)

    @property
    def guarantee(self) -> Guarantee:
        """Each output is `lipschitz`-Lipschitz."""
        return Guarantee("lipschitz", self.lipschitz, each_output=True)


class SpectralLinear(_ConstrainedLinear):
    """Dense layer with a spectral norm of at most 1, by a certified upper bound (no power iteration, no state).

    Guarantee: always 1-Lipschitz, with σ_max between `min(in, out)^(-2^-(niter+2))` and 1.

    >>> layer = SpectralLinear(5, 7)
    >>> layer.singular_values()[1] <= 1
    True
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        niter: int = 5,
        device: Device = None,
        dtype: torch.dtype | None = None,
        lipschitz: float = 1.0,
    ) -> None:
        check_steps(niter, "SpectralLinear", "Gram steps", least=0)
        super().__init__(in_features, out_features, bias, device, dtype)
        constrain(self, UnitBall((out_features, in_features), niter), lipschitz)


class AOLLinear(_ConstrainedLinear):
    """Dense layer whose outputs (or inputs, if there are fewer) are rescaled to make it 1-Lipschitz: AOL.

    With `G = W Wᵀ`, row i is divided by the root of `t_i = Σ_j |G_ij| e^(q_j − q_i)`; q is learned. More steps
    (`niter`) tighten the bound: see `AOLConv2d`.

    Guarantee: always 1-Lipschitz.

    >>> layer = AOLLinear(5, 7)
    >>> layer.singular_values()[1] <= 1
    True
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        niter: int = 1,
        device: Device = None,
        dtype: torch.dtype | None = None,
        lipschitz: float = 1.0,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        # A matrix is a kernel without axes.
        kernel = AlmostOrthogonalKernel(ConvGeometry.of(0, in_features, out_features, ()), niter)
        constrain(self, kernel, lipschitz)
