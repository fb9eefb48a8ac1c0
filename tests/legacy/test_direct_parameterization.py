import pytest
import torch

from orthogonium.errors import GeometryError, ParameterError
from orthogonium.legacy import SandwichConv, SandwichFc
from orthogonium.legacy.direct_parameterization import sandwich, sandwich_fft
from tests.legacy.oracle import jacobian_norm, steepest_secant


@pytest.mark.parametrize("p, q", [(3, 5), (5, 3), (4, 4)])
def test_any_scaling_of_the_inner_units(p, q):
    # Ψ⁻¹ and the adjoint of A are what the printed algorithm lacks: large d would show it
    weight, kernel = torch.randn(q, q + p).double(), torch.randn(q, q + p, 3, 3).double()
    d, bias = 2 * torch.randn(q).double(), torch.randn(q).double()
    assert jacobian_norm(lambda x: sandwich(x, weight, d, bias), torch.randn(6, p).double()) <= 1 + 1e-12
    images = torch.randn(4, p, 4, 5).double()
    assert jacobian_norm(lambda x: sandwich_fft(x, kernel, d, bias), images) <= 1 + 1e-12


def test_one_pixel_images_are_vectors():
    weight, d, bias = torch.randn(4, 7).double(), torch.randn(4).double(), torch.randn(4).double()
    x = torch.randn(5, 3).double()
    image = sandwich_fft(x[..., None, None], weight[..., None, None], d, bias)[..., 0, 0]
    assert torch.allclose(image, sandwich(x, weight, d, bias))


@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_scale_is_the_lipschitz_constant(scale):
    dense, conv = SandwichFc(4, 6, scale=scale).double(), SandwichConv(2, 4, 3, scale=scale).double()
    for layer, shape in ((dense, (4,)), (conv, (2, 4, 4))):
        slope = steepest_secant(layer.requires_grad_(False), shape, torch.float64)
        assert 0.2 * scale < slope <= scale * (1 + 1e-12)


def test_bound_can_be_reached():
    # fit a layer to its own stretching: the norm of the Jacobian approaches 1
    layer = SandwichFc(3, 8)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    x = torch.randn(32, 3)
    for _ in range(150):
        optimizer.zero_grad()
        (-(layer(x) - layer(-x)).norm(dim=1) / (2 * x).norm(dim=1)).mean().backward()
        optimizer.step()
    norm = jacobian_norm(layer, x)
    assert 0.9 <= norm <= 1 + 1e-5


def test_refusals():
    with pytest.raises(ParameterError, match="scale"):
        SandwichFc(3, 3, scale=0)
    with pytest.raises(GeometryError, match="padding"):
        SandwichConv(3, 3, 3, padding=2)
    with pytest.raises(ParameterError, match="stride"):
        SandwichConv(3, 3, 3, stride=0)
