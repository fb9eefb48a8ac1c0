"""Which execution a layer takes. Factors in turn, where that is cheaper: the same function and gradients."""

import itertools
import math
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from orthogonium.errors import ShapeError
from orthogonium.layers.conv import aoc, execution
from orthogonium.linalg import CHOLESKY_ORTHO_PARAMS, DEFAULT_ORTHO_PARAMS, QR_ORTHO_PARAMS, in_turn
from tests.layers.conv.executions import BORDERS, count_in_turn, make, with_border
from tests.tf32 import tf32_allowed

CHANNELS = [(8, 8, 1), (16, 16, 2), (8, 6, 1), (24, 16, 2), (12, 15, 1), (3, 3, 3)]
KERNELS = {2: [(3, 3), (2, 4), (5, 2)], 3: [(3, 3, 3), (2, 4, 3), (3, 1, 3)]}
SIZES = {2: (7, 7), 3: (4, 3, 3)}
STRIDED = [  # channels, kernel, stride
    ((4, 8, 1), (3, 3), (2, 2)),
    ((4, 12, 1), (3, 4), (2, 2)),
    ((4, 16, 1), (3, 3), (2, 2)),  # a square matrix of the stride, whose columns are made orthonormal
    ((8, 32, 2), (5, 3), (2, 2)),
    ((5, 14, 1), (4, 4), (3, 3)),
    ((4, 7, 1), (3, 3), (2, 1)),
    ((3, 20, 1), (3, 3, 3), (2, 2, 2)),
]


@pytest.fixture(autouse=True, params=[False, True], ids=["orthonormal", "spans"])
def calls(monkeypatch, request):
    """The constraints whose factors were applied in turn, with any number of channels."""
    return count_in_turn(monkeypatch, spans=request.param)


def flops(function):
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


def assert_same_as_with_the_weight(layer, shape, calls):
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    results = []
    for context in (nullcontext, parametrize.cached):  # the cache of torch is that of the weight: it must be built
        with context():
            y = layer(x)
        assert len(calls) == 1
        results.append((y, *torch.autograd.grad(y.sin().sum(), [x, *(p for p in layer.parameters() if p.numel())])))
    assert results[0][0].stride() == results[1][0].stride()
    torch.testing.assert_close(*results, rtol=1e-11, atol=1e-11)
    calls.clear()


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")  # torch's own, with zeros
@pytest.mark.filterwarnings("ignore:.*the only orthogonal kernels are shifts")
@pytest.mark.parametrize("border", BORDERS, ids=str)
@pytest.mark.parametrize("channels", CHANNELS, ids=str)
@pytest.mark.parametrize("dims", [2, 3])
def test_the_same_function_and_gradients_as_with_the_weight(dims, channels, border, calls, monkeypatch):
    monkeypatch.setattr(execution, "MOST_PIXELS", 10**4)
    for layer in with_border(channels, KERNELS[dims], border, SIZES[dims]):
        assert_same_as_with_the_weight(layer, (2, channels[0], *SIZES[dims]), calls)


@pytest.mark.parametrize("border", BORDERS, ids=str)
@pytest.mark.parametrize("channels,kernel", [((4, 8, 1), 3), ((8, 4, 1), 3), ((16, 8, 2), 3), ((8, 8, 1), 1)], ids=str)
def test_kernels_that_take_as_many_products_as_their_factors(channels, kernel, border, calls):
    for layer in with_border(channels, [(3, kernel)], border, (4, 4)):
        assert_same_as_with_the_weight(layer, (1, channels[0], 4, 4), calls)
        many = torch.randn(6, channels[0], 4, 4, dtype=torch.float64)
        assert execution.select_execution(layer, many).name == "padded"


def _count(monkeypatch, function):
    """A list that grows with each evaluation of a hand-written function."""
    found, compute = [], function.compute
    monkeypatch.setattr(function, "compute", staticmethod(lambda *args: found.append(1) or compute(*args)))
    return found


@pytest.fixture
def projected(monkeypatch):
    """Projections by a basis as it is."""
    return _count(monkeypatch, in_turn._Projected)


@pytest.fixture
def without_rows(monkeypatch):
    """Products with the orthonormal rows of a matrix that are not formed."""
    return _count(monkeypatch, in_turn._Applied)


@pytest.mark.filterwarnings("ignore:.*the only orthogonal kernels are shifts")
@pytest.mark.parametrize("border", [*BORDERS[:3], (1, "zeros")], ids=str)
@pytest.mark.parametrize("channels", [(8, 8, 1), (16, 16, 2), (9, 9, 1), (3, 3, 3)], ids=str)
@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("calls", [True], indirect=True)
def test_rotations_as_reflections(dims, channels, border, calls, projected):
    padding, mode = border
    for lipschitz in (1.0, 2.5):
        layer = make(channels, (1,) * dims, padding=padding, padding_mode=mode, lipschitz=lipschitz)
        with torch.no_grad():
            layer.parametrizations.weight.original0.mul_(3).add_(0.1)
        assert_same_as_with_the_weight(layer, (2, channels[0], *SIZES[dims + 1][:dims]), calls)
    assert len(projected) == 4
    strided = make(channels, (1,) * dims, stride=2)  # leaves out pixels
    strided(torch.randn(2, channels[0], *[4] * dims, dtype=torch.float64))
    assert not calls


@pytest.mark.parametrize("border", BORDERS, ids=str)
@pytest.mark.parametrize("case", [case for case in STRIDED if case[0][2] == 1], ids=str)
@pytest.mark.parametrize("calls", [True], indirect=True)
def test_strides_without_rows(case, border, calls, without_rows, monkeypatch):
    monkeypatch.setattr(execution, "MOST_PIXELS", 10**4)
    channels, kernel, stride = case
    for lipschitz in (1.0, 2.5):
        layer = make(channels, kernel, stride=stride, padding=border[0], padding_mode=border[1], lipschitz=lipschitz)
        with torch.no_grad():
            layer.parametrizations.weight.original1.mul_(3).add_(0.1)
        size = [s * -(-max(k, s) // s) for k, s in zip(kernel, stride, strict=True)]
        rows, columns = layer.parametrizations.weight.original1.shape[1:]
        few = 4 * math.prod(size) <= math.prod(stride) * columns and rows < columns
        assert_same_as_with_the_weight(layer, (1, channels[0], *size), calls)
        assert bool(without_rows) == few
        without_rows.clear()


@pytest.mark.parametrize("calls", [True], indirect=True)
def test_strided_matrices_whose_rows_are_formed(calls, without_rows):
    x = torch.randn(1, 4, 4, 4)

    def applies_no_rows(x, hooked=False, groups=1, **options):
        layer = make((4 * groups, 8 * groups, groups), (3, 3), torch.float32, stride=2, **options)
        if hooked:
            layer.parametrizations.weight[0].kernel.orthogonalize.register_forward_hook(lambda m, x, y: y.flip(-1))
        without_rows.clear()
        y = layer(x)
        found = bool(without_rows)
        with parametrize.cached():
            torch.testing.assert_close(y, layer(x), rtol=1e-5, atol=1e-5)
        return found

    assert applies_no_rows(x)
    assert not applies_no_rows(x.repeat(8, 1, 1, 1))
    assert not applies_no_rows(x.repeat(1, 2, 1, 1), groups=2)
    assert not applies_no_rows(x, hooked=True)
    assert not applies_no_rows(x, ortho_params=QR_ORTHO_PARAMS)
    with tf32_allowed():
        assert not applies_no_rows(x)


def _make_rows_alike(chain):
    rows = chain.original0.data
    rows[..., 0, :] = rows[..., 1, :] + 1e-3 * rows[..., 0, :]


def _hook(chain):
    chain[0].kernel.orthonormalize.register_forward_hook(lambda module, inputs, rows: rows.flip(-1))


@pytest.mark.parametrize(
    "params,alter,context,as_they_are",
    [
        (DEFAULT_ORTHO_PARAMS, None, nullcontext, True),
        (DEFAULT_ORTHO_PARAMS, _make_rows_alike, nullcontext, False),
        (DEFAULT_ORTHO_PARAMS, _hook, nullcontext, False),
        (DEFAULT_ORTHO_PARAMS, None, tf32_allowed, False),
        (QR_ORTHO_PARAMS, None, nullcontext, False),
        (CHOLESKY_ORTHO_PARAMS, None, nullcontext, False),
    ],
)
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("calls", [True], indirect=True)
def test_bases_that_must_be_made_orthonormal(kernel, params, alter, context, as_they_are, calls, projected):
    layer = make((8, 8, 1), (kernel, kernel), torch.float32, ortho_params=params)
    if alter is not None:
        alter(layer.parametrizations.weight)
    x = torch.randn(2, 8, 4, 4)
    with context():
        y = layer(x)
    assert len(calls) == 1 and len(projected) == as_they_are * (2 if kernel == 1 else 6)
    with parametrize.cached():
        torch.testing.assert_close(y, layer(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("border", BORDERS, ids=str)
@pytest.mark.parametrize("case", STRIDED, ids=str)
def test_strides(case, border, calls, monkeypatch):
    monkeypatch.setattr(execution, "MOST_PIXELS", 10**4)
    channels, kernel, stride = case
    layer = make(channels, kernel, stride=stride, padding=border[0], padding_mode=border[1])
    for size in itertools.product((6, 7, 9), repeat=2):
        assert_same_as_with_the_weight(layer, (2, channels[0], *size, *[6] * (len(kernel) - 2)), calls)


@pytest.mark.parametrize("dtype,tolerance", [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("channels,stride,size", [((24, 20, 1), 1, 4), ((20, 24, 1), 1, 4), ((16, 32, 1), 2, 6)])
def test_orthogonal_in_training(channels, stride, size, dtype, tolerance, calls):
    """The operator of a layer in training mode, after steps that move its parameters far."""
    layer = make(channels, (3, 3), dtype, stride=stride, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0, momentum=0.9)
    ci = channels[0]
    for _ in range(20):
        optimizer.zero_grad()
        layer(torch.randn(4, ci, size, size, dtype=dtype)).cos().sum().backward()
        optimizer.step()
    impulses = torch.eye(ci * size**2, dtype=dtype).view(-1, ci, size, size)
    calls.clear()
    images = torch.cat([layer(part) for part in impulses.split(4)])  # small batches
    assert len(calls) == len(impulses) / 4
    sigma = torch.linalg.svdvals(images.detach().flatten(1).double())
    assert (sigma - 1).abs().max() <= tolerance


def test_fewer_flops():
    for layer, shape in [
        (aoc.AdaptiveOrthoConv2d(16, 16, 3, padding_mode="zeros"), (1, 16, 8, 8)),
        (aoc.AdaptiveOrthoConv2d(16, 16, 3), (2, 16, 8, 8)),
        (aoc.AdaptiveOrthoConv2d(16, 32, 3, stride=2), (1, 16, 16, 16)),
    ]:
        x = torch.randn(shape)
        cost = flops(lambda layer=layer, x=x: layer(x))
        with parametrize.cached():
            assert cost < 0.9 * flops(lambda layer=layer, x=x: layer(x))


def test_what_is_cheaper_with_the_weight(calls):
    cases = [
        (aoc.AdaptiveOrthoConv2d(8, 8, 3), (16, 8, 16, 16)),  # many pixels
        (
            aoc.AdaptiveOrthoConv2d(8, 8, 3, stride=2),
            (1, 8, 4, 4),
        ),  # factors before the stride cost more than they save
        (aoc.AdaptiveOrthoConv2d(8, 8, 3, stride=2, dilation=2), (1, 8, 4, 4)),
        (aoc.AdaptiveOrthoConv2d(8, 16, 3, stride=2, dilation=3), (1, 8, 4, 4)),
        (aoc.AdaptiveOrthoConv2d(8, 64, 3, stride=2), (1, 8, 4, 4)),  # orthonormal columns: two dense kernels
        (aoc.AdaptiveOrthoConv2d(8, 8, (3, 1)), (1, 8, 8, 8)),  # as many products either way
        (aoc.AdaptiveOrthoConv2d(2, 16, 3), (1, 2, 4, 4)),  # factors of 16 channels would cost more
        (aoc.AdaptiveOrthoConv1d(8, 8, 2), (1, 8, 128)),
        (aoc.AdaptiveOrthoConv2d(8, 8, 3, dilation=5), (1, 8, 4, 4)),  # wraps around more than once
        (aoc.AdaptiveOrthoConv2d(8, 8, 3), (0, 8, 4, 4)),  # nothing to do
    ]
    for layer, shape in cases:
        x = torch.randn(shape)
        y = layer(x)
        assert not calls
        with parametrize.cached():
            torch.testing.assert_close(y, layer(x))


def test_few_channels_use_the_weight(monkeypatch):
    monkeypatch.undo()
    for channels, size, name in (
        (31, 32, "padded"),
        (32, 32, "along axes"),
        (47, 4, "padded"),
        (48, 4, "factors in turn"),
        (48, 32, "along axes"),
    ):
        layer, x = make((channels, channels, 1), (3, 3)), torch.randn(1, channels, size, size, dtype=torch.float64)
        assert execution.select_execution(layer, x).name == name


def test_the_weight_is_kept_in_eval(calls):
    layer = make((8, 8, 1), (3, 3), torch.float32).eval()
    x = torch.randn(1, 8, 4, 4)
    with torch.no_grad():
        y = layer(x)
    assert not calls
    torch.testing.assert_close(layer(x), y)  # a gradient may be wanted
    assert len(calls) == 1


@pytest.mark.parametrize("mode", ["zeros", "circular"])
@pytest.mark.parametrize("kernel", [(3, 3), (1, 3), (1, 1)])
def test_gradient_penalty(kernel, mode, calls):
    """Gradients of a function of gradients."""
    layer = make((8, 8, 1), kernel, padding_mode=mode)
    x = torch.randn(2, 8, 4, 4, dtype=torch.float64, requires_grad=True)
    results = []
    for context in (nullcontext, parametrize.cached):
        with context():
            y = layer(x)
        (slope,) = torch.autograd.grad(y.sin().sum(), x, create_graph=True)
        results.append((slope, *torch.autograd.grad(slope.square().sum() + y.sum(), [x, *layer.parameters()])))
    assert len(calls) == (max(kernel) > 1 or execution.MOST_FOR_SPANS > 1)
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpoints(use_reentrant, calls):
    layer = make((8, 8, 1), (3, 3))
    x = torch.randn(2, 8, 4, 4, dtype=torch.float64, requires_grad=True)
    grads = []
    for y in (layer(x), checkpoint(layer, x, use_reentrant=use_reentrant)):
        layer.zero_grad()
        y.sin().sum().backward()
        grads.append([p.grad.clone() for p in layer.parameters()])
    assert len(calls) == 3
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("calls", [False], indirect=True)  # gradients of bases as they are contain that of the image
def test_only_the_gradients_that_are_wanted(calls):
    """Of the image alone (an attack), or of the parameters alone (a first layer): fewer flops than for both."""
    layer = make((8, 8, 1), (3, 3))
    x = torch.randn(2, 8, 4, 4, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    slope, *grads = torch.autograd.grad(y.sin().sum(), [x, *layer.parameters()], retain_graph=True)
    both = flops(lambda: torch.autograd.grad(y.sin().sum(), [x, *layer.parameters()]))
    of_parameters = layer(x.detach())
    cost = flops(lambda: grads.extend(torch.autograd.grad(of_parameters.sin().sum(), list(layer.parameters()))))
    assert cost < both
    torch.testing.assert_close(grads[:2], grads[2:])
    of_image = layer.requires_grad_(False)(x)
    torch.testing.assert_close(torch.autograd.grad(of_image.sin().sum(), x, create_graph=True)[0], slope)
    assert flops(lambda: torch.autograd.grad(of_image.sin().sum(), x)) < both / 2
    assert len(calls) == 3


def test_transforms_compilation_and_images_without_a_batch(calls):
    layer = make((8, 8, 1), (3, 3))
    x = torch.randn(3, 8, 4, 4, dtype=torch.float64)
    expected = layer.train()(x)
    torch.testing.assert_close(layer(x[0]), expected[0])
    parameters = {k: v.detach() for k, v in layer.named_parameters()}
    torch.testing.assert_close(functional_call(layer, parameters, x), expected)

    def loss(p, image):
        return functional_call(layer, p, image).sin().sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    whole = torch.autograd.grad(expected.sin().sum(), list(layer.parameters()))
    for g, total in zip(each.values(), whole, strict=True):
        torch.testing.assert_close(g.sum(0), total)
    torch.testing.assert_close(torch.compile(layer, fullgraph=True, backend="aot_eager")(x), expected)
    assert len(calls) >= 4


@pytest.mark.parametrize("border", BORDERS, ids=str)
@pytest.mark.parametrize("stride", [1, 2])
def test_compiles_with_every_border(border, stride):
    torch.compiler.reset()
    padding, mode = border
    layer = make((8, 8, 1), (3, 3), stride=stride, padding=padding, padding_mode=mode)
    x = torch.randn(2, 8, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(torch.compile(layer, fullgraph=True, backend="eager")(x), layer(x))


@pytest.mark.parametrize("strict", [True, False])
def test_export_for_every_batch(strict):
    layer = make((8, 8, 1), (3, 3))
    shapes = ({0: torch.export.Dim("batch", min=2, max=1000)},)
    program = torch.export.export(
        layer, (torch.randn(4, 8, 4, 4, dtype=torch.float64),), dynamic_shapes=shapes, strict=strict
    )
    for batch in (2, 50):
        x = torch.randn(batch, 8, 4, 4, dtype=torch.float64)
        torch.testing.assert_close(program.module()(x), layer(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_traces_for_every_batch_and_size():
    layer = make((8, 8, 1), (3, 3), padding_mode="zeros")
    traced = torch.jit.trace(layer, torch.randn(2, 8, 4, 4, dtype=torch.float64), check_trace=False)
    x = torch.randn(50, 8, 6, 5, dtype=torch.float64)
    torch.testing.assert_close(traced(x), layer(x))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own
def test_forward_derivatives(calls):
    """The layer is affine: its derivative along a direction is its linear part."""
    layer = make((8, 6, 1), (3, 3))
    x, direction = torch.randn(2, 2, 8, 4, 4, dtype=torch.float64)
    expected = layer(direction) - layer(torch.zeros_like(direction))
    torch.testing.assert_close(torch.func.jvp(layer, (x,), (direction,))[1], expected)
    with forward_ad.dual_level():
        y = layer(forward_ad.make_dual(x, direction))
        torch.testing.assert_close(forward_ad.unpack_dual(y).tangent, expected)
    assert len(calls) == 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_uses_the_weight(dtype, calls):
    layer = make((8, 8, 1), (3, 3), torch.float32, bias=False)
    x = torch.randn(1, 8, 4, 4)
    expected = layer(x)
    calls.clear()
    with torch.autocast("cpu", dtype=dtype):
        y = layer(x)
    assert y.dtype == dtype
    torch.testing.assert_close(y.float(), expected, rtol=0.02, atol=0.02)
    torch.testing.assert_close(layer.to(dtype)(x.to(dtype)).float(), expected, rtol=0.02, atol=0.02)
    assert not calls


def test_autocast_around_the_backward_pass():
    """The forward pass ran outside of it: gradients are right to the precision of autocast."""
    layer = make((8, 8, 1), (3, 3), torch.float32)
    x = torch.randn(2, 8, 4, 4, requires_grad=True)
    inputs = [x, *layer.parameters()]
    for create_graph in (False, True):
        expected = torch.autograd.grad(layer(x).sin().sum(), inputs)
        y = layer(x).sin().sum()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            slope = torch.autograd.grad(y, inputs[: 1 if create_graph else None], create_graph=create_graph)
        for a, b in zip(slope, expected, strict=False):
            # Dense kernel and four factors: each product rounds what it multiplies to 8 bits.
            assert (a - b).norm() <= 5 * 2 * 2**-9 * b.norm()


def test_memory_formats_are_kept(calls):
    layer = make((8, 8, 1), (3, 3), torch.float32, padding_mode="zeros")
    x = torch.randn(2, 8, 4, 4)
    y = layer(x.to(memory_format=torch.channels_last))
    assert not calls
    assert y.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(y, layer(x))


def test_what_is_no_image_is_refused_as_ever(calls):
    layer = aoc.AdaptiveOrthoConv2d(8, 8, 3, padding=0)
    for shape in [(1, 7, 4, 4), (8,), (1, 8, 0, 4), (1, 8, 2, 4), (1, 1, 8, 4, 4)]:
        with pytest.raises(ShapeError):
            layer(torch.zeros(shape))
    assert not calls


def test_other_parametrizations_have_their_say(calls):
    """A second one, a foreign one, and the cache of torch: the layer applies `layer.weight`."""

    class Half(nn.Module):
        def forward(self, weight):
            return weight / 2

    x = torch.randn(1, 8, 4, 4)
    layer = aoc.AdaptiveOrthoConv2d(8, 8, 3, bias=False)
    expected = layer(x)
    calls.clear()
    parametrize.register_parametrization(layer, "weight", Half())
    torch.testing.assert_close(layer(x), expected / 2)
    parametrize.remove_parametrizations(layer, "weight")
    parametrize.register_parametrization(layer, "weight", Half())
    torch.testing.assert_close(layer(x), expected / 4)
    layer = aoc.AdaptiveOrthoConv2d(8, 8, 3, bias=False)
    with parametrize.cached():
        layer(x)
    assert not calls


@pytest.mark.parametrize(
    "make_layer,name",
    [
        (lambda: aoc.AdaptiveOrthoConv2d(4, 4, 3, padding_mode="zeros"), "padded"),
        (lambda: aoc.AdaptiveOrthoConv2d(4, 4, 3, stride=2, padding_mode="zeros"), "padded"),
        (lambda: aoc.AdaptiveOrthoConv2d(4, 4, 3), "padded"),
        (lambda: aoc.AdaptiveOrthoConvTranspose2d(4, 4, 3), "torch"),
        (lambda: aoc.AdaptiveOrthoConvTranspose2d(4, 4, 3, padding=1, padding_mode="circular"), "folded"),
    ],
)
def test_the_table_can_be_asked(make_layer, name):
    layer = make_layer().eval().requires_grad_(False)
    assert execution.select_execution(layer, torch.randn(1, 4, 6, 6)).name == name
