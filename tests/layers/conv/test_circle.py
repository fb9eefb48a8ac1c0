"""Convolutions that are orthogonal at each frequency of the image, judged by their operators on images."""

import copy
import itertools
import random
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import orthogonium
from orthogonium.errors import GeometryError, GuaranteeWarning, ParameterError, ShapeError
from orthogonium.kernels import ConvGeometry, select_method
from orthogonium.layers import LipschitzConv2d, LipschitzLinear
from orthogonium.layers.conv import circle
from orthogonium.layers.conv.execution import select_execution
from tests.layers.conv.circles import TOLERANCE, conv, methods
from tests.oracle import operator, singular_values


def geometries(count, seed):
    """Channels, groups, kernel, stride and an image that the stride divides, of one to three dimensions."""
    draw = random.Random(seed)
    while count:
        dims = draw.choice([1, 1, 2, 2, 2, 3])
        g = draw.choice([1, 1, 2])
        ci, co = (g * draw.randint(1, 4) for _ in range(2))
        k = tuple(draw.randint(1, 4) for _ in range(dims))
        s = tuple(draw.choice([1, 1, 2, 3]) for _ in range(dims))
        size = tuple(draw.randint(1, 5 if dims < 3 else 3) * n for n in s)
        if ci * torch.Size(size).numel() <= 200:
            count -= 1
            yield dims, ci, co, g, k, s, size


def possible(method, dims, ci, co, g, k, s):
    """Full rank of the taps' symbol is what a polar factor needs; a reflector needs something to leave as it is."""
    if method == "LOT":
        try:
            select_method(ConvGeometry.of(dims, ci, co, k, s, 1, g))
        except GeometryError:
            return False
    phases = torch.Size(s).numel()
    return method != "BRO" or max(co // g, ci // g * phases) > 1


CHUNKS = 4


@methods
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_all_singular_values_are_one(method, chunk):
    """Before and after optimizer steps; 100 geometries for each method."""
    judged = 0
    stream = geometries(10_000, chunk)
    while judged < 100 / CHUNKS:
        dims, ci, co, g, k, s, size = next(stream)
        dtype = (torch.float32, torch.float64)[judged % 2]
        options = {"stride": s, "groups": g, "dtype": dtype, "image_size": size if judged % 3 else None}
        if not possible(method, dims, ci, co, g, k, s):
            with pytest.raises(GeometryError):
                conv(method, dims)(ci, co, k, **options)
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GuaranteeWarning)  # kernels with nothing to learn
            layer = conv(method, dims)(ci, co, k, **options)
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
        for step in range(3):
            sigma = singular_values(layer, ci, *size)
            case = (dims, ci, co, g, k, s, size, dtype, step)
            assert (sigma - 1).abs().max() <= TOLERANCE[dtype], case
            optimizer.zero_grad()
            y = layer(torch.randn(2, ci, *size, dtype=dtype))
            (y * torch.randn_like(y)).sum().backward()
            optimizer.step()
        judged += 1


def _repeat(raw):
    raw[:, 1:] = raw[:, :1]


def _outer(raw):
    raw.copy_(torch.randn_like(raw[:, :1, :1, :1]) * torch.randn_like(raw[:1]))


def _differences(raw):
    raw -= raw.mean((2, 3), keepdim=True)


@pytest.mark.parametrize("edit", [torch.zero_, _repeat, _outer, _differences])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_reflectors_of_dependent_directions(edit, dtype):
    """Taps whose symbol has lost rank, at some frequencies or at all: rounding chooses what is reflected."""
    for ci, co, stride, groups, size in (
        (4, 4, 1, 1, (4, 4)),
        (4, 6, 1, 1, (6, 5)),
        (2, 5, 2, 1, (4, 8)),
        (4, 8, 1, 2, (3, 4)),
    ):
        layer = circle.BROConv2d(ci, co, 3, stride=stride, groups=groups, dtype=dtype)
        with torch.no_grad():
            edit(layer.parametrizations.weight.original)
        x = torch.randn(2, ci, *size, dtype=dtype)
        layer(x).square().sum().backward()
        assert layer.parametrizations.weight.original.grad.isfinite().all()
        expected = layer(x)
        for again in (layer, layer.eval()):
            assert (singular_values(again, ci, *size) - 1).abs().max() <= TOLERANCE[dtype]
            torch.testing.assert_close(again(x), expected)


def _nearly_dependent(layer, distance):
    with torch.no_grad():
        raw = layer.parametrizations.weight.original
        raw.normal_()
        raw[:, -1] = raw[:, 0] + distance * raw[:, -1]
    return layer


@pytest.mark.parametrize("distance", [1e-3, 1e-6, 1e-7])
def test_reflectors_of_nearly_dependent_directions(distance):
    """Transforms of these sizes round ω and −ω apart, and what the directions differ by is no more than that."""
    layer = _nearly_dependent(circle.BROConv2d(3, 3, 3, rank=2), distance)
    assert (singular_values(layer, 3, 9, 20) - 1).abs().max() <= TOLERANCE[torch.float32]


@pytest.mark.parametrize(("method", "distance"), [("LOT", 1e-4), ("BRO", 1e-3)])
def test_float32_is_float64_to_rounding(method, distance):
    """Weights and gradients, of symbols with condition numbers up to 1e5 or so."""
    layer = _nearly_dependent(conv(method, 2)(6, 6, 3, image_size=8), distance)
    upstream = torch.randn_like(layer.weight)
    results = []
    for twin in (layer, copy.deepcopy(layer).double()):
        weight = twin.weight
        raw = list(twin.parametrizations.weight.parameters())
        results.append([weight, *torch.autograd.grad(weight, raw, upstream.to(weight.dtype))])
    for found, expected in zip(*results, strict=True):
        assert (found.double() - expected).norm() <= 1e-6 * expected.norm()


@methods
def test_other_sizes_keep_the_constant(method):
    """Where the stride does not divide the image, zeros fill it up."""
    for size, stride in itertools.product([(5, 5), (3, 4), (1, 2)], [2, (1, 3)]):
        layer = conv(method)(2, 5, 3, stride=stride, lipschitz=3.0)
        sigma = singular_values(layer, 2, *size)
        assert sigma[0] <= 3 * (1 + 1e-5) and layer.lipschitz == 3
        assert layer(torch.randn(1, 2, *size)).shape[2:] == tuple(
            -(-n // s) for n, s in zip(size, circle.to_tuple(stride, 2, "stride"), strict=True)
        )


def circular(kernel, padding):
    """The circular convolution with a kernel, as a module."""
    layer = nn.Conv2d(kernel.shape[1], kernel.shape[0], kernel.shape[2:], bias=False).double()
    layer.weight.data = kernel.detach().double()
    return nn.Sequential(nn.CircularPad2d(padding), layer)


def raw_operator(layer, index=0):
    raw = list(layer.parametrizations.weight.parameters())[index]
    k = raw.shape[-1]
    pads = ((k - 1) // 2, k // 2) * 2
    return operator(circular(raw, pads), raw.shape[1], 4, 4)


def test_cayley_is_the_transform_of_the_operator():
    layer = circle.CayleyConv2d(2, 2, 3, bias=False, dtype=torch.float64)
    raw, alpha = layer.parametrizations.weight.parameters()
    w = raw_operator(layer) * (alpha / raw.norm()).item()
    eye, a = torch.eye(len(w), dtype=torch.float64), w - w.T
    torch.testing.assert_close(operator(layer, 2, 4, 4), (eye - a) @ torch.linalg.inv(eye + a))


@pytest.mark.parametrize("out", [1, 2, 3])
def test_lot_is_the_closest_orthogonal_operator(out):
    layer = circle.LOTConv2d(2, out, 3, bias=False, dtype=torch.float64)
    nn.init.normal_(next(layer.parametrizations.weight.parameters()))
    u, _, vh = torch.linalg.svd(raw_operator(layer), full_matrices=False)
    torch.testing.assert_close(operator(layer, 2, 4, 4), u @ vh, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("rank", [None, 1])
def test_bro_reflects_the_range_of_an_operator(rank):
    layer = circle.BROConv2d(3, 3, 3, bias=False, dtype=torch.float64, rank=rank)
    nn.init.normal_(next(layer.parametrizations.weight.parameters()))
    v = raw_operator(layer)
    expected = torch.eye(len(v), dtype=torch.float64) - 2 * v @ torch.linalg.inv(v.T @ v) @ v.T
    torch.testing.assert_close(operator(layer, 3, 4, 4), expected, rtol=1e-8, atol=1e-8)


def test_eco_is_an_exponential_on_small_circles():
    layer = circle.ECOConv2d(2, 2, 4, bias=False, dtype=torch.float64)
    m = raw_operator(layer)
    torch.testing.assert_close(operator(layer, 2, 4, 4), torch.linalg.matrix_exp(m - m.T))
    x = torch.randn(1, 2, 8, 8, dtype=torch.float64)
    y = layer(x)
    for i, j in itertools.product(range(2), repeat=2):  # every second pixel is an image of its own
        torch.testing.assert_close(y[..., i::2, j::2], layer(x[..., i::2, j::2]))


@methods
def test_layers_commute_with_shifts(method):
    layer = conv(method)(2, 3, 3, dtype=torch.float64)
    x = torch.randn(1, 2, 5, 6, dtype=torch.float64)
    torch.testing.assert_close(layer(x.roll((1, 2), (2, 3))), layer(x).roll((1, 2), (2, 3)))


@methods
@pytest.mark.parametrize("stride,size", [(1, (5, 6)), (2, (6, 4)), ((3, 1), (6, 5))])
def test_it_is_the_convolution_with_its_weight(method, stride, size, monkeypatch):
    layer = conv(method)(2, 4, 3, stride=stride, groups=2, dtype=torch.float64)
    x = torch.randn(2, 2, *size, dtype=torch.float64)
    y = layer(x)
    assert select_execution(layer, x).name == "frequencies" and layer.weight.shape == (4, 1, *size)
    (top, left), (bottom, right) = layer.border.left, layer.border.right
    padded = F.pad(x, (left, right, top, bottom), mode="circular") if max(size) > 1 else x
    torch.testing.assert_close(y, F.conv2d(padded, layer.weight, layer.bias, layer.stride, 0, 1, 2))
    monkeypatch.setattr("orthogonium.layers.conv.execution.exports_to_onnx", lambda: True)
    assert select_execution(layer, x).name == "padded"
    torch.testing.assert_close(layer(x), y)


@methods
@pytest.mark.parametrize("kernel,stride,padding", [(3, 2, 1), (5, (3, 1), 2), ((5, 3), 2, (2, 1))])
def test_integers_place_windows_as_torch_does(method, kernel, stride, padding):
    """Windows of "same" padding begin elsewhere if there is a stride: on a circle, that is a shift of the image."""
    layer, same = (conv(method)(2, 8, kernel, stride, p, dtype=torch.float64) for p in (padding, "same"))
    same.load_state_dict(layer.state_dict())
    x = torch.randn(2, 2, 6, 6, dtype=torch.float64)
    kernels, strides, paddings = (torch.broadcast_to(torch.tensor(t), (2,)) for t in (kernel, stride, padding))
    ahead = paddings - (kernels - strides).clamp_min(0) // 2
    y = same(x.roll(ahead.tolist(), (2, 3)))
    torch.testing.assert_close(layer(x), y)
    again = conv(method).from_torch(layer)
    torch.testing.assert_close(again(x), y)
    plain = torch.nn.utils.parametrize.remove_parametrizations(copy.deepcopy(layer), "weight")
    torch.testing.assert_close(plain(x), y)
    torch.testing.assert_close(orthogonium.inverse(layer)(y), x)


@pytest.mark.parametrize("kernel,stride", [(3, 2), (5, 2), (5, 3)])
def test_the_closest_layer_with_a_stride(kernel, stride):
    plain = nn.Conv2d(2, 2 * stride**2, kernel, stride, kernel // 2, padding_mode="circular", bias=False)
    made = circle.LOTConv2d.from_torch(plain, image_size=6)
    u, _, vh = torch.linalg.svd(operator(plain, 2, 6, 6), full_matrices=False)
    torch.testing.assert_close(operator(made, 2, 6, 6), u @ vh, rtol=1e-4, atol=1e-5)


@methods
def test_inverses(method):
    layer = conv(method)(2, 8, 3, stride=2, lipschitz=2.0)
    undone = orthogonium.inverse(layer)
    for size in ((6, 6), (4, 8)):
        x = torch.randn(2, 2, *size)
        torch.testing.assert_close(undone(layer(x)), x, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(undone(layer(x)[0]), x[0], rtol=1e-4, atol=1e-5)
        assert undone(layer(x[:0])).shape == (0, 2, *size)
    assert orthogonium.lipschitz_bound(undone, (8, 3, 3)).value == pytest.approx(0.5, rel=1e-5)


def test_the_closest_layer_of_a_plain_one():
    plain = nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular")
    made = circle.LOTConv2d.from_torch(plain, image_size=6)
    u, _, vh = torch.linalg.svd(operator(plain, 3, 6, 6), full_matrices=False)
    torch.testing.assert_close(operator(made, 3, 6, 6), u @ vh, rtol=1e-4, atol=1e-5)
    assert torch.equal(made.bias, plain.bias)
    again = circle.LOTConv2d.from_torch(made)
    assert torch.equal(again.weight, made.weight)
    fitted = circle.CayleyConv2d.from_torch(plain, image_size=6, steps=100)
    started = circle.CayleyConv2d.from_torch(plain, image_size=6, steps=0)
    assert fitted.distance_to(plain, up_to_scale=True) < started.distance_to(plain, up_to_scale=True)


def test_what_is_impossible_is_refused():
    for mode in ("zeros", "reflect"):
        with pytest.raises(GeometryError, match="wrapped around.*got"):
            LipschitzConv2d(4, 4, 3, padding_mode=mode, method="cayley")
    with pytest.raises(GeometryError, match="no dilation"):
        LipschitzConv2d(4, 4, 3, dilation=2, method="lot")
    for padding in (0, 2, "valid", (1, 0)):
        with pytest.raises(GeometryError, match="keeps the image"):
            LipschitzConv2d(4, 4, 3, padding=padding, method="eco")
    with pytest.raises(GeometryError, match="nothing to choose"):
        LipschitzConv2d(4, 4, 3, groups=4, method="bro")
    for rank in (0, 4, 1.5):
        with pytest.raises(ParameterError, match="rank.*between 1 and 3"):
            LipschitzConv2d(4, 4, 3, method="bro", rank=rank)
    with pytest.raises(GeometryError, match="image_size"):
        LipschitzConv2d(4, 4, 3, method="bro", image_size=0)
    with pytest.raises(GeometryError, match="every input must be seen"):
        LipschitzConv2d(2, 4, 1, stride=2, method="lot")
    with pytest.raises(ShapeError, match="takes images of shape"):
        LipschitzConv2d(4, 4, 3, method="cayley")(torch.randn(1, 3, 4, 4))
    with pytest.raises(GeometryError, match="wrapped around"):
        circle.LOTConv2d.from_torch(nn.Conv2d(4, 4, 3, padding=1))


@methods
def test_inputs_of_other_kinds(method):
    layer = conv(method)(2, 3, 3, image_size=4)
    x = torch.randn(2, 2, 4, 4)
    torch.testing.assert_close(layer(x[0]), layer(x)[0])
    assert layer(x[:0]).shape == (0, 3, 4, 4)
    torch.testing.assert_close(layer(x.to(memory_format=torch.channels_last)), layer(x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), layer(x), rtol=0.05, atol=0.05)
    with pytest.raises(RuntimeError):
        layer(x.double())


@pytest.mark.parametrize("method", ["cayley", "lot", "bro", "eco", "spectral"])
def test_dense_layers_and_options_by_name(method):
    assert (singular_values(LipschitzLinear(5, 3, method=method), 5)[0] - 1).abs() <= 0.02
    layer = LipschitzConv2d(4, 6, 3, method=method, **({} if method == "spectral" else {"image_size": 5}))
    assert singular_values(layer, 4, 5, 5)[0] <= 1 + 1e-5
