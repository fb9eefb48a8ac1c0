"""The dominating diagonal against eigenvalues at many frequencies, and against the one published step."""

import pytest
import torch

from orthogonium.errors import ParameterError, ShapeError
from orthogonium.kernels import ConvGeometry
from orthogonium.kernels.dominance import gram_diagonal
from orthogonium.kernels.phases import stack_phases
from orthogonium.layers.linear import AOLLinear
from orthogonium.legacy.almost_orthogonal_conv import gram_row_sums
from orthogonium.methods.aol import AlmostOrthogonalKernel
from tests.oracle import singular_values


def symbols(kernel, points=24):
    return torch.fft.fft2(kernel.double(), s=(points, points)).permute(2, 3, 0, 1)


def test_one_step_is_the_published_one():
    kernel, q = torch.randn(5, 3, 3, 2).double(), torch.randn(5).double()
    torch.testing.assert_close(gram_diagonal(kernel, q), gram_row_sums(kernel, q.exp()), rtol=1e-12, atol=0)
    torch.testing.assert_close(gram_diagonal(kernel), gram_row_sums(kernel), rtol=1e-12, atol=0)


@pytest.mark.parametrize("niter", [1, 2, 3, 4])
@pytest.mark.parametrize("groups", [1, 2])
def test_it_dominates_at_every_frequency(niter, groups):
    for _ in range(5):
        kernel, q = torch.randn(6, 3, 3, 3), torch.randn(6)
        t = gram_diagonal(kernel, q, niter, groups)
        for part, bound in zip(kernel.chunk(groups), t.chunk(groups), strict=True):
            x = symbols(part)
            gap = torch.diag(bound.double()) - x @ x.mH
            assert torch.linalg.eigvalsh(gap).min() >= 0


def test_every_entry_shrinks_with_every_step():
    for _ in range(10):
        kernel, q = torch.randn(4, 4, 3, 3).double(), torch.randn(4).double()
        t = torch.stack([gram_diagonal(kernel, q, niter) for niter in (1, 2, 3, 4)])
        assert (t[1:] <= t[:-1] * (1 + 1e-12)).all()
        assert (t[-1] < 0.8 * t[0]).any()


def test_the_best_weights_are_the_perron_vector():
    """There all entries of t are equal, and no other weights have a smaller maximum."""
    kernel = torch.randn(4, 3, 2, 2).double()
    x = torch.nn.functional.conv2d(kernel, kernel, padding=1).abs().sum((2, 3))
    values, vectors = torch.linalg.eigh(x)
    t = gram_diagonal(kernel, vectors[:, -1].abs().log())
    torch.testing.assert_close(t, values[-1].expand(4), rtol=1e-9, atol=0)
    assert gram_diagonal(kernel, torch.randn(4).double()).max() > values[-1]


def test_weights_train_toward_the_perron_vector():
    kernel, q = torch.randn(4, 4, 3, 3).double(), torch.zeros(4).double().requires_grad_()
    start = gram_diagonal(kernel, q).max().item()
    optimizer = torch.optim.Adam([q], lr=0.02)
    for _ in range(100):
        optimizer.zero_grad()
        gram_diagonal(kernel, q).max().backward()
        optimizer.step()
    assert gram_diagonal(kernel, q).max() < start - 1e-3 * start


@pytest.mark.parametrize("geometry", [(2, 3, 1), (1, 5, 2), (3, 2, 2)])
@pytest.mark.parametrize("niter", [1, 2])
def test_gradients(geometry, niter):
    ci, co, s = geometry
    constraint = AlmostOrthogonalKernel(ConvGeometry.of(2, ci, co, 3, s), niter)
    raw = [torch.randn_like(p).requires_grad_() for p in constraint.initial(None, torch.float64)]
    assert len(raw) == 2
    assert torch.autograd.gradcheck(constraint.build, raw)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1.0, 1e15, 1e30])
def test_any_scale(scale, dtype):
    layer = AOLLinear(6, 4, dtype=dtype, niter=3)
    kernel, q = layer.parametrizations.weight.original0, layer.parametrizations.weight.original1
    expected = layer.weight.detach().clone()
    with torch.no_grad():
        kernel.mul_(scale)
    torch.testing.assert_close(layer.weight, expected)
    for spread in (3.0, 1e3, 1e30):
        with torch.no_grad():
            q.normal_().mul_(spread)
        layer.weight.square().sum().backward()
        assert torch.isfinite(kernel.grad).all() and torch.isfinite(q.grad).all()
        assert torch.linalg.matrix_norm(layer.weight.double(), 2) <= 1 + 1e-6


def test_zero_channels_stay_zero_with_finite_gradients():
    layer = AOLLinear(5, 4, niter=2)
    with torch.no_grad():
        layer.parametrizations.weight.original0[1] = 0
    layer.weight.sum().backward()
    assert (layer.weight[1] == 0).all()
    assert all(torch.isfinite(p.grad).all() for p in layer.parametrizations.parameters())
    with torch.no_grad():
        layer.parametrizations.weight.original0.zero_()
    assert (layer.weight == 0).all()


@pytest.mark.parametrize("shape", [(7, 4), (4, 7), (5, 5), (1, 3), (3, 1)])
def test_dense_layers(shape):
    for niter in (1, 2, 5):
        layer = AOLLinear(*shape, niter=niter)
        assert 0.9 < singular_values(layer, shape[0])[0] <= 1 + 1e-6
        with torch.no_grad():
            for p in layer.parametrizations.parameters():
                p.normal_()
        assert singular_values(layer, shape[0])[0] <= 1 + 1e-6
    assert len({p.data_ptr() for p in layer.parameters()}) == len(layer.state_dict())


def test_wide_layers_in_single_precision():
    """Rows that are all equal make the bound exact, so that only the slack for rounding is left."""
    layer = AOLLinear(512, 256, bias=False)
    with torch.no_grad():
        layer.parametrizations.weight.original0.copy_(torch.randn(512).expand(256, 512))
    sigma = torch.linalg.matrix_norm(layer.weight.double(), 2)
    assert 1 - 1e-3 < sigma <= 1 + 1e-7


def test_phases():
    kernel = torch.arange(2 * 3 * 5.0).view(1, 2, 3, 5)
    stacked = stack_phases(kernel, (2,))
    assert stacked.shape == (1, 2, 6, 3)
    for tap in range(5):
        assert torch.equal(stacked[0, :, tap % 2 :: 2, tap // 2], kernel[0, :, :, tap])
    assert (stacked[0, :, 1::2, 2] == 0).all()


def test_refusals():
    with pytest.raises(ParameterError, match="niter"):
        gram_diagonal(torch.randn(2, 2), niter=0)
    with pytest.raises(ParameterError, match="niter"):
        AOLLinear(2, 2, niter=1.5)
    with pytest.raises(ShapeError, match="groups"):
        gram_diagonal(torch.randn(3, 2), groups=2)
