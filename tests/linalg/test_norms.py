"""Power iteration from below, Gram bound from above, against the SVD."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orthogonium.errors import ParameterError
from orthogonium.linalg import (
    BatchedGramNormalization,
    BatchedIdentity,
    BatchedPowerIteration,
    L2Normalize,
    spectral_norm_bound,
    spectral_norm_estimate,
    spectral_normalize,
    unit_norm,
)
from tests.jacobians import assert_same_in_both_directions

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])


def norm(w):
    return torch.linalg.matrix_norm(w.detach().double(), 2)


def structured(n, dtype):
    """Kinds of matrices on which a bound could fail."""
    gaussian = torch.randn(n, n, dtype=dtype)
    orthogonal = torch.linalg.qr(gaussian)[0]
    return torch.stack(
        [
            gaussian,
            orthogonal,
            torch.eye(n, dtype=dtype),
            torch.ones(n, n, dtype=dtype),
            gaussian[:, :1] @ gaussian[:1],
            torch.diag(torch.logspace(0, -30, n, dtype=dtype)),
            gaussian.sign(),
            torch.nn.functional.one_hot(torch.tensor(3), n).to(dtype).expand(n, n),
        ]
    )


@dtypes
@pytest.mark.parametrize("n", [4, 33, 257])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e25])
@pytest.mark.parametrize("steps", [0, 3, 5, 8])
def test_gram_bound_is_an_upper_bound(n, dtype, scale, steps):
    w = structured(n, dtype) * scale
    bound, true = spectral_norm_bound(w, steps)[..., 0, 0].double(), norm(w)
    assert (bound >= true).all()
    terms = n * n if dtype == torch.float64 else n  # float32 is computed in float64
    slack = 1 + (terms + 40) * torch.finfo(dtype).eps
    assert (bound <= true * n ** (2.0 ** -(steps + 2)) * slack**2).all()


@dtypes
def test_spectral_normalization_never_exceeds_one(dtype):
    for _ in range(20):
        w = structured(16, dtype)
        assert norm(spectral_normalize(w)).max() <= 1 + 1e-6
        assert norm(spectral_normalize(w)).min() >= 0.95


def test_zero_stays_zero():
    w = torch.zeros(2, 3, 4, requires_grad=True)
    for normalize in (spectral_normalize, BatchedPowerIteration((2, 3, 4)), unit_norm):
        w.grad = None
        out = normalize(w)
        out.sum().backward()
        assert (out == 0).all() and torch.isfinite(w.grad).all()


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 12),
    columns=st.integers(1, 12),
    steps=st.integers(0, 6),
    exponent=st.integers(-30, 30),
    seed=st.integers(0, 2**16),
)
def test_gram_bound_of_any_matrix(rows, columns, steps, exponent, seed):
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(rows, columns, generator=generator) * 10.0**exponent
    assert spectral_norm_bound(w, steps).item() >= norm(w).item()


@dtypes
@pytest.mark.parametrize("shape", [(5, 5), (3, 7), (7, 3), (1, 4), (4, 1)], ids=str)
def test_power_iteration_comes_from_below_and_converges(dtype, shape):
    w = torch.randn(4, *shape, dtype=dtype)
    previous = torch.zeros(4, dtype=torch.float64)
    for steps in (0, 1, 3, 10, 200):
        estimate = spectral_norm_estimate(w, steps)[..., 0, 0].double()
        assert (estimate <= norm(w) * (1 + 1e-6)).all()
        assert (estimate >= previous * (1 - 1e-6)).all()
        previous = estimate
    torch.testing.assert_close(previous, norm(w), rtol=1e-3, atol=0)


def test_power_iteration_count_runs_and_keeps_no_state():
    w = torch.randn(30, 30)
    few, many = BatchedPowerIteration((30, 30), power_it_niter=1), BatchedPowerIteration((30, 30), power_it_niter=50)
    assert not torch.equal(few(w), many(w))
    assert torch.equal(few(w), few(w))
    assert not list(few.parameters()) and not list(few.buffers())


def test_power_iteration_has_fixed_vectors_in_both_directions():
    assert_same_in_both_directions(BatchedPowerIteration((5, 6), power_it_niter=1), torch.randn(5, 6).double())


def test_gradients():
    w = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(spectral_norm_bound, w)
    assert torch.autograd.gradcheck(spectral_normalize, w)
    assert torch.autograd.gradcheck(lambda x: unit_norm(x, -1), w)
    # u, v are at a stationary point once converged, so that the gradient with u, v fixed is the true one
    assert torch.autograd.gradcheck(lambda x: spectral_norm_estimate(x, 200), w)


@pytest.mark.parametrize("dim", [None, -1, 0, (0, 2)])
@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e25])
def test_unit_norm(dim, scale):
    w = scale * torch.randn(3, 4, 5)
    out = L2Normalize(dtype=torch.float64, dim=dim)(w)
    assert out.dtype == w.dtype
    expected = w.double() / w.double().norm(dim=dim, keepdim=True)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-7)


def test_identity_and_bad_arguments():
    w = torch.randn(3, 3)
    assert BatchedIdentity((3, 3))(w) is w
    with pytest.raises(ParameterError, match="niter"):
        BatchedGramNormalization((3, 3), niter=-1)
    with pytest.raises(ParameterError, match="power_it_niter"):
        BatchedPowerIteration((3, 3), power_it_niter=-2)
