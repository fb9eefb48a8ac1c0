import pytest
import torch

from orthogonium.spectral.eigenvalue import certified_norm, largest_eigenvalue

D = torch.float64


def positive(groups, count, n, dtype):
    x = torch.randn(groups, count, n, n + 2, dtype=dtype)
    return x @ x.mH


@pytest.mark.parametrize("dtype", [D, torch.complex128])
@pytest.mark.parametrize("n", [1, 3, 80])
def test_certified_sharp_and_found_where_it_is(dtype, n):
    matrices = positive(3, 12, n, dtype)
    exact = torch.linalg.eigvalsh(matrices)[..., -1]
    for pieces in ([matrices], matrices.split(5, 1)):
        bound, where = largest_eigenvalue(pieces)
        assert (bound >= exact.amax(1)).all()
        assert (bound <= exact.amax(1) * (1 + 1e-5)).all()
        assert torch.equal(where, exact.argmax(1))


def test_a_wrong_ritz_value_is_found_out(monkeypatch):
    monkeypatch.setattr("orthogonium.spectral.eigenvalue._ritz_value", lambda m: 0.5 * torch.linalg.eigvalsh(m)[:, -1])
    matrices = positive(2, 5, 4, D)
    bound, _ = largest_eigenvalue([matrices])
    assert (bound >= torch.linalg.eigvalsh(matrices)[..., -1].amax(1)).all()


@pytest.mark.parametrize("n", [5, 100])
def test_degenerate_matrices(n):
    eye = torch.eye(n, dtype=D)
    matrices = torch.stack([eye, torch.zeros_like(eye), 1e-30 * eye, torch.ones_like(eye)])[:, None]
    bound, _ = largest_eigenvalue([matrices])
    exact = torch.tensor([1.0, 0.0, 1e-30, n], dtype=D)
    assert (bound >= exact).all()
    assert (bound <= exact * (1 + 1e-5)).all()


def test_norms_of_matrices():
    matrices = torch.randn(20, 7, 4, dtype=D)
    exact = torch.linalg.matrix_norm(matrices, 2)
    for m in (matrices, matrices.transpose(1, 2), matrices.float()):
        found = certified_norm(m)
        assert (found >= torch.linalg.matrix_norm(m.double(), 2)).all()
        torch.testing.assert_close(found, exact, rtol=2e-6, atol=0)
    assert torch.autograd.gradcheck(certified_norm, (matrices[:3].clone().requires_grad_(),), rtol=1e-3)
