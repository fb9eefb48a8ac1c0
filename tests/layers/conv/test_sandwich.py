"""Sandwich convolutions: the pair of operators, agreement with the layer as published, arguments."""

import math

import pytest
import torch
from torch import nn

from orthogonium.errors import GeometryError, ParameterError
from orthogonium.layers.conv.execution import convolve
from orthogonium.layers.conv.sandwich import SandwichConv1d, SandwichConv2d, SandwichConv3d
from orthogonium.layers.sandwich import SandwichLinear
from orthogonium.linalg import CAYLEY_ORTHO_PARAMS
from tests.jacobians import ascend, jacobian_norm, jacobians
from tests.oracle import operator


def operators(layer, *size):
    """B and Aᵀ of a layer, as matrices from impulse responses: each convolution of the layer by itself."""
    inner, outer = layer.packing.unpack(layer.weight.detach())
    first, second = layer.borders
    b = operator(_Convolution(layer, inner, first), layer.in_channels, *size)
    coarse = [n // s for n, s in zip(size, layer.stride, strict=True)]
    a = operator(_Convolution(layer, outer, second), layer.out_channels, *coarse)
    return b / math.sqrt(2), a / math.sqrt(2)


class _Convolution(nn.Module):
    def __init__(self, layer, kernel, border):
        super().__init__()
        self.kernel = nn.Parameter(kernel)
        self.apply_to = lambda x: convolve(x, kernel, None, border, layer.dilation, layer.groups)

    def forward(self, x):
        return self.apply_to(x)


GEOMETRIES = [
    {"kernel_size": 3},
    {"kernel_size": 2, "dilation": 2},
    {"kernel_size": 4, "stride": 2},
    {"kernel_size": 3, "stride": 2},
    {"kernel_size": 1, "stride": 2},
    {"kernel_size": (3, 2), "stride": (1, 2)},
    {"kernel_size": (2, 5), "stride": (3, 2)},
    {"kernel_size": 2, "groups": 2, "stride": 2},
]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_the_pair_is_orthonormal(geometry):
    """`AAᵀ + BBᵀ = I` on circular images whose size the stride divides, also after Ψ is divided out."""
    layer = SandwichConv2d(2, 4, **geometry, dtype=torch.float64)
    d = list(layer.parametrizations.parameters())[-1]
    with torch.no_grad():
        d.normal_()
    b, a = operators(layer, 6, 6)
    coarse = b.shape[0] // 4
    psi = (5 * torch.tanh(d.detach() / 5)).exp().repeat_interleave(coarse)
    b, a = psi[:, None] * b, a / psi
    torch.testing.assert_close(a.T @ a + b @ b.T, torch.eye(len(b)).double(), rtol=0, atol=1e-12)


def test_dense_is_one_pixel():
    conv, dense = SandwichConv2d(3, 5, 1, dtype=torch.float64), SandwichLinear(3, 5, dtype=torch.float64)
    dense.load_state_dict(conv.state_dict())
    x = torch.randn(4, 3).double()
    torch.testing.assert_close(conv(x[..., None, None])[..., 0, 0], dense(x), rtol=1e-12, atol=1e-12)


def test_output_is_the_formula():
    layer = SandwichConv2d(2, 3, 3, stride=2, activation="tanh", dtype=torch.float64)
    b, a = operators(layer, 4, 6)
    x = torch.randn(5, 2, 4, 6).double()
    bias = layer.bias.detach().repeat_interleave(6)
    expected = math.sqrt(2) * torch.tanh(math.sqrt(2) * x.flatten(1) @ b.T + bias) @ a.T
    torch.testing.assert_close(layer(x).flatten(1), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("mode", ["zeros", "circular"])
def test_trained_toy_uses_the_bound(stride, mode):
    layer = SandwichConv2d(2, 8, 3, stride, padding_mode=mode)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    x, y = torch.randn(2, 8, 2, 4, 4)
    for _ in range(100):
        optimizer.zero_grad()
        (-(layer(x) - layer(y)).flatten(1).norm(dim=1) / (x - y).flatten(1).norm(dim=1)).mean().backward()
        optimizer.step()
    layer.eval().requires_grad_(False)
    assert 0.9 <= jacobian_norm(layer, torch.cat([x, ascend(layer, x)])) <= 1 + 1e-5


def test_scales_may_be_large():
    """Ψ⁻¹ inside and Ψ outside: without the former the layer would be max(e^d)-Lipschitz."""
    layer = SandwichConv2d(2, 4, 3, dtype=torch.float64)
    with torch.no_grad():
        list(layer.parametrizations.parameters())[-1].copy_(3 * torch.randn(4))
    assert jacobian_norm(layer, torch.randn(8, 2, 4, 4).double()) <= 1 + 1e-11


def test_identity_inside_is_linear():
    layer = SandwichConv1d(2, 3, 3, activation="identity", dtype=torch.float64)
    j = jacobians(layer, torch.randn(2, 2, 8).double())
    assert torch.equal(j[0], j[1]) and torch.linalg.matrix_norm(j[0], ord=2) <= 1 + 1e-11


def test_dimensions():
    assert SandwichConv1d(2, 3, 5, 2)(torch.randn(1, 2, 9)).shape == (1, 3, 5)
    assert SandwichConv3d(2, 3, (1, 2, 3), (1, 2, 1))(torch.randn(1, 2, 3, 5, 4)).shape == (1, 3, 3, 3, 4)


def test_arguments():
    layer = SandwichConv2d(2, 3, 3, bias=False, ortho_params=CAYLEY_ORTHO_PARAMS)
    assert layer.bias is None and len(list(layer.parameters())) == 1
    used = layer.parametrizations.weight[0].kernel.pair.orthonormalize
    assert isinstance(used, type(CAYLEY_ORTHO_PARAMS.build((1, 2, 4))))
    with pytest.raises(GeometryError, match="either stride or dilation"):
        SandwichConv2d(2, 3, 3, 2, dilation=2)
    with pytest.raises(GeometryError, match="padding_mode"):
        SandwichConv2d(2, 3, 3, padding_mode="replicate")
    with pytest.raises(GeometryError, match="groups"):
        SandwichConv2d(2, 3, 3, groups=2)
    with pytest.raises(ParameterError, match="SELU"):
        SandwichConv2d(2, 3, 3, activation=nn.SELU())
    with pytest.raises(TypeError):
        SandwichConv2d(2, 3, 3, strides=2)


@pytest.mark.parametrize("value", [-100.0, -50.0, 50.0, 100.0])
def test_extreme_scales_stay_finite(value):
    layer = SandwichConv2d(4, 6, 3)
    with torch.no_grad():
        layer.parametrizations.weight.original1.fill_(value)
    out = layer(torch.randn(2, 4, 5, 5))
    out.sin().sum().backward()
    assert torch.isfinite(out).all() and all(torch.isfinite(p.grad).all() for p in layer.parameters())
