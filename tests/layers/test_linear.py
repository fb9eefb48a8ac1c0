"""Dense layers: what each guarantees, by SVD of the operator it applies."""

import functools

import pytest
import torch
from torch import nn

import orthogonium.linalg as linalg
from orthogonium import ClassParam, build_once
from orthogonium.errors import ParameterError
from orthogonium.layers import OrthoLinear, SpectralLinear, UnitNormLinear
from orthogonium.reparametrizers import (
    BatchedBjorckOrthogonalization,
    BatchedCholeskyOrthogonalization,
    BatchedIdentity,
    BatchedPowerIteration,
    OrthoParams,
)
from tests.tf32 import tf32_allowed

EXACT_PRESETS = ["DEFAULT", "DEFAULT_TEST", "POLAR", "EXP", "CAYLEY", "QR", "CHOLESKY_STABLE"]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
shapes = pytest.mark.parametrize("shape", [(12, 12), (12, 5), (5, 12), (1, 7), (7, 1)], ids=str)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])


def preset(name):
    return getattr(linalg, f"{name}_ORTHO_PARAMS")


def operator(layer):
    """The matrix that the layer applies, from its responses to unit inputs."""
    probe = torch.eye(layer.in_features, dtype=layer.weight.dtype)
    with torch.no_grad():
        return (layer(probe) - layer(torch.zeros_like(probe))).T.double()


def train(layer, optimizer_class, steps=50, **options):
    optimizer = optimizer_class(layer.parameters(), **options)
    x = torch.randn(32, layer.in_features, dtype=layer.weight.dtype)
    y = torch.randn(32, layer.out_features, dtype=layer.weight.dtype)
    for _ in range(steps):
        optimizer.zero_grad()
        (layer(x) * y).mean().backward()
        optimizer.step()


@pytest.mark.parametrize("name", EXACT_PRESETS)
@shapes
@dtypes
def test_ortho_linear(name, shape, dtype):
    layer = OrthoLinear(*shape, ortho_params=preset(name), dtype=dtype)
    for options in ({}, {"optimizer_class": torch.optim.SGD, "lr": 50.0, "momentum": 0.9, "weight_decay": 1e-3}):
        if options:
            train(layer, **options)
        sigma = torch.linalg.svdvals(operator(layer))
        assert (sigma - 1).abs().max() <= TOLERANCE[dtype]


@pytest.mark.parametrize("name", ["BJORCK", "BJORCK_PASS_THROUGH", "CHOLESKY"])
def test_other_presets_reach_their_tolerance_on_their_initialization(name):
    layer = OrthoLinear(9, 6, ortho_params=preset(name))
    assert (torch.linalg.svdvals(operator(layer)) - 1).abs().max() <= 1e-5


@shapes
@dtypes
def test_spectral_linear(shape, dtype):
    layer = SpectralLinear(*shape, dtype=dtype)
    for _ in range(2):
        sigma = torch.linalg.svdvals(operator(layer))
        assert 0.94 <= sigma.max() <= 1 + 1e-6
        train(layer, torch.optim.Adam, lr=0.5)


@shapes
@dtypes
def test_unit_norm_linear(shape, dtype):
    layer = UnitNormLinear(*shape, dtype=dtype)
    for _ in range(2):
        assert (operator(layer).norm(dim=1) - 1).abs().max() <= TOLERANCE[dtype]
        train(layer, torch.optim.Adam, lr=0.5)


def test_it_learns():
    """An OrthoLinear finds the rotation that made the data."""
    skew = torch.randn(6, 6)
    target = torch.linalg.matrix_exp(0.3 * (skew - skew.T))
    layer = OrthoLinear(6, 6, bias=False)
    with torch.no_grad():
        layer.weight = torch.eye(6)
    x = torch.randn(256, 6)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    for _ in range(400):
        optimizer.zero_grad()
        (layer(x) - x @ target.T).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(layer.weight.detach(), target, atol=1e-2, rtol=0)


def test_singular_values_and_stable_rank():
    layer = OrthoLinear(7, 4)
    assert layer.singular_values() == pytest.approx((1, 1, 1), abs=1e-5)
    layer = UnitNormLinear(3, 2, dtype=torch.float64)
    layer.weight = torch.tensor([[1.0, 0, 0], [0.6, 0.8, 0]], dtype=torch.float64)
    sigma = torch.linalg.svdvals(layer.weight.detach())
    expected = (sigma[1].item(), sigma[0].item(), (1 / sigma[0] ** 2).item())  # ‖W‖_F² = 2, of rank 2
    assert layer.singular_values() == pytest.approx(expected)


def test_user_built_ortho_params():
    """Classes, `functools.partial` and ClassParam all serve as factories."""
    choices = [
        OrthoParams(spectral_normalizer=BatchedIdentity, orthogonalizer=BatchedCholeskyOrthogonalization),
        OrthoParams(
            spectral_normalizer=ClassParam(BatchedPowerIteration, power_it_niter=10),
            orthogonalizer=ClassParam(BatchedBjorckOrthogonalization, niters=30, pass_through=False),
        ),
        OrthoParams(
            spectral_normalizer=functools.partial(BatchedPowerIteration, power_it_niter=5, eps=1e-9),
            orthogonalizer=functools.partial(BatchedCholeskyOrthogonalization, stable=True),
        ),
    ]
    for params in choices:
        layer = OrthoLinear(5, 3, ortho_params=params)
        assert (torch.linalg.svdvals(operator(layer)) - 1).abs().max() <= 1e-5


def test_assigning_a_weight():
    layer = OrthoLinear(4, 4, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64))[0]
    layer.weight = rotation
    torch.testing.assert_close(layer.weight.detach(), rotation)
    layer.weight = 2 * rotation
    torch.testing.assert_close(layer.weight.detach(), rotation)


@pytest.mark.parametrize("layer", [OrthoLinear, UnitNormLinear, SpectralLinear])
def test_bad_arguments(layer):
    with pytest.raises(ParameterError, match="at least one"):
        layer(0, 3)
    with pytest.raises(TypeError):
        layer(3, 3, no_such_argument=1)
    with pytest.raises(ParameterError, match="niter"):
        SpectralLinear(3, 3, niter=-1)


def test_it_is_a_linear_layer():
    layer = OrthoLinear(3, 5, False)
    assert isinstance(layer, nn.Linear) and layer.bias is None
    assert layer.extra_repr() == nn.Linear(3, 5, False).extra_repr() + ", kernel=OrthogonalMatrix"
    assert str(layer.guarantee) == "all singular values 1, for raw parameters of full rank"


def test_the_input_has_the_name_that_torch_gives_it():
    layer, x = OrthoLinear(3, 5), torch.randn(2, 3)
    torch.testing.assert_close(layer(input=x), layer(x))


class _Weighted(nn.Module):
    """An orthogonalizer of a user, with a parameter of its own."""

    def __init__(self, weight_shape):
        super().__init__()
        self.weights = nn.Parameter(torch.ones(weight_shape[-2], 1))

    def forward(self, w):
        return linalg.qr(self.weights * w)


def _with_own_parameter():
    layer = OrthoLinear(6, 6, ortho_params=OrthoParams(orthogonalizer=_Weighted))
    return layer, layer.parametrizations.weight[0].kernel.orthogonalize.weights


@pytest.mark.parametrize("setting", ["autocast", "tf32", "build_once", "build_once-frozen"])
def test_parameters_of_orthogonalizers_are_trained(setting):
    layer, own = _with_own_parameter()
    x, upstream = torch.randn(5, 6), torch.randn(5, 6)
    layer.parametrizations.weight.original.requires_grad_(setting != "build_once-frozen")
    (expected,) = torch.autograd.grad((layer(x) * upstream).sum(), own)
    if setting == "autocast":
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = layer(x)
        (y * upstream).sum().backward()
    elif setting == "tf32":
        with tf32_allowed():
            (layer(x) * upstream).sum().backward()
    else:
        with build_once(layer):
            (layer(x) * upstream).sum().backward()
    # bfloat16 has 8 digits; float64, in which qr computes, keeps all of those of float32.
    tolerance = 3e-2 if setting == "autocast" else 1e-4
    assert (own.grad - expected).norm() <= tolerance * expected.norm()


def test_edits_of_parameters_of_orthogonalizers_are_noticed():
    layer, own = _with_own_parameter()
    with torch.no_grad():
        before = layer.eval()(torch.eye(6))
        own.copy_(torch.linspace(-1, 1, 6)[:, None])
        assert not torch.equal(layer(torch.eye(6)), before)


def test_another_weight_has_its_say():
    layer, x = OrthoLinear(1024, 64), torch.randn(8, 1024)
    layer.weight_of = lambda source: torch.zeros(64, 1024)
    assert torch.equal(layer(x), layer.bias.expand(8, -1))


@pytest.mark.parametrize("name", ["build", "forward"])
def test_what_builds_the_weight_instead_has_its_say(name):
    """Of wide layers, too, which need no weight in training."""
    layer, x = OrthoLinear(1024, 64), torch.randn(8, 1024)
    expected = (layer(x) - layer.bias) / 2
    constraint = layer.parametrizations.weight[0]
    method = getattr(constraint, name)
    setattr(constraint, name, lambda *arguments: method(*arguments) / 2)
    torch.testing.assert_close(layer(x) - layer.bias, expected)
