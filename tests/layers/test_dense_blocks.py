"""Dense blocks: norms of Jacobians, agreement with the methods as published, use of the bound, refusals."""

import pytest
import torch
from torch import nn

from orthogonium.errors import ParameterError, ShapeError
from orthogonium.layers.cpl import CPLLinear
from orthogonium.layers.sandwich import LBDN, SandwichLinear
from orthogonium.layers.sll import SDPBasedLipschitzDense
from orthogonium.layers.slopes import _ALLOWED
from orthogonium.legacy import SDPBasedLipschitzLinearLayer
from orthogonium.linalg import CAYLEY_ORTHO_PARAMS, QR_ORTHO_PARAMS
from tests.jacobians import ascend, jacobian_norm, jacobians, largest_norm

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-11}
LAYERS = {
    "sandwich-wide": (lambda **o: SandwichLinear(4, 7, **o), 4),
    "sandwich-narrow": (lambda **o: SandwichLinear(7, 3, **o), 7),
    "sandwich-one": (lambda **o: SandwichLinear(1, 1, **o), 1),
    "sandwich-cayley": (lambda **o: SandwichLinear(4, 5, ortho_params=CAYLEY_ORTHO_PARAMS, **o), 4),
    "sll": (lambda **o: SDPBasedLipschitzDense(5, 5, 8, **o), 5),
    "sll-tight": (lambda **o: SDPBasedLipschitzDense(5, 5, 8, niter=3, **o), 5),
    "sll-widening": (lambda **o: SDPBasedLipschitzDense(4, 7, 3, **o), 4),
    "sll-narrowing": (lambda **o: SDPBasedLipschitzDense(7, 4, 9, ortho_params=QR_ORTHO_PARAMS, **o), 7),
    "cpl": (lambda **o: CPLLinear(5, 8, **o), 5),
    "cpl-square": (lambda **o: CPLLinear(5, niter=0, **o), 5),
}


def perturbed(layer, scale):
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(scale * torch.randn_like(p))
    return layer


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_one_lipschitz(name, dtype):
    make, features = LAYERS[name]
    found = []
    for activation in ("relu", nn.LeakyReLU(0.2), "tanh", "softplus"):
        layer = perturbed(make(activation=activation, dtype=dtype), 1.0)
        found.append(largest_norm(layer, torch.randn(6, features, dtype=dtype)))
    assert 0.05 < max(found) <= 1 + TOLERANCE[dtype]  # a single unit may be off, by ReLU, at all inputs


@pytest.mark.parametrize("activation", [name for name, _, _ in _ALLOWED.values()])
def test_one_lipschitz_with_every_activation(activation):
    for name in ("sandwich-wide", "sll", "cpl"):
        make, features = LAYERS[name]
        layer = perturbed(make(activation=activation, dtype=torch.float64), 1.0)
        assert jacobian_norm(layer, 3 * torch.randn(64, features).double()) <= 1 + 1e-11


def test_an_activation_outside_the_rule_would_expand():
    """The refusals have a reason: the same block with abs expands."""
    layer = SDPBasedLipschitzDense(5, 5, 8, dtype=torch.float64)
    layer.activation = type("Abs", (nn.Module,), {"forward": lambda self, x: x.abs()})()
    assert jacobian_norm(layer, torch.randn(64, 5).double()) > 1.1


@pytest.mark.parametrize("name", LAYERS)
def test_zero_and_extreme_weights(name):
    make, features = LAYERS[name]
    for scale in (0.0, 1e-12, 1e12):
        if scale == 0.0 and "sandwich" in name or "ing" in name:
            continue  # a zero matrix has no orthogonal factor
        layer = make()
        with torch.no_grad():
            layer.parametrizations.weight.original0.mul_(scale)
        x = torch.randn(4, features)
        assert jacobian_norm(layer, x) <= 1 + 1e-5
        layer(x).sum().backward()
        assert all(torch.isfinite(p.grad).all() for p in layer.parameters())


def test_sll_is_the_published_layer():
    layer, original = SDPBasedLipschitzDense(5, 5, 8).double(), SDPBasedLipschitzLinearLayer(5, 8, 1e-12).double()
    weight, q = layer.parametrizations.weight.original0, layer.parametrizations.weight.original1
    with torch.no_grad():
        q.normal_()
        original.weight.copy_(weight.flatten(1))
        original.q.copy_(q.exp())
        original.bias.copy_(layer.bias)
    x = torch.randn(6, 5).double()
    torch.testing.assert_close(layer(x), original(x), rtol=1e-9, atol=1e-9)


def test_further_steps_tighten_sll():
    """A smaller T is a larger residual branch: the strongest one reflects, J = I − 2."""
    layers = [SDPBasedLipschitzDense(16, 16, 16, niter=n).double() for n in (1, 2, 4)]
    for layer in layers[1:]:
        layer.load_state_dict(layers[0].state_dict())
    reach = []
    for layer in layers:
        with torch.no_grad():
            layer.bias.fill_(1e3)  # all units open
        j = jacobians(layer, torch.zeros(1, 16).double())[0]
        reach.append(torch.linalg.eigvalsh((j + j.T) / 2).min().item())
    assert reach[0] > reach[1] > reach[2] >= -1 - 1e-11
    assert reach[2] < -0.8


def test_cpl_reaches_its_bound():
    layer = CPLLinear(24, 32).double()
    with torch.no_grad():
        layer.bias.fill_(1e3)
    reach = torch.linalg.eigvalsh(jacobians(layer, torch.zeros(1, 24).double())[0]).min()
    assert -1 - 1e-11 <= reach <= -0.95


@pytest.mark.parametrize("name", ["sandwich-wide", "sll", "cpl"])
def test_trained_toys_use_the_bound(name):
    """Trained to move pairs of points apart, layers stretch some direction by ≥ 0.9; residual branches reflect."""
    make, features = LAYERS[name]
    layer = make()
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    x, y = torch.randn(2, 32, features)
    for _ in range(100):
        optimizer.zero_grad()
        target = 0 if name == "sandwich-wide" else x - y  # residual blocks: away from the identity
        (-(layer(x) - layer(y) - target).norm(dim=1) / (x - y).norm(dim=1)).mean().backward()
        optimizer.step()
    points = torch.cat([x, ascend(layer, x)])
    assert 0.9 <= jacobian_norm(layer, points) <= 1 + 1e-5
    if name != "sandwich-wide":
        branch = jacobians(layer, points) - torch.eye(features).double()
        assert torch.linalg.matrix_norm(branch, ord=2).max() >= 1.8


def test_sandwich_scales_matter_only_with_a_bias_or_a_curve():
    assert len(list(SandwichLinear(3, 4).parametrizations.parameters())) == 2
    assert len(list(SandwichLinear(3, 4, bias=False).parametrizations.parameters())) == 1
    assert len(list(SandwichLinear(3, 4, bias=False, activation="tanh").parametrizations.parameters())) == 2


@pytest.mark.parametrize("gamma", [0.3, 1.0, 20.0])
def test_lbdn_has_the_constant_asked_for(gamma):
    net = LBDN(3, [8, 6], 4, lipschitz=gamma, dtype=torch.float64)
    assert 0.2 * gamma < largest_norm(net, torch.randn(8, 3).double()) <= gamma * (1 + 1e-11)
    assert net.guarantee.kind == "lipschitz"


def test_refusals():
    with pytest.raises(ParameterError, match="lipschitz"):
        LBDN(3, [4], 2, lipschitz=0)
    with pytest.raises(ParameterError, match="inner_dim"):
        SDPBasedLipschitzDense(3, 3, 0)
    with pytest.raises(ParameterError, match="in_features"):
        SandwichLinear(-1, 3)
    with pytest.raises(ParameterError, match="niter"):
        CPLLinear(3, niter=-1)
    with pytest.raises(ParameterError, match="niter"):
        SDPBasedLipschitzDense(3, 3, 3, niter=0)
    with pytest.raises(ParameterError, match="GELU"):
        CPLLinear(3, activation=nn.GELU())
    with pytest.raises(ShapeError, match=r"\(..., 3\)"):
        CPLLinear(3)(torch.randn(2, 4))
    with pytest.raises(TypeError):
        SDPBasedLipschitzDense(3, 3, 3, inner=4)
