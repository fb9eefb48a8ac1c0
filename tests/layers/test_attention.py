"""Attention by distance: its constant holds, by ascent and by the derivative, and is attained."""

import math

import pytest
import torch
from torch import nn
from torch.func import jacrev, vmap

import orthogonium
from orthogonium.certification import UnboundedError
from orthogonium.errors import ParameterError, ShapeError
from orthogonium.layers import (
    AdditiveResidual,
    DistanceAttention,
    LayerCentering,
    MaxMin,
    OrthoLinear,
    TokenMixing,
    attention_constant,
    distance_attention,
)
from orthogonium.spectral import steepest_quotient


def slope(x, sharpness, step):
    """Largest singular value of the derivative at one sample (tokens, channels)."""
    jacobian = jacrev(lambda t: distance_attention(t[None], sharpness, step)[0])(x)
    return torch.linalg.matrix_norm(jacobian.reshape(x.numel(), x.numel()), ord=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("step", [0.5, 1.0, 3.0, 5.0])
@pytest.mark.parametrize("tokens,channels,heads", [(2, 1, 1), (4, 2, 1), (5, 4, 2), (1, 3, 1)])
def test_ascent_stays_below_the_constant(tokens, channels, heads, step, dtype):
    constant = attention_constant(step)
    sharpness = torch.rand(heads, dtype=dtype) * 3 + 0.1
    scales = torch.logspace(-1, 1, 24, dtype=dtype)  # tokens too close and too far apart are flat: some start between
    x = (torch.randn(24, tokens, channels, dtype=dtype) * scales[:, None, None]).requires_grad_()
    optimizer = torch.optim.Adam([x], 0.05)
    reached = 0.0
    for _ in range(60):
        values = vmap(lambda one: slope(one, sharpness, step))(x)
        assert (values <= constant * (1 + 1e-5)).all()
        reached = max(reached, values.max().item())
        optimizer.zero_grad()
        (-values.sum()).backward()
        optimizer.step()
    if tokens > 1 and step <= 3:
        assert reached >= 0.9 * constant


@pytest.mark.parametrize("tokens", [2, 4, 6])
@pytest.mark.parametrize("step", [0.5, 1.0, 2.0, 5.0])
def test_the_constant_is_attained(tokens, step):
    """By two clusters at the distance √(3/β); by equal tokens where steps are long."""
    beta = torch.tensor([0.7], dtype=torch.float64)
    x = torch.zeros(tokens, 3, dtype=torch.float64)
    if step <= 3.6:
        x[::2, 0] = math.sqrt(3 / 0.7)
    assert slope(x, beta, step).item() == pytest.approx(attention_constant(step), rel=1e-9)


def test_no_softmax_is_needed_to_attend():
    """A token moves to those near it, and not to those far away; the order of the tokens does not matter."""
    x = torch.tensor([[[0.0, 0.0], [0.2, 0.0], [9.0, 9.0]]])
    y = distance_attention(x, torch.tensor([4.0]))
    assert y[0, 0, 0] > 0.05 and torch.allclose(y[0, 2], x[0, 2], atol=1e-6)
    order = torch.tensor([2, 0, 1])
    layer, z = DistanceAttention(8, 2), torch.randn(2, 3, 8)
    torch.testing.assert_close(layer(z[:, order]), layer(z)[:, order])


def train(layer, x):
    optimizer = torch.optim.SGD(layer.parameters(), 1.0)
    for _ in range(5):
        optimizer.zero_grad()
        layer(x).square().mean().neg().backward()
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lipschitz", [0.3, 1.0, 7.0])
def test_the_layer_keeps_its_constant(lipschitz, dtype):
    layer = DistanceAttention(6, 2, step=1.5, lipschitz=lipschitz, dtype=dtype)
    x = torch.randn(3, 4, 6, dtype=dtype)
    for _ in range(2):
        for scale in (0.1, 1.0, 10.0):
            one, other = scale * torch.randn(2, 1, 4, 6, dtype=dtype)
            assert (layer(one) - layer(other)).norm() <= lipschitz * (1 + 1e-5) * (one - other).norm()
            jacobian = jacrev(lambda t: layer(t[None])[0])(one[0]).reshape(24, 24)
            assert torch.linalg.matrix_norm(jacobian, ord=2) <= lipschitz * (1 + 1e-5)
        bound = orthogonium.lipschitz_bound(layer, (4, 6)).value
        assert lipschitz * (1 - 1e-6) <= bound <= lipschitz * (1 + 1e-4)
        train(layer, x)


def test_transformers_of_these_are_bounded():
    model = nn.Sequential(
        AdditiveResidual(DistanceAttention(8, 2)),
        LayerCentering(8, dim=-1, axis=-1),
        AdditiveResidual(TokenMixing(5)),
        AdditiveResidual(nn.Sequential(OrthoLinear(8, 8), MaxMin(axis=-1), OrthoLinear(8, 8))),
    ).eval()
    bound = orthogonium.lipschitz_bound(model, (5, 8)).value
    assert bound <= 1 + 1e-4
    assert steepest_quotient(model, (5, 8)).value <= bound
    report = orthogonium.audit(model, (5, 8))
    assert report.lipschitz_bound <= 1 + 1e-4 and not report.warnings
    assert any(row.type == "DistanceAttention" for row in report.rows)


class PlainAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0]


def test_the_audit_says_what_to_take_instead():
    report = orthogonium.audit(PlainAttention().eval(), (5, 8))
    assert any(
        "nn.MultiheadAttention has no constant" in text and "DistanceAttention" in text for text in report.warnings
    )
    with pytest.raises(UnboundedError, match="grows with them.*TokenMixing"):
        orthogonium.lipschitz_bound(PlainAttention().eval(), (5, 8))


def test_token_mixing_is_orthogonal():
    x = torch.randn(2, 5, 3)
    assert torch.allclose(TokenMixing(5, bias=False, lipschitz=3.0)(x).norm(), 3 * x.norm())
    fewer = TokenMixing(5, 2)
    assert fewer(x).shape == (2, 2, 3) and orthogonium.lipschitz_bound(fewer, (5, 3)).value <= 1 + 1e-5


def test_derivatives():
    x, beta = torch.randn(2, 3, 4, dtype=torch.float64), torch.rand(2, dtype=torch.float64)
    x[0, 1] = x[0, 0]  # equal tokens are no kink
    inputs = x.requires_grad_(), beta.requires_grad_()
    assert torch.autograd.gradcheck(distance_attention, inputs)
    assert torch.autograd.gradgradcheck(distance_attention, inputs)
    each = vmap(lambda t: distance_attention(t[None], beta)[0])(x)
    torch.testing.assert_close(each, distance_attention(x, beta))


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e6, 1e18])
def test_tokens_of_any_size(scale):
    layer = DistanceAttention(4)
    x = (scale * torch.randn(2, 5, 4)).requires_grad_()
    y = layer(x)
    y.sum().backward()
    assert y.isfinite().all() and x.grad.isfinite().all() and y.norm() <= x.norm() * 1.001 + 10


def test_refusals():
    with pytest.raises(ParameterError, match="must divide embed_dim"):
        DistanceAttention(6, 4)
    with pytest.raises(ParameterError, match="step must be"):
        DistanceAttention(6, step=-1.0)
    with pytest.raises(ShapeError, match="with 6 channels"):
        DistanceAttention(6)(torch.randn(2, 5, 4))
    with pytest.raises(ShapeError, match="with 4 tokens"):
        TokenMixing(4)(torch.randn(2, 5, 4))
    assert repr(DistanceAttention(6, 2, step=2.0, lipschitz=0.5)).startswith(
        "DistanceAttention(\n  6, num_heads=2, step=2, lipschitz=0.5"
    )
    with pytest.raises(ShapeError, match="one sharpness for each head"):  # each of five would get all channels
        distance_attention(torch.randn(1, 3, 4), torch.ones(1, 5))
