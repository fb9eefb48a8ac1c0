"""`layer.weight = w`: any weight where the method's own map takes it, one of the set where that can be recovered."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from orthogonium import reparametrizers
from orthogonium.errors import ConstraintError, ShapeError
from orthogonium.layers import (
    AdaptiveOrthoConv1d,
    AdaptiveOrthoConv2d,
    AdaptiveOrthoConv3d,
    AdaptiveOrthoConvTranspose2d,
    AdaptiveSOCConv2d,
    AOLConv2d,
    AOLLinear,
    FastBlockConv2d,
    OrthoLinear,
    RKOConv2d,
    SpectralLinear,
    UnitNormLinear,
    freeze,
)
from orthogonium.reparametrizers import POLAR_ORTHO_PARAMS
from tests.oracle import singular_values


def of(layer):
    return layer.weight.detach().clone()


PROJECTING = {
    "OrthoLinear": lambda: OrthoLinear(6, 4),
    "UnitNormLinear": lambda: UnitNormLinear(6, 4),
    "SpectralLinear": lambda: SpectralLinear(6, 4),
    "AOLLinear": lambda: AOLLinear(6, 4),
    "RKO": lambda: RKOConv2d(4, 6, 2, stride=2),
    "RKO, overlapping": lambda: RKOConv2d(4, 6, 3, groups=2),
    "AOC, one tap": lambda: AdaptiveOrthoConv2d(6, 4, 1),
    "AOC, square tap": lambda: AdaptiveOrthoConv2d(6, 6, 1),
    "AOC, odd square tap": lambda: AdaptiveOrthoConv2d(5, 5, 1),
    "AOC, kernel = stride": lambda: AdaptiveOrthoConv2d(4, 6, 2, stride=2, groups=2),
    "AOC, transposed": lambda: AdaptiveOrthoConvTranspose2d(6, 4, 2, stride=2),
    "AOL": lambda: AOLConv2d(4, 6, 3, groups=2),
}


@pytest.mark.parametrize("make", PROJECTING.values(), ids=PROJECTING)
def test_any_weight_is_brought_into_the_set(make):
    layer, source = make(), make()
    before = [p.clone() for p in layer.parameters()]
    layer.weight = torch.randn_like(layer.weight)
    assert all(a.shape == b.shape for a, b in zip(before, layer.parameters(), strict=True))
    if isinstance(layer, nn.Linear):
        limit = 2.0 if isinstance(layer, UnitNormLinear) else 1.0  # rows of norm 1
        assert layer.singular_values()[1] <= limit + 1e-5
    else:
        assert singular_values(layer, layer.in_channels, 4, 4)[0] <= 1 + 1e-5
    # What is in the set stays.
    layer.weight = of(source)
    torch.testing.assert_close(layer.weight.detach(), of(source), rtol=0, atol=1e-5)
    layer(torch.randn(1, *([6] if isinstance(layer, nn.Linear) else [layer.in_channels, 4, 4]))).sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


def test_the_weight_is_the_nearest_one():
    u, _, vh = torch.linalg.svd(torch.randn(4, 6), full_matrices=False)
    w = u @ torch.diag(torch.tensor([4.0, 3.0, 2.0, 1.0])) @ vh  # well conditioned: rounding is not amplified
    layer = OrthoLinear(6, 4, ortho_params=POLAR_ORTHO_PARAMS)
    layer.weight = w
    torch.testing.assert_close(layer.weight.detach(), u @ vh, rtol=0, atol=1e-5)
    rows = UnitNormLinear(6, 4)
    rows.weight = w
    torch.testing.assert_close(rows.weight.detach(), w / w.norm(dim=1, keepdim=True))


@pytest.mark.parametrize("determinant", [1, -1])
def test_a_square_tap_becomes_the_nearest_rotation(determinant):
    q = torch.linalg.qr(torch.randn(6, 6)).Q
    q[0] *= determinant * torch.linalg.det(q).sign()
    w = q * torch.tensor([1.0, 2, 3, 4, 5, 0.5])[:, None]  # the last row has the weakest say
    layer = AdaptiveOrthoConv2d(6, 6, 1)
    layer.weight = w[..., None, None]
    nearest = q.clone()
    nearest[-1] *= determinant
    torch.testing.assert_close(layer.weight.detach()[..., 0, 0], nearest, rtol=0, atol=1e-5)


RECOVERED = {
    "3×3": lambda: AdaptiveOrthoConv2d(8, 8, 3),
    "64 channels": lambda: AdaptiveOrthoConv2d(64, 64, 3),
    "odd": lambda: AdaptiveOrthoConv2d(7, 7, 3),
    "even kernel": lambda: FastBlockConv2d(8, 8, 2),
    "5×5": lambda: AdaptiveOrthoConv2d(16, 16, 5),
    "7×7": lambda: AdaptiveOrthoConv2d(8, 8, 7),
    "more outputs": lambda: AdaptiveOrthoConv2d(4, 8, 3),
    "many more outputs": lambda: AdaptiveOrthoConv2d(3, 32, 3),
    "fewer outputs": lambda: AdaptiveOrthoConv2d(8, 4, 3),
    "many fewer outputs": lambda: AdaptiveOrthoConv2d(16, 2, 3),
    "groups": lambda: AdaptiveOrthoConv2d(8, 16, 3, groups=2),
    "stride": lambda: AdaptiveOrthoConv2d(8, 16, 3, stride=2),
    "stride, many more outputs": lambda: AdaptiveOrthoConv2d(3, 64, 3, stride=2),
    "stride, many more outputs, groups": lambda: AdaptiveOrthoConv2d(4, 66, (5, 4), stride=(3, 2), groups=2),
    "rectangular": lambda: AdaptiveOrthoConv2d(8, 8, (3, 1), dilation=2),
    "1-D": lambda: AdaptiveOrthoConv1d(8, 6, 4),
    "3-D": lambda: AdaptiveOrthoConv3d(6, 6, (3, 2, 2)),
    "transposed": lambda: AdaptiveOrthoConvTranspose2d(16, 8, 4, stride=2),
    "float64": lambda: AdaptiveOrthoConv2d(8, 8, 3, dtype=torch.float64),
}


@pytest.mark.parametrize("make", RECOVERED.values(), ids=RECOVERED)
def test_a_kernel_of_the_set_is_recovered(make):
    layer, source = make(), make()
    target = of(source)
    layer.weight = target
    torch.testing.assert_close(of(layer), target, rtol=0, atol=1e-5)
    layer.eval()
    torch.testing.assert_close(of(layer), target, rtol=0, atol=1e-5)
    layer.weight = of(freeze(make()))


def test_recovered_parameters_train():
    layer, source = AdaptiveOrthoConv2d(6, 6, 3), AdaptiveOrthoConv2d(6, 6, 3)
    layer.weight = of(source)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        layer(torch.randn(2, 6, 6, 6)).square().mul(torch.randn(6, 6, 6)).sum().backward()
        optimizer.step()
    sigma = singular_values(layer, 6, 4, 4)
    assert sigma[0] <= 1 + 1e-5 and sigma[-1] >= 1 - 1e-5


def test_refusals():
    layer = AdaptiveOrthoConv2d(8, 8, 3)
    before = of(layer)
    with pytest.raises(ConstraintError, match="outside the set.*remove_parametrizations"):
        layer.weight = torch.randn_like(before)
    assert torch.equal(of(layer), before)
    mirrored = of(layer)
    mirrored[0] *= -1  # determinant −1
    with pytest.raises(ConstraintError, match="outside the set"):
        layer.weight = mirrored
    with pytest.raises(ConstraintError, match="cannot recover"):
        AdaptiveSOCConv2d(4, 4, 3).weight = torch.randn(4, 4, 9, 9)
    with pytest.raises(ConstraintError, match="outside the set.*from_torch"):
        AdaptiveOrthoConv2d(2, 16, 3, stride=2).weight = torch.randn(16, 2, 3, 3)
    with pytest.raises(ConstraintError, match="NaN"):
        OrthoLinear(4, 4).weight = torch.full((4, 4), torch.nan)
    for linear, shape in ((OrthoLinear(4, 4), (4, 5)), (RKOConv2d(2, 2, 2), (2, 8))):
        with pytest.raises(ShapeError, match="has shape"):
            linear.weight = torch.randn(shape)
    parametrize.remove_parametrizations(layer, "weight")
    layer.weight = nn.Parameter(torch.randn_like(before))


@pytest.mark.parametrize(
    "make",
    [
        reparametrizers.BatchedBjorckOrthogonalization,
        reparametrizers.BatchedCholeskyOrthogonalization,
        reparametrizers.BatchedExponentialOrthogonalization,
        reparametrizers.BatchedQROrthogonalization,
        reparametrizers.BatchedCayleyOrthogonalization,
        reparametrizers.BatchedPowerIteration,
        reparametrizers.BatchedIdentity,
        lambda shape: reparametrizers.L2Normalize(torch.float32, dim=1),
    ],
)
def test_reparametrizers_as_parametrizations_of_torch(make):
    linear = nn.Linear(4, 4)
    nn.init.orthogonal_(linear.weight)
    layer = parametrize.register_parametrization(linear, "weight", make((4, 4)))
    weight = torch.eye(4) + 0.1 * torch.randn(4, 4)
    layer.weight = weight
    torch.testing.assert_close(layer.weight, make((4, 4))(weight))
