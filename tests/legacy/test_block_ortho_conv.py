import pytest
import torch
import torch.nn.functional as F

from orthogonium.errors import GuaranteeWarning, ParameterError, ShapeError
from orthogonium.legacy import BCOP
from orthogonium.legacy.block_ortho_conv import (
    ScaledBjorck,
    bcop_kernel,
    bjorck,
    block_conv,
    projector_block,
)
from tests.legacy.oracle import singular_values


def circular(kernel):
    k = kernel.shape[-1]
    return lambda x: F.conv2d(F.pad(x, ((k - 1) // 2, k // 2) * 2, mode="circular"), kernel)


def basis(*shape):
    return torch.linalg.qr(torch.randn(*shape, dtype=torch.float64)).Q


def test_block_conv_is_composition():
    inner, outer = torch.randn(4, 3, 2, 3).double(), torch.randn(5, 4, 3, 2).double()
    x = torch.randn(2, 3, 8, 8).double()
    assert torch.allclose(F.conv2d(x, block_conv(outer, inner)), F.conv2d(F.conv2d(x, inner), outer), atol=1e-12)


@pytest.mark.parametrize("rank", [0, 1, 2, 5])
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_kernel_is_orthogonal_for_any_rank(k, rank):
    kernel = bcop_kernel(basis(2 * (k - 1), 5, rank), basis(5, 5))
    assert kernel.shape == (5, 5, k, k)
    assert torch.allclose(singular_values(circular(kernel), (5, 5, 5), torch.float64), torch.ones(125).double())


def test_kernel_follows_its_order():
    m, h = basis(4, 4, 2), basis(4, 4)
    p = m @ m.mT
    x = torch.randn(1, 4, 6, 6).double()
    expected = F.conv2d(F.conv2d(x, projector_block(p[2], p[3])), projector_block(p[0], p[1]))
    assert torch.allclose(F.conv2d(x, bcop_kernel(m, h)), torch.einsum("ab,nbxy->naxy", h, expected))


def test_projectors_sit_on_their_axes():
    p, q = torch.diag(torch.tensor([1.0, 0])), torch.diag(torch.tensor([1.0, 0]))
    block = projector_block(p, q)
    assert block[0, 0].tolist() == [[1, 0], [0, 0]]  # in the range of both: tap 0, 0
    assert block[1, 1].tolist() == [[0, 0], [0, 1]]  # in neither: shifted along both axes
    vertical_only = projector_block(torch.zeros(1, 1), torch.ones(1, 1))
    assert vertical_only[0, 0].tolist() == [[0, 0], [1, 0]]


@pytest.mark.parametrize("shape", [(4, 4), (3, 6), (6, 3)])
def test_bjorck_gives_the_polar_factor(shape):
    x = torch.randn(2, *shape).double()
    x = x / torch.linalg.matrix_norm(x, ord=2)[:, None, None]
    u, _, vh = torch.linalg.svd(x, full_matrices=False)
    assert torch.allclose(bjorck(x, iters=40), u @ vh, atol=1e-9)


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("shape", [(4, 4), (3, 6), (6, 3)])
def test_higher_orders_are_closer_and_never_above_one(order, shape):
    x = torch.randn(*shape).double()
    x = x / torch.linalg.matrix_norm(x, ord=2)
    lower, higher = (torch.linalg.svdvals(bjorck(x, iters=2, order=n)) for n in (order, order + 1))
    assert (lower <= higher + 1e-12).all() and higher.max() <= 1 + 1e-12
    u, _, vh = torch.linalg.svd(x, full_matrices=False)
    assert torch.allclose(bjorck(x, iters=40, order=order), u @ vh, atol=1e-9)


def test_stopping_short_contracts():
    layer = BCOP(4, 4, bjorck_iters=1).double().eval()
    with torch.no_grad():
        layer.conv_matrices.copy_(torch.randn_like(layer.conv_matrices))
        layer.orthonormalize.norm.v = layer.orthonormalize.norm.iterate(
            *layer.orthonormalize.norm.maps(layer.conv_matrices), 200
        )
    sigma = singular_values(layer, (4, 5, 5), torch.float64)
    assert sigma.max() <= 1 + 1e-12
    assert sigma.min() < 0.9


@pytest.mark.parametrize("matrix_shape", [(1, 9), (6, 6), (9, 4)])
def test_scaling_survives_the_worst_possible_vector(matrix_shape):
    # the weights moved while the power iteration stood still: its vector is the weakest direction, or in the kernel
    x = torch.randn(1, *matrix_shape).double()
    scaled = ScaledBjorck(x, iters=60, beta=0.5, power_iteration_scaling=True).eval()
    scaled.norm.v = torch.linalg.svd(x).Vh[:, -1:].mT
    sigma = torch.linalg.svdvals(scaled(x))
    assert (sigma - 1).abs().max() < 1e-9


def test_one_channel_is_a_shift_and_says_so():
    with pytest.warns(GuaranteeWarning, match="shift"):
        layer = BCOP(1, 1, 3)
    assert torch.allclose(singular_values(layer, (1, 5, 5), torch.float32), torch.ones(25).double())


def test_refusals():
    with pytest.raises(ParameterError, match="kernel_size"):
        BCOP(3, 3, (3, 3))
    with pytest.raises(ParameterError, match="padding_mode"):
        BCOP(3, 3, padding_mode="reflect")
    with pytest.raises(ParameterError, match="bjorck_beta"):
        BCOP(3, 3, bjorck_beta=0.7)
    with pytest.raises(ParameterError, match="bjorck_order 2 .* bjorck_beta"):
        BCOP(3, 3, bjorck_beta=0.4, bjorck_order=2)
    with pytest.raises(ShapeError, match="stride 2"):
        BCOP(3, 3, stride=2)(torch.randn(1, 3, 5, 6))
    with pytest.raises(ShapeError, match="wraps"):
        BCOP(3, 3, 5)(torch.randn(1, 3, 1, 1))
