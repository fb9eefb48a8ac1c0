"""Layers by the name of their method."""

import functools
import inspect
import pickle

import pytest
import torch
from torch import nn

from orthogonium import ClassParam
from orthogonium.errors import GeometryError, ParameterError
from orthogonium.layers import (
    CPLConv2d,
    CPLLinear,
    HouseHolder,
    HouseHolder_Order_2,
    NActivation,
    OrthoLinear,
    SDPBasedLipschitzResBlock,
    SLLxAOCLipschitzResBlock,
    lipschitz,
)
from orthogonium.layers.lipschitz import LipschitzConv2d, LipschitzLinear, layer_class
from orthogonium.linalg import EXP_ORTHO_PARAMS
from orthogonium.methods import METHODS, Method
from tests.jacobians import singular_values as jacobian_values
from tests.oracle import plain_conv, singular_values


@pytest.mark.parametrize("method,dims", [(n, d) for n, m in METHODS.items() if not m.activated for d in m.conv])
def test_convolutions_by_name(method, dims):
    stride = 2 if METHODS[method].stride else 1
    conv = getattr(lipschitz, f"LipschitzConv{dims}d")(2, 3, 3, stride, method=method, bias=False, dtype=torch.float64)
    assert isinstance(conv, layer_class(METHODS[method].conv[dims])) and isinstance(conv, plain_conv(dims))
    assert conv.weight.dtype == torch.float64 and conv.bias is None
    size = [4] * dims
    assert conv(torch.randn(1, 2, *size).double()).shape == (1, 3, *[4 // stride] * dims)
    assert singular_values(conv, 2, *size)[0] <= 1 + 1e-6


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("method", [n for n, m in METHODS.items() if m.conv_transpose])
def test_transposed_convolutions_by_name(method, dims):
    stride = 2 if METHODS[method].stride else 1
    conv = getattr(lipschitz, f"LipschitzConvTranspose{dims}d")(3, 2, 3, stride, method=method)
    assert isinstance(conv, plain_conv(dims, transposed=True))
    assert conv(torch.randn(1, 3, *[2] * dims)).shape == (1, 2, *[2 * stride] * dims)
    assert singular_values(conv, 3, *[2] * dims)[0] <= 1 + 1e-6


@pytest.mark.parametrize("method", [n for n, m in METHODS.items() if m.linear and not m.activated])
def test_dense_layers_by_name(method):
    layer = LipschitzLinear(5, 3, method=method)
    assert isinstance(layer, nn.Linear) and singular_values(layer, 5)[0] <= 1 + 1e-6


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("method", [n for n, m in METHODS.items() if m.activated])
def test_layers_that_contain_their_activation(method, dims):
    entry = METHODS[method]
    out, stride = (2 if entry.square else 3), (2 if entry.stride else 1)
    layer = getattr(lipschitz, f"LipschitzConv{dims}d")(2, out, 3, stride, method=method)
    assert isinstance(layer, layer_class(entry.conv[dims]))
    x = torch.randn(1, 2, *[4] * dims)
    assert layer(x).shape == (1, out, *[4 // stride] * dims)
    assert jacobian_values(layer, x)[0] <= 1 + 1e-5
    with pytest.raises(ParameterError, match="activation"):
        getattr(lipschitz, f"LipschitzConv{dims}d")(2, out, 3, method=method, activation="gelu")
    if entry.square:
        with pytest.raises(ParameterError, match="keeps the number of channels"):
            getattr(lipschitz, f"LipschitzConv{dims}d")(2, 3, 3, method=method)
    if entry.linear:
        dense = LipschitzLinear(4, 4, method=method)
        assert isinstance(dense, layer_class(entry.linear))
        assert jacobian_values(dense, torch.randn(1, 4))[0] <= 1 + 1e-5


def test_options_reach_the_layer():
    assert LipschitzConv2d(2, 2, 3, method="soc", order=8).weight.shape[-1] == 17
    niter = LipschitzConv2d(2, 2, 3, method="aol", niter=3).parametrizations.weight[0].kernel.niter
    assert niter == 3
    by_name = LipschitzLinear(3, 3, method="aoc", ortho_params=EXP_ORTHO_PARAMS)
    same, other = OrthoLinear(3, 3, ortho_params=EXP_ORTHO_PARAMS), OrthoLinear(3, 3)
    raw = torch.randn(3, 3)
    for layer in (by_name, same, other):
        layer.parametrizations.weight.original = nn.Parameter(raw.clone())
    assert torch.equal(by_name.weight, same.weight) and not torch.allclose(by_name.weight, other.weight, atol=1e-3)
    conv = ClassParam(LipschitzConv2d, method="aol", bias=False)(2, 4, 3, stride=2, groups=2)
    assert conv.groups == 2 and conv.stride == (2, 2) and conv.bias is None


def test_unknown_names_list_the_known_ones():
    with pytest.raises(ParameterError, match="aoc, bcop, rko, soc, aol"):
        LipschitzConv2d(2, 2, 3, method="AOC")
    with pytest.raises(ParameterError, match="spectral"):
        LipschitzLinear(2, 2, method="nothing")
    with pytest.raises(ParameterError, match="its layers are SDPBased.*aoc, bcop"):
        LipschitzLinear(2, 2, method="sll")


def test_options_that_a_layer_does_not_take_are_refused():
    with pytest.raises(ParameterError, match="does not take niter.*ortho_params"):
        LipschitzConv2d(2, 2, 3, method="aoc", niter=2)
    with pytest.raises(ParameterError, match="does not take kernelsize"):
        LipschitzConv2d(2, 2, 3, kernelsize=5)


class _Block(nn.Module):
    """Has fewer arguments than a convolution, as non-linear blocks do."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int = 3, *, factor: float = 1.0) -> None:
        super().__init__()


def test_layers_with_fewer_arguments(monkeypatch):
    entry = Method("block", "none", "lipschitz", "any", "c", conv={2: _Block})
    monkeypatch.setitem(METHODS, "block", entry)
    assert isinstance(LipschitzConv2d(2, 2, 3, method="block", factor=2.0), _Block)
    with pytest.raises(ParameterError, match="does not take stride.*factor"):
        LipschitzConv2d(2, 2, 3, stride=2, method="block")


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_convolution_and_its_transpose_have_the_same_defaults(dims):
    plain, transposed = (
        inspect.signature(getattr(lipschitz, f"Lipschitz{name}{dims}d")).parameters
        for name in ("Conv", "ConvTranspose")
    )
    assert {*transposed} - {*plain} == {"output_padding"}
    assert all(transposed[name].default == parameter.default for name, parameter in plain.items())


@pytest.mark.parametrize("method", METHODS)
def test_integers_that_keep_the_image_are_accepted_by_all(method):
    """One rule: what gives as many pixels as "same" for every size."""
    for kernel, dilation, padding in ((3, 1, 1), (5, 1, 2), (3, 2, 2), (1, 1, 0), ((3, 5), 1, (1, 2))):
        if dilation > 1 and not METHODS[method].dilation:
            continue
        conv = LipschitzConv2d(4, 4, kernel, padding=padding, dilation=dilation, method=method)
        x = torch.randn(1, 4, 9, 8)
        assert conv(x).shape == x.shape
        assert jacobian_values(conv, torch.randn(1, 4, 6, 6))[0] <= 1 + 1e-5
    if METHODS[method].stride:
        conv = LipschitzConv2d(4, 4, 3, 2, padding=1, method=method)
        assert conv(torch.randn(1, 4, 9, 8)).shape == (1, 4, 5, 4)


@pytest.mark.parametrize("method", [name for name, entry in METHODS.items() if entry.activated])
def test_blocks_refuse_integers_that_do_not(method):
    for kernel, padding in ((3, 0), (3, 2), (4, 1), ((3, 5), 1), (3, "valid")):
        with pytest.raises(GeometryError, match="keeps the image.*got"):
            LipschitzConv2d(4, 4, kernel, padding=padding, method=method)
    same, integer = (LipschitzConv2d(4, 4, 3, padding=padding, method=method) for padding in ("same", 1))
    integer.load_state_dict(same.state_dict())
    x = torch.randn(2, 4, 7, 7)
    assert torch.equal(same(x), integer(x))


STRIDED_BLOCKS = [
    (method, kernel, stride, dilation)
    for method, entry in METHODS.items()
    for kernel, stride, dilation in [
        ((3, 3), (2, 2), 1),
        ((7, 7), (2, 2), 1),
        ((5, 5), (3, 3), 1),
        ((3, 3), (4, 4), 1),
        ((5, 3), (3, 1), 1),
        ((3, 3), (2, 2), 2),
    ]
    if entry.activated and entry.stride and (dilation == 1 or method != "sandwich")
]


@pytest.mark.parametrize("method,kernel,stride,dilation", STRIDED_BLOCKS)
def test_strided_blocks_see_the_pixels_that_torch_does(method, kernel, stride, dilation):
    """Around every s-th pixel, for integers; those of "same" are those of an image that is moved on its circle."""
    padding = tuple(dilation * (k - 1) // 2 for k in kernel)
    sizes, options = (2, 6, kernel, stride), {"dilation": dilation, "dtype": torch.float64}
    make = functools.partial(LipschitzConv2d, *sizes, method=method, **options)
    layer, same = (make(padding=p, padding_mode="circular") for p in (padding, "same"))
    same.load_state_dict(layer.state_dict())
    ahead = [p - max(2 * p + 1 - s, 0) // 2 for p, s in zip(padding, stride, strict=True)]
    x = torch.randn(2, 2, 12, 12, dtype=torch.float64)
    torch.testing.assert_close(layer(x), same(x.roll(ahead, (2, 3))))
    # What an output depends on reaches as far to either side of its pixel, as it does in torch.
    x = torch.randn(1, 2, 36, 36, dtype=torch.float64, requires_grad=True)
    y = make(padding=padding, padding_mode="zeros")(x)
    assert y.shape == nn.Conv2d(*sizes, padding, **options)(x).shape
    middle = [n // 2 for n in y.shape[2:]]
    (slope,) = torch.autograd.grad(y[0, :, middle[0], middle[1]].sum(), x)
    for axis in range(2):
        seen = slope.abs().sum((0, 1, 3 - axis)).nonzero()
        assert seen.min() + seen.max() == 2 * stride[axis] * middle[axis]
    assert jacobian_values(make(padding=padding, padding_mode="zeros"), x[..., :7, :7].detach())[0] <= 1 + 1e-12


def test_arguments_of_two_names():
    assert SDPBasedLipschitzResBlock(cin=4, inner_dim_factor=1).in_channels == 4
    assert SDPBasedLipschitzResBlock(in_channels=4, inner_dim_factor=1).in_channels == 4
    both = SLLxAOCLipschitzResBlock(in_channels=4, cout=6, inner_dim_factor=1)
    assert (both.in_channels, both.out_channels) == (4, 6)
    assert CPLConv2d(in_channels=4).in_channels == CPLConv2d(channels=4).in_channels == 4
    assert CPLLinear(in_features=4).in_features == CPLLinear(features=4).in_features == 4
    for activation in (HouseHolder, HouseHolder_Order_2, NActivation):
        assert activation(in_channels=4).channels == activation(channels=4).channels == 4
    with pytest.raises(ParameterError, match="two names of one argument"):
        SDPBasedLipschitzResBlock(in_channels=4, cin=4, inner_dim_factor=1)
    with pytest.raises(TypeError):
        SDPBasedLipschitzResBlock(4, cin=4, inner_dim_factor=1)


def test_the_functions_pickle():
    for name in ("LipschitzConv1d", "LipschitzConvTranspose3d", "LipschitzLinear"):
        function = getattr(lipschitz, name)
        assert pickle.loads(pickle.dumps(function)) is function and function.__doc__
