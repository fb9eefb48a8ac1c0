"""Raw matrices of any condition number give orthogonal layers, or a warning; and gradients that are as exact."""

import warnings

import pytest
import torch

import orthogonium.linalg as linalg
from orthogonium.errors import NumericalWarning
from orthogonium.layers import LipschitzConv2d, LipschitzLinear, OrthoLinear
from orthogonium.layers.conv import aoc
from orthogonium.methods.table import METHODS
from tests.oracle import singular_values

PRESETS = ["DEFAULT", "POLAR", "BJORCK", "BJORCK_PASS_THROUGH", "EXP", "CAYLEY", "QR", "CHOLESKY"]
CASES = {
    **{
        f"OrthoLinear-{name}": lambda name=name: OrthoLinear(
            24, 16, ortho_params=getattr(linalg, f"{name}_ORTHO_PARAMS")
        )
        for name in PRESETS
    },
    "OrthoLinear-square": lambda: OrthoLinear(24, 24),
    "AOC": lambda: aoc.AdaptiveOrthoConv2d(12, 12, 3),
    "AOC-polar": lambda: aoc.AdaptiveOrthoConv2d(12, 12, 3, ortho_params=linalg.POLAR_ORTHO_PARAMS),
    "AOC-strided": lambda: aoc.AdaptiveOrthoConv2d(8, 12, 3, stride=2),
    "AOC-1d": lambda: aoc.AdaptiveOrthoConv1d(12, 8, 5),
    "AOC-3d": lambda: aoc.AdaptiveOrthoConv3d(6, 6, (2, 2, 1)),
    "AOC-transpose": lambda: aoc.AdaptiveOrthoConvTranspose2d(
        12, 8, 3, stride=2, padding="same", padding_mode="circular"
    ),
}


def ill_conditioned(shape, kappa):
    *batch, rows, columns = shape
    rank = min(rows, columns)
    u = torch.linalg.qr(torch.randn(*batch, rows, rank, dtype=torch.float64)).Q
    v = torch.linalg.qr(torch.randn(*batch, columns, rank, dtype=torch.float64)).Q
    return u * kappa ** -torch.linspace(0, 1, rank, dtype=torch.float64) @ v.mT


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kappa", [1e4, 1e5, 1e6])
def test_orthogonal_or_warned(name, kappa):
    layer = CASES[name]()
    with torch.no_grad():
        for raw in layer.parametrizations.weight.parameters():
            raw.copy_(ill_conditioned(raw.shape, kappa))
    size = (layer.in_features,) if isinstance(layer, OrthoLinear) else (layer.in_channels, *(4,) * layer.dims)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sigma = singular_values(layer, *size)
    sigma = sigma[sigma > 0.5] if "transpose" in name.lower() else sigma  # an adjoint has zeros beside its ones
    told = any(issubclass(w.category, NumericalWarning) for w in caught)
    deviation = (sigma - 1).abs().max()
    assert told or deviation <= 1e-5
    if "BJORCK" not in name and "CHOLESKY" not in name:
        assert deviation <= 1e-5 and not told


def gradients(constraint, raw, target):
    raw = [r.detach().to(target.dtype).requires_grad_() for r in raw]
    return torch.cat([g.double().flatten() for g in torch.autograd.grad((constraint(*raw) * target).sum(), raw)])


def error(constraint, raw):
    """Of the float32 gradient, relative to that in float64."""
    with torch.no_grad():
        target = torch.randn(constraint(*raw).shape, dtype=torch.float64)
    expected, result = gradients(constraint, raw, target), gradients(constraint, raw, target.float())
    return (result - expected).norm() / expected.norm()


def trained(constraint, raw):
    raw = [r.clone().requires_grad_() for r in raw]
    target, optimizer = torch.randn_like(constraint(*raw)), torch.optim.Adam(raw, lr=1e-2)
    for _ in range(200):
        optimizer.zero_grad()
        (constraint(*raw) * target).sum().backward()
        optimizer.step()
    return raw


@pytest.mark.parametrize("method", METHODS)
def test_gradients_in_float32(method):
    entry = METHODS[method]
    layers = []
    if entry.conv:
        layers.append(LipschitzConv2d(8, 8, kernel_size=3, method=method))
    if entry.linear:
        layers += [LipschitzLinear(n, n, method=method) for n in (6, 48)]
    for layer in layers:
        constraint = layer.parametrizations.weight[0]
        raw = [p.detach() for p in layer.parametrizations.weight.parameters()]
        for start in (raw, [torch.randn_like(r) for r in raw], trained(constraint, raw)):
            assert error(constraint, start) <= 1e-4


@pytest.mark.parametrize("method", [method for method in METHODS if METHODS[method].linear])
def test_gradients_of_large_matrices_in_float32(method):
    """Where bounds of norms are inflated most by their own rounding."""
    layer = LipschitzLinear(512, 512, method=method)
    raw = [p.detach() for p in layer.parametrizations.weight.parameters()]
    for start in (raw, [torch.randn_like(r) for r in raw]):
        assert error(layer.parametrizations.weight[0], start) <= 1e-4


def test_gradients_next_to_the_kinks_of_aol():
    """64 channels next to an orthogonal kernel: hundreds of thousands of signs of sums that nearly cancel."""
    for seed in range(3):
        torch.manual_seed(seed)
        layer = LipschitzConv2d(64, 64, kernel_size=3, method="aol")
        raw = [p.detach() for p in layer.parametrizations.weight.parameters()]
        assert error(layer.parametrizations.weight[0], raw) <= 1e-4
