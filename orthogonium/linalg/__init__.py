"""Matrix to orthogonal matrix, one family of algorithms per file, batched over leading dimensions."""

from orthogonium.linalg.newton_schulz import (
    BatchedBjorckOrthogonalization,
    bjorck,
    cubic_step,
)
from orthogonium.linalg.norms import (
    BatchedGramNormalization,
    BatchedIdentity,
    BatchedPowerIteration,
    L2Normalize,
    spectral_norm_bound,
    spectral_norm_estimate,
    spectral_normalize,
    unit_norm,
)
from orthogonium.linalg.params import (
    BJORCK_ORTHO_PARAMS,
    BJORCK_PASS_THROUGH_ORTHO_PARAMS,
    CAYLEY_ORTHO_PARAMS,
    CHOLESKY_ORTHO_PARAMS,
    CHOLESKY_STABLE_ORTHO_PARAMS,
    DEFAULT_ORTHO_PARAMS,
    DEFAULT_TEST_ORTHO_PARAMS,
    EXP_ORTHO_PARAMS,
    POLAR_ORTHO_PARAMS,
    QR_ORTHO_PARAMS,
    OrthoParams,
    check_ortho_params,
)
from orthogonium.linalg.polar import BatchedPolarOrthogonalization, polar
from orthogonium.linalg.random import random_orthogonal
from orthogonium.linalg.rotations import (
    BatchedCayleyOrthogonalization,
    BatchedExponentialOrthogonalization,
    cayley,
    exponential,
)
from orthogonium.linalg.triangular import (
    BatchedCholeskyOrthogonalization,
    BatchedQROrthogonalization,
    cholesky,
    qr,
)

__all__ = [
    "BJORCK_ORTHO_PARAMS",
    "BJORCK_PASS_THROUGH_ORTHO_PARAMS",
    "CAYLEY_ORTHO_PARAMS",
    "CHOLESKY_ORTHO_PARAMS",
    "CHOLESKY_STABLE_ORTHO_PARAMS",
    "DEFAULT_ORTHO_PARAMS",
    "DEFAULT_TEST_ORTHO_PARAMS",
    "EXP_ORTHO_PARAMS",
    "POLAR_ORTHO_PARAMS",
    "QR_ORTHO_PARAMS",
    "BatchedBjorckOrthogonalization",
    "BatchedCayleyOrthogonalization",
    "BatchedCholeskyOrthogonalization",
    "BatchedExponentialOrthogonalization",
    "BatchedGramNormalization",
    "BatchedIdentity",
    "BatchedPolarOrthogonalization",
    "BatchedPowerIteration",
    "BatchedQROrthogonalization",
    "L2Normalize",
    "OrthoParams",
    "bjorck",
    "cayley",
    "check_ortho_params",
    "cholesky",
    "cubic_step",
    "exponential",
    "spectral_norm_bound",
    "polar",
    "spectral_norm_estimate",
    "qr",
    "random_orthogonal",
    "spectral_normalize",
    "unit_norm",
]
