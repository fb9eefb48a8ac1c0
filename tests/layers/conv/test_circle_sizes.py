"""Kernels as large as the image: one for each size, kept, built beforehand, frozen and traced."""

import copy
import io
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import nn

import orthogonium
from orthogonium import build_once
from orthogonium.errors import ShapeError
from orthogonium.layers import freeze
from orthogonium.layers.conv import circle
from tests.layers.conv.circles import conv, methods
from tests.oracle import singular_values


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


@pytest.mark.parametrize("method", ["Cayley", "ECO"])
def test_compilers_make_a_graph_for_each_size(method):
    """One for sizes that are left open would take them minutes."""
    torch.compiler.reset()
    layer, graphs = conv(method, 1)(2, 3, 3, image_size=6), []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    for size in (6, 8, 10, 8):
        x = torch.randn(2, 2, size)
        torch.testing.assert_close(compiled(x), layer(x))
    assert len(graphs) == 3


def test_a_network_settles_its_sizes():
    model = nn.Sequential(circle.CayleyConv2d(2, 4, 3, stride=2), nn.Dropout(), circle.BROConv2d(4, 4, 3))
    model[1].eval()
    circle.settle_image_sizes(model, (2, 8, 6))
    assert [model[0].image_size, model[2].image_size] == [(8, 6), (4, 3)]
    assert [m.training for m in model] == [True, False, True]


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
    with build_once(model), pytest.raises(ShapeError, match="inside build_once"):
        model(torch.randn(1, 3, 5, 5))
    model(torch.randn(1, 3, 5, 5))
    with build_once(model):
        model(torch.randn(1, 3, 5, 5)).sum().backward()
