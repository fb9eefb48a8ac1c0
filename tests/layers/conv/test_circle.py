"""Convolutions that are orthogonal at each frequency of the image, judged by their operators on images."""

import copy
import io
import itertools
import random
import warnings
from contextlib import contextmanager, nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import orthogonium
from orthogonium import build_once
from orthogonium.errors import GeometryError, GuaranteeWarning, ParameterError, ShapeError
from orthogonium.kernels import ConvGeometry, select_method
from orthogonium.layers import LipschitzConv2d, LipschitzLinear, MaxMin, freeze
from orthogonium.layers.conv import circle
from orthogonium.layers.conv.execution import select_execution
from orthogonium.models import create_model
from orthogonium.spectral import spectrum
from tests.oracle import operator, singular_values

METHODS = ["Cayley", "LOT", "BRO", "ECO"]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-11}
methods = pytest.mark.parametrize("method", METHODS)


def conv(method, dims=2):
    return getattr(circle, f"{method}Conv{dims}d")


# ── singular values over random geometries ──


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


# ── the operators that the papers define, without Fourier transforms ──


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


# ── image sizes ──


@methods
def test_each_image_size_has_its_kernel(method):
    layer = conv(method)(2, 3, 3, stride=2, image_size=6)
    for size in (8, 6, 4, (4, 10)):
        other = conv(method)(2, 3, 3, stride=2, image_size=size)
        other.load_state_dict(layer.state_dict())
        x = torch.randn(2, 2, *other.weight.shape[2:])
        for module in (layer, layer.eval()):
            torch.testing.assert_close(module(x), other(x))
    assert layer.image_size == (6, 6) and layer.weight.shape[2:] == (6, 6)


@methods
def test_eval_keeps_a_kernel_for_each_size_and_no_stale_one(method):
    layer = conv(method)(2, 3, 3, image_size=4).eval()
    kernel = layer.parametrizations.weight[0].kernel
    count, taps = [], kernel.taps
    kernel.taps = lambda *args: count.append(1) or taps(*args)
    images = [torch.randn(1, 2, n, n) for n in (4, 5, 6)]
    with torch.no_grad():
        before = [layer(x) for _ in range(3) for x in images]
        assert len(count) == 3
        for p in layer.parametrizations.parameters():
            p.data.mul_(torch.linspace(0.5, 2, p.numel()).view_as(p))
        after = [layer(x) for x in images]
        expected = [copy.deepcopy(layer).train()(x) for x in images]
    for x, y, z in zip(before, after, expected, strict=False):
        assert not torch.equal(x, y)
        torch.testing.assert_close(y, z)


@pytest.mark.parametrize("method", ["Cayley", "ECO"])
def test_compilers_make_a_graph_for_each_size(method):
    """One for sizes that are left open would take them minutes."""
    torch._dynamo.reset()
    layer, graphs = conv(method, 1)(2, 3, 3, image_size=6), []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    for size in (6, 8, 10, 8):
        x = torch.randn(2, 2, size)
        torch.testing.assert_close(compiled(x), layer(x))
    assert len(graphs) == 3


@methods
def test_the_first_images_say_what_the_weight_is_for(method):
    layer = conv(method)(2, 3, 3, stride=2)
    layer(torch.randn(1, 2, 5, 8))
    assert layer.image_size == layer.kernel_size == (6, 8) and layer.weight.shape == (3, 2, 6, 8)
    layer(torch.randn(1, 2, 4, 4))
    assert layer.image_size == (6, 8) and "image_size=(6, 8)" in repr(layer)
    assert copy.deepcopy(layer).image_size == (6, 8)


@methods
def test_plain_weights_serve_the_sizes_that_divide_theirs(method):
    layer = conv(method)(2, 3, 3, image_size=6)
    plain = freeze(layer)
    assert str((6, 6)) in str(plain.guarantee)
    smaller = ((3, 6), (2, 1))
    alone = method == "ECO"  # whose taps move apart with the image: its weight would be another layer
    for size in ((6, 6), *(() if alone else smaller)):
        assert (singular_values(plain, 2, *size) - 1).abs().max() <= 1e-5
        x = torch.randn(1, 2, *size)
        torch.testing.assert_close(plain(x), layer(x))
    for size in ((5, 6), (12, 12), *(smaller if alone else ())):
        with pytest.raises(ShapeError, match="weight is fixed, for images of"):
            plain(torch.randn(1, 2, *size))


@methods
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_traced_layers_refuse_other_sizes(method):
    """Images of 4 and of 5 pixels have as many frequencies in the half that is computed, but other ones."""
    layer = conv(method, 1)(2, 3, 3, image_size=4).eval()
    for module in (layer, freeze(layer)):
        x = torch.randn(2, 2, 4)
        traced = torch.jit.trace(module, x[:1], check_trace=False)
        torch.testing.assert_close(traced(x), module(x))
        for size in (5, 8, 2, 1):
            with pytest.raises(RuntimeError):
                traced(torch.randn(1, 2, size))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
def test_onnx_graphs_refuse_other_sizes():
    """Also if their axes are said to be dynamic: with the kernel of one size, others expand."""
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    layer, file = freeze(circle.CayleyConv2d(2, 2, 3, image_size=4)).eval(), io.BytesIO()
    axes = {"x": {0: "batch", 2: "rows", 3: "columns"}}
    torch.onnx.export(layer, (torch.randn(1, 2, 4, 4),), file, dynamo=False, input_names=["x"], dynamic_axes=axes)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(file.getvalue(), options)
    x = torch.randn(3, 2, 4, 4)
    torch.testing.assert_close(torch.from_numpy(session.run(None, {"x": x.numpy()})[0]), layer(x).detach())
    for size in ((5, 5), (8, 8), (2, 8)):
        with pytest.raises(Exception, match="Reshape"):
            session.run(None, {"x": torch.randn(1, 2, *size).numpy()})


def test_a_network_settles_its_sizes():
    model = nn.Sequential(circle.CayleyConv2d(2, 4, 3, stride=2), nn.Dropout(), circle.BROConv2d(4, 4, 3))
    model[1].eval()
    circle.settle_image_sizes(model, (2, 8, 6))
    assert [model[0].image_size, model[2].image_size] == [(8, 6), (4, 3)]
    assert [m.training for m in model] == [True, False, True]


# ── networks ──


@methods
def test_networks_are_certified(method):
    model = create_model("lip_resnet_tiny", (1, 8, 8), 5, widths=(8, 12), depths=(1, 1), method=method.lower()).eval()
    layers = [m for m in model.modules() if isinstance(m, circle.CircleConv)]
    assert layers and all(layer.image_size for layer in layers)
    bound = orthogonium.lipschitz_bound(model, (1, 8, 8))
    assert bound.value <= 1 + 1e-4 and not orthogonium.audit(model, (1, 8, 8)).warnings
    frozen = freeze(model)
    assert orthogonium.lipschitz_bound(frozen, (1, 8, 8)).value <= 1 + 1e-4
    data = [(torch.rand(4, 1, 8, 8), torch.arange(4))]
    certificates = orthogonium.certify(model, data)
    torch.testing.assert_close(certificates.radii, orthogonium.certify(frozen, data).radii)


@methods
def test_bounds_are_those_of_the_weight(method):
    """And of no promise: a weight that expands is found."""
    layer = freeze(conv(method)(3, 4, 3, stride=2, groups=1, image_size=6, dtype=torch.float64))
    with torch.no_grad():
        layer.weight[:, :, 2:4] *= 1.7
    expected = singular_values(layer, 3, 6, 6)[0].item()
    assert expected > 1.05
    assert orthogonium.lipschitz_bound(layer, (3, 6, 6)).value == pytest.approx(expected, rel=1e-9)
    assert "guarantee is broken" in str(orthogonium.audit(layer, (3, 6, 6)).warnings)
    for size in ((3, 2, 2), (3, 2, 6)) if layer.wraps else ():  # the weight wraps around
        expected = singular_values(layer, *size)[0].item()
        assert orthogonium.lipschitz_bound(layer, size).value == pytest.approx(expected, rel=1e-9)


@methods
def test_errors_of_float32_are_within_their_bound(method):
    for size in ((8, 8), (7, 11)):
        model = nn.Sequential(conv(method)(4, 8, 3), MaxMin(), conv(method)(8, 4, 2, stride=2)).eval()
        bound = orthogonium.lipschitz_bound(model, (4, *size))
        x = torch.randn(3, 4, *size)
        with torch.no_grad():
            exact = nn.Sequential(*(freeze(m).double() for m in model))  # the same weights
            error = (model(x).double() - exact(x.double())).flatten(1).norm(dim=1)
        allowed = bound.error.proved[0] + bound.error.proved[1] * x.flatten(1).norm(dim=1).double()
        assert (error <= allowed).all() and bool((error > 0).any())


@methods
def test_inverses(method):
    layer = conv(method)(2, 8, 3, stride=2, lipschitz=2.0)
    undone = orthogonium.inverse(layer)
    for size in ((6, 6), (4, 8)):
        x = torch.randn(2, 2, *size)
        torch.testing.assert_close(undone(layer(x)), x, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(undone(layer(x)[0]), x[0], rtol=1e-4, atol=1e-5)
    assert orthogonium.lipschitz_bound(undone, (8, 3, 3)).value == pytest.approx(0.5, rel=1e-5)


@methods
def test_spectra_are_those_of_the_images_asked_for(method):
    layer = conv(method)(2, 2, 3, image_size=6)
    found = spectrum(layer, (2, 4, 5))
    assert found.kind == "exact" and abs(found.sigma_max - 1) <= 1e-5 and abs(found.sigma_min - 1) <= 1e-5


# ── building ──


@contextmanager
def together(model):
    handle = orthogonium.build_together(model)
    yield
    handle.remove()


def gradients(model, x, context):
    model.zero_grad()
    with context(model):
        for part in x.split(2):
            model(part).sin().sum().backward()
    return [p.grad.clone() for p in model.parameters()]


@methods
def test_built_once_and_together(method):
    """Layers of equal taps on images of other sizes are not of a kind."""
    cls = conv(method)
    model = nn.Sequential(*(cls(3, 3, 3) for _ in range(3)), nn.AvgPool2d(2), cls(3, 3, 3), cls(3, 3, 3))
    circle.settle_image_sizes(model, (3, 6, 6))
    x = torch.randn(4, 3, 6, 6)
    expected = gradients(model, x, nullcontext)
    for found in (gradients(model, x, build_once), gradients(model, x, together)):
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_other_images_inside_of_build_once_are_refused():
    """Their gradient would not pass the weight that was built for all passes."""
    model = nn.Sequential(circle.CayleyConv2d(3, 3, 3))
    with build_once(model), pytest.raises(ShapeError, match="inside of build_once"):
        model(torch.randn(1, 3, 5, 5))
    model(torch.randn(1, 3, 5, 5))
    with build_once(model):
        model(torch.randn(1, 3, 5, 5)).sum().backward()


# ── arguments ──


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


@pytest.mark.parametrize("method", ["cayley", "lot", "bro", "eco", "spectral"])
def test_dense_layers_and_options_by_name(method):
    assert (singular_values(LipschitzLinear(5, 3, method=method), 5)[0] - 1).abs() <= 0.02
    layer = LipschitzConv2d(4, 6, 3, method=method, **({} if method == "spectral" else {"image_size": 5}))
    assert singular_values(layer, 4, 5, 5)[0] <= 1 + 1e-5
