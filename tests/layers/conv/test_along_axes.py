"""Convolving along one axis after the other: the function, the gradients and the guarantee of the whole weight."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrize
from torch.utils.flop_counter import FlopCounterMode

from orthogonium import audit, certify, lipschitz_bound
from orthogonium.certification.precise import in_precision
from orthogonium.layers import AdaptiveOrthoConv2d, AdaptiveOrthoConvTranspose2d, MaxMin, OrthoLinear
from orthogonium.layers.conv import execution
from orthogonium.layers.conv.execution import select_execution
from orthogonium.linalg import OrthoParams
from orthogonium.methods.aoc import OrthogonalKernel
from tests.layers.conv.executions import BORDERS, go_along_axes, make, with_border
from tests.tf32 import TF32, tf32_allowed

CHANNELS = [(8, 8, 1), (16, 16, 2), (8, 6, 1), (24, 16, 2), (12, 15, 1), (7, 7, 1)]
KERNELS = {2: [(3, 3), (2, 4), (5, 5), (3, 2)], 3: [(3, 3, 3), (2, 4, 3), (3, 1, 3), (1, 3, 3)]}
SIZES = {2: (7, 8), 3: (5, 6, 5)}
AXES = "along axes"


@pytest.fixture(autouse=True)
def any_size(monkeypatch):
    go_along_axes(monkeypatch)


@pytest.fixture
def builds(monkeypatch):
    """The kernels that were built, along axes."""
    found = []
    along_axes = OrthogonalKernel.along_axes

    def counted(kernel, *raw):
        found.append(kernel)
        return along_axes(kernel, *raw)

    monkeypatch.setattr(OrthogonalKernel, "along_axes", counted)
    return found


def with_the_weight(layer, x):
    with parametrize.cached():  # the cache of torch is that of the weight: it must be built
        assert select_execution(layer, x).name == "padded"
        return layer(x)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")  # torch's own, with zeros
@pytest.mark.parametrize("border", BORDERS, ids=str)
@pytest.mark.parametrize("channels", CHANNELS, ids=str)
@pytest.mark.parametrize("dims", [2, 3])
def test_the_same_function_and_gradients_as_with_the_weight(dims, channels, border):
    for layer in with_border(channels, KERNELS[dims], border, SIZES[dims]):
        x = torch.randn(2, channels[0], *SIZES[dims], dtype=torch.float64, requires_grad=True)
        saves = bool(layer.parametrizations.weight[0].kernel.axis_shapes)
        assert (select_execution(layer, x).name == AXES) == saves
        results = []
        for apply in (lambda layer, x: layer(x), with_the_weight):
            y = apply(layer, x)
            results.append((y, *torch.autograd.grad(y.sin().sum(), [x, *layer.parameters()])))
        assert results[0][0].stride() == results[1][0].stride()
        torch.testing.assert_close(*results, rtol=1e-11, atol=1e-11)
        layer.eval()
        with torch.no_grad():
            torch.testing.assert_close(layer(x), results[1][0], rtol=1e-11, atol=1e-11)
            torch.testing.assert_close(layer(x[0]), results[1][0][0], rtol=1e-11, atol=1e-11)  # without a batch


def test_a_border_on_an_axis_with_one_tap():
    layer = make((6, 6, 1), (1, 3, 3), padding=(2, 1, 0), padding_mode="zeros")
    x = torch.randn(2, 6, 3, 4, 5, dtype=torch.float64)
    assert select_execution(layer, x).name == AXES
    torch.testing.assert_close(layer(x), with_the_weight(layer, x))


@pytest.mark.parametrize("channels", [(16, 16, 1), (12, 16, 1), (16, 12, 1), (16, 16, 2)], ids=str)
@pytest.mark.parametrize("dtype,tolerance", [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_orthogonal_as_applied_in_training_and_in_eval(channels, dtype, tolerance):
    layer = make(channels, (3, 3), dtype, bias=False, padding_mode="circular", padding=1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0, momentum=0.9)
    ci, size = channels[0], 5
    for _ in range(20):
        optimizer.zero_grad()
        layer(torch.randn(4, ci, size, size, dtype=dtype)).cos().sum().backward()
        optimizer.step()
    impulses = torch.eye(ci * size**2, dtype=dtype).view(-1, ci, size, size)
    for training in (True, False):
        layer.train(training)
        assert select_execution(layer, impulses).name == AXES
        with torch.no_grad():
            sigma = torch.linalg.svdvals(layer(impulses).flatten(1).double())
        assert (sigma - 1).abs().max() <= tolerance


@pytest.mark.parametrize("kernel", [(3, 3), (3, 3, 3), (5, 5)], ids=str)
def test_fewer_flops_than_a_plain_convolution(kernel):
    layer = make((16, 16, 1), kernel, torch.float32).eval()
    plain = getattr(nn, f"Conv{len(kernel)}d")(16, 16, kernel, padding="same")
    x = torch.randn(2, 16, *[6] * len(kernel))
    flops = []
    for module in (layer, plain):
        with torch.no_grad():
            module(x)  # builds what is kept
            with FlopCounterMode(display=False) as counter:
                module(x)
        flops.append(counter.get_total_flops())
    assert flops[0] == flops[1] * sum(kernel) / torch.tensor(kernel).prod().item()


@pytest.mark.parametrize("kernel", [(3, 3), (3, 3, 3), (3, 1, 3)], ids=str)
def test_the_constant_of_a_layer_multiplies_once(kernel):
    layer = make((8, 8, 1), kernel, lipschitz=3.0, bias=False)
    x = torch.randn(1, 8, *[5] * len(kernel), dtype=torch.float64)
    for training in (True, False):
        layer.train(training)
        assert select_execution(layer, x).name == AXES
        with torch.no_grad():
            assert layer(x).norm().item() == pytest.approx(3 * x.norm().item(), rel=1e-12)
    layer.lipschitz = 0.5
    with torch.no_grad():
        assert layer(x).norm().item() == pytest.approx(0.5 * x.norm().item(), rel=1e-12)


def test_kept_in_eval_and_never_stale(builds):
    layer = make((8, 8, 1), (3, 3), bias=False).eval()
    x = torch.randn(1, 8, 5, 5, dtype=torch.float64)
    (raw,) = layer.parameters()
    with torch.no_grad():
        first = layer(x)
        assert torch.equal(layer(x), first)
        assert len(builds) == 1
        for edit in (
            lambda: raw.add_(0.1 * torch.randn_like(raw)),
            lambda: raw.data.mul_(torch.rand_like(raw)),
            lambda: layer.load_state_dict({k: v + 0.1 * torch.randn_like(v) for k, v in layer.state_dict().items()}),
        ):
            before = layer(x)
            edit()
            now = layer(x)
            assert not torch.allclose(now, before)
            torch.testing.assert_close(now, with_the_weight(layer, x))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own
@pytest.mark.parametrize("kernel", [(3, 3), (2, 4)], ids=str)
def test_second_derivatives(kernel):
    layer = make((4, 4, 1), kernel, bias=False)
    raw = {name: p.detach() for name, p in layer.named_parameters()}
    x = torch.randn(1, 4, 4, 4, dtype=torch.float64)
    (name, start), *_ = raw.items()
    direction = torch.randn_like(start)

    def gradient(p, create_graph=False):
        p = p.clone().requires_grad_() if not p.requires_grad else p
        y = functional_call(layer, {name: p}, (x,)).sin().sum()
        return p, torch.autograd.grad(y, p, create_graph=create_graph)[0]

    p, g = gradient(start.clone().requires_grad_(), create_graph=True)
    (product,) = torch.autograd.grad((g * direction).sum(), p)
    h = 1e-5
    difference = (gradient(start + h * direction)[1] - gradient(start - h * direction)[1]) / (2 * h)
    assert (product - difference).norm() <= 1e-6 * difference.norm()
    _, forward = torch.func.jvp(
        torch.func.grad(lambda p: functional_call(layer, {name: p}, (x,)).sin().sum()), (start,), (direction,)
    )
    torch.testing.assert_close(forward, product, rtol=1e-8, atol=1e-10)


def test_float32_gradients():
    """At the start, for normal raw parameters, and after training."""
    layer = make((32, 32, 1), (3, 3), torch.float32)
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
    x = torch.randn(4, 32, 6, 6)

    def check():
        precise = copy.deepcopy(layer).double()
        grads = [torch.autograd.grad(m(x.to(m.bias.dtype)).sin().sum(), list(m.parameters())) for m in (layer, precise)]
        for g, h in zip(*grads, strict=True):
            assert (g - h).norm() <= 1e-4 * h.norm()

    assert select_execution(layer, x).name == AXES
    check()
    for _ in range(50):
        optimizer.zero_grad()
        layer(x).cos().sum().backward()
        optimizer.step()
    check()
    with torch.no_grad():
        for p in layer.parameters():
            p.normal_()
    check()


def test_kernels_are_not_rounded_to_tf32():
    """Convolutions follow the setting of the user, the kernels they get do not."""
    layer = make((32, 32, 1), (3, 3), torch.float32, bias=False)
    (raw,) = layer.parameters()
    with tf32_allowed(), TF32():
        parts = layer.parametrizations.weight[0].along_axes((raw,))
        grads = torch.autograd.grad(sum(part.sin().sum() for part in parts), raw)
        setting = torch.get_float32_matmul_precision()
    assert setting == "high"  # as it was set
    for part, axis in zip(parts, (3, 2), strict=True):  # orthogonal at each frequency of its axis
        symbol = torch.fft.fft(part.detach().double().squeeze(5 - axis), 16, dim=2).movedim(2, 0)
        assert (torch.linalg.svdvals(symbol) - 1).abs().max() <= 1e-5
    exact = layer.parametrizations.weight[0].along_axes((raw,))
    wanted = torch.autograd.grad(sum(part.sin().sum() for part in exact), raw)
    assert (grads[0] - wanted[0]).norm() <= 1e-4 * wanted[0].norm()


def test_transforms():
    layer = make((4, 4, 1), (3, 3))
    x = torch.randn(3, 4, 5, 5, dtype=torch.float64)
    raw = {name: p.detach() for name, p in layer.named_parameters()}
    whole = with_the_weight(layer, x)
    torch.testing.assert_close(torch.vmap(layer)(x), whole)
    torch.testing.assert_close(torch.compile(layer, fullgraph=True, backend="aot_eager")(x), whole)

    def loss(raw, x):
        return functional_call(layer, raw, (x[None],)).sin().sum()

    each = torch.vmap(torch.func.grad(loss), (None, 0))(raw, x)
    one = torch.func.grad(loss)(raw, x[1])
    for name in raw:
        torch.testing.assert_close(each[name][1], one[name])


def test_what_goes_through_the_weight():
    layer = make((8, 8, 1), (3, 3), torch.float32)
    x = torch.randn(1, 8, 5, 5)
    assert select_execution(layer, x).name == AXES
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert select_execution(layer, x).name == "padded"
    assert select_execution(copy.deepcopy(layer).bfloat16(), x.bfloat16()).name == "padded"
    assert select_execution(layer.to("meta"), x.to("meta")).name == "padded"
    for other in (
        AdaptiveOrthoConvTranspose2d(8, 8, 3, padding=1),
        AdaptiveOrthoConv2d(8, 16, 3, stride=2),
        AdaptiveOrthoConv2d(8, 8, (3, 1)),
        AdaptiveOrthoConv2d(2, 16, 3),  # factors of 16 channels would cost more
    ):
        assert select_execution(other, torch.randn(1, other.in_channels, 6, 6)).name != AXES
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "MOST_NUMBERS", 8 * 24)  # in training
        assert select_execution(make((8, 8, 1), (3, 3), torch.float32), x).name == "padded"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "FEWEST_SAVED", 3 * 8 * 8 * 25 + 1)
        assert select_execution(make((8, 8, 1), (3, 3), torch.float32), x).name == "padded"


def test_subclasses_with_a_weight_of_their_own():
    class Half(AdaptiveOrthoConv2d):
        def weight_of(self, source):
            return 0.5 * super().weight_of(source)

    layer, x = Half(8, 8, 3, bias=False).eval(), torch.randn(2, 8, 6, 6)
    with torch.no_grad():
        assert layer(x).norm().item() == pytest.approx(0.5 * x.norm().item(), rel=1e-5)


def test_another_border():
    layer, x = make((8, 8, 1), (3, 3)), torch.randn(2, 8, 6, 6, dtype=torch.float64)
    layer.border = replace(layer.border, mode="zeros")
    assert select_execution(layer, x).name == AXES
    torch.testing.assert_close(layer(x), F.conv2d(x, layer.weight, layer.bias, padding=1))


@pytest.mark.parametrize("training", [False, True])
def test_the_batch_does_not_decide_in_eval(training, monkeypatch):
    """Bounds are measured with small batches, and hold for what runs with large ones."""
    monkeypatch.setattr(execution, "MOST_NUMBERS", 8 * 25 * 3)
    layer = make((8, 8, 1), (3, 3), torch.float32).train(training)
    with torch.no_grad():
        chosen = [select_execution(layer, torch.randn(n, 8, 5, 5)).name for n in (1, 2, 3, 4, 100)]
    assert chosen == [AXES] * 3 + [("padded" if training else AXES)] * 2


def test_bounds_are_of_what_runs():
    for seed in range(6):
        torch.manual_seed(seed)
        layer = AdaptiveOrthoConv2d(8, 8, (5, 3), bias=False).eval()
        impulses = torch.eye(8 * 16).view(-1, 8, 4, 4)
        assert select_execution(layer, impulses).name == AXES
        sigma = torch.linalg.svdvals(in_precision(layer, impulses, torch.float64).flatten(1))
        assert sigma[0] <= lipschitz_bound(layer, (8, 4, 4)).value


@pytest.mark.parametrize("mode", ["zeros", "circular"])
@pytest.mark.parametrize("kernel", [(3, 3), (3, 3, 3)], ids=str)
@pytest.mark.parametrize("constant", [0.5, 1.0, 2.0])
def test_audits_know_the_promise_of_each_axis(constant, kernel, mode):
    layer = make((8, 6, 1), kernel, torch.float32, padding_mode=mode, lipschitz=constant).eval()
    found = audit(layer, (8, *[5] * len(kernel)))
    assert found.lipschitz_bound == pytest.approx(constant, rel=1e-4 if mode == "circular" else 0.2)
    assert found.lipschitz_bound <= constant * (1 + 1e-4)
    assert not found.warnings
    assert len(found.rows) == len(kernel)


def test_audits_find_an_axis_that_breaks_its_promise():
    class TooLarge(nn.Module):
        def __init__(self, weight_shape):
            super().__init__()

        def forward(self, w):
            q = torch.linalg.qr(w.mT)[0].mT
            return torch.cat([q[:, :4], 1.1 * q[:, 4:]], 1)

    params = OrthoParams(orthogonalizer=TooLarge)
    layer = make((8, 8, 1), (3, 3), bias=False, padding_mode="zeros", lipschitz=4.0, ortho_params=params).eval()
    assert any("guarantee is broken" in str(warning) for warning in audit(layer, (8, 6, 6)).warnings)


def test_certificates_are_of_what_runs():
    torch.manual_seed(0)
    model = nn.Sequential(
        AdaptiveOrthoConv2d(8, 8, 3), MaxMin(), AdaptiveOrthoConv2d(8, 8, 3), nn.Flatten(), OrthoLinear(200, 4)
    ).eval()
    x = torch.rand(6, 8, 5, 5)
    found = certify(model, [(x, torch.arange(6) % 4)])
    assert 1 <= found.bound.value <= 1 + 1e-4
