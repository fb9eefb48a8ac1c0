"""`OrthoParams`: how a layer makes its matrices orthogonal, and the presets.

Tolerances are deviations of singular values from 1 for full-rank input, measured over shapes up to 512×512.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from orthogonium.errors import ParameterError
from orthogonium.linalg.matrix_map import MatrixMap
from orthogonium.linalg.newton_schulz import BatchedBjorckOrthogonalization
from orthogonium.linalg.norms import BatchedIdentity, BatchedPowerIteration
from orthogonium.linalg.polar import BatchedPolarOrthogonalization
from orthogonium.linalg.rotations import BatchedCayleyOrthogonalization, BatchedExponentialOrthogonalization
from orthogonium.linalg.triangular import BatchedCholeskyOrthogonalization, BatchedQROrthogonalization

Factory = Callable[..., nn.Module]


@dataclass(frozen=True)
class OrthoParams:
    """Two factories, called with `weight_shape=` (batch…, rows, columns), that return an `nn.Module` on such matrices.

    First the spectral normalizer scales the raw matrix, then the orthogonalizer makes it orthogonal. The default is
    stable Cholesky orthonormalization, which needs no normalizer: 1e-6 in float32, 1e-14 in float64.
    """

    spectral_normalizer: Factory = BatchedIdentity
    orthogonalizer: Factory = partial(BatchedCholeskyOrthogonalization, stable=True)

    def __post_init__(self) -> None:
        if not (callable(self.spectral_normalizer) and callable(self.orthogonalizer)):
            raise ParameterError(
                f"OrthoParams takes two factories, called with weight_shape=…, got {self.spectral_normalizer!r} and "
                f"{self.orthogonalizer!r}. See the presets of orthogonium.reparametrizers."
            )

    def build(self, weight_shape: tuple[int, ...]) -> nn.Module:
        """The two modules for matrices of one shape, in series; a normalizer that does nothing is left out."""
        normalizer = self.spectral_normalizer(weight_shape=weight_shape)
        orthogonalizer = self.orthogonalizer(weight_shape=weight_shape)
        if type(normalizer) is BatchedIdentity:
            return orthogonalizer
        return Orthogonalization(normalizer, orthogonalizer)


def check_ortho_params(ortho_params: object) -> None:
    """Reject what is not an `OrthoParams`."""
    if not isinstance(ortho_params, OrthoParams):
        raise ParameterError(
            f"ortho_params must be an OrthoParams, got {ortho_params!r}. See the presets of "
            "orthogonium.reparametrizers, e.g. QR_ORTHO_PARAMS."
        )


class Orthogonalization(MatrixMap):
    """Spectral normalizer, then orthogonalizer."""

    batched = True

    def __init__(self, normalizer: nn.Module, orthogonalizer: nn.Module) -> None:
        super().__init__()
        self.normalizer, self.orthogonalizer = normalizer, orthogonalizer

    def forward(self, w: Tensor) -> Tensor:
        """Orthogonal matrices from raw ones."""
        return self.orthogonalizer(self.normalizer(w))


DEFAULT_ORTHO_PARAMS = OrthoParams()
"""Cholesky passes, as many as it takes: 1e-6 in float32, 1e-14 in float64, condition numbers up to 1e6 (1e14)."""

DEFAULT_TEST_ORTHO_PARAMS = OrthoParams()
"""The default: it is exact enough for tests as it is."""

POLAR_ORTHO_PARAMS = OrthoParams(orthogonalizer=BatchedPolarOrthogonalization)
"""The nearest orthogonal matrix: 1e-6 in float32, 1e-12 in float64, condition numbers up to about 1e6."""

BJORCK_ORTHO_PARAMS = OrthoParams(
    spectral_normalizer=partial(BatchedPowerIteration, power_it_niter=3),
    orthogonalizer=partial(BatchedBjorckOrthogonalization, beta=0.5, niters=25),
)
"""Björck with 25 steps: 1e-5 in float32 for condition numbers up to about 1e3."""

BJORCK_PASS_THROUGH_ORTHO_PARAMS = OrthoParams(
    spectral_normalizer=partial(BatchedPowerIteration, power_it_niter=3),
    orthogonalizer=partial(BatchedBjorckOrthogonalization, beta=0.5, niters=12, pass_through=True),
)
"""Twelve Björck steps with the gradient of the identity: 1e-5 in float32 for condition numbers up to 30 only."""

EXP_ORTHO_PARAMS = OrthoParams(orthogonalizer=BatchedExponentialOrthogonalization)
"""Exponential map: 2e-6 in float32, 1e-14 in float64, every input; rotations only."""

CAYLEY_ORTHO_PARAMS = OrthoParams(orthogonalizer=BatchedCayleyOrthogonalization)
"""Cayley transform: 1e-6 in float32, 1e-14 in float64, every input; no eigenvalue −1."""

QR_ORTHO_PARAMS = OrthoParams(orthogonalizer=BatchedQROrthogonalization)
"""Householder QR: 1e-6 in float32, 1e-14 in float64, every input."""

CHOLESKY_ORTHO_PARAMS = OrthoParams(orthogonalizer=partial(BatchedCholeskyOrthogonalization, stable=False))
"""One Cholesky pass: an error of about κ²·1e-7 in float32 for condition number κ, so 1e-5 for κ ≤ 10."""

CHOLESKY_STABLE_ORTHO_PARAMS = OrthoParams()
"""The default: 1e-6 in float32, 1e-14 in float64."""
