"""Rounding inside what rules see through at once: blocks, folded margins, differences and choices, softmax, casts."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from orthogonium import certify, lipschitz_bound
from orthogonium.certification.radii import VRA, certified_radii
from orthogonium.errors import OrthogoniumError
from orthogonium.layers import AdaptiveOrthoConvTranspose1d, SDPBasedLipschitzDense

ROUNDINGS = ("measured", "proved")


class Fn(nn.Module):
    """A function as a module of any dtype."""

    def __init__(self, fn):
        super().__init__()
        self.fn = fn
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return self.fn(x)


def wrong(model, x, exact, rounding):
    """Certificates for samples that exact arithmetic classifies otherwise."""
    labels = model(x).argmax(1)
    found = certify(model, [(x, labels)], eps=[0.0], rounding=rounding)
    return int(((found.radii > 0) & (exact.argmax(1) != labels)).sum())


def within_proof(model, x, exact):
    """Whether the errors of outputs are at most the proved ones."""
    constant, slope = lipschitz_bound(model, tuple(x.shape[1:])).error.proved
    actual = (model(x).double() - exact).flatten(1).norm(dim=1).detach()
    return bool((actual <= constant + slope * x.double().flatten(1).norm(dim=1)).all())


def broken_on_lines(model, x, steps=4001):
    """Certificates of one-dimensional inputs that points nearer than the radius break."""
    labels = model(x).argmax(1)
    radii = certify(model, [(x, labels)], eps=[0.0]).radii
    broken = 0
    for start, label, radius in zip(x, labels, radii, strict=True):
        if radius > 0:
            nearby = start + torch.linspace(-1, 1, steps)[:, None] * radius.float() * 0.9999
            inside = (nearby - start).double().abs()[:, 0] < radius
            broken += bool(((model(nearby).argmax(1) != label) & inside).any())
    return broken


def block(weight, activation=None, bias=False):
    """`x − 2Wᵀ T⁻¹ σ(Wx)`."""
    inner, features = len(weight), len(weight[0])
    options = {} if activation is None else {"activation": activation}
    layer = SDPBasedLipschitzDense(features, features, inner_dim=inner, bias=bias, **options)
    raw = next(p for p in layer.parameters() if p.numel() == inner * features)
    with torch.no_grad():
        raw.copy_(torch.tensor(weight).view(raw.shape))
    return layer.eval()


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_what_the_activation_makes_of_zero_passes_the_outer_kernel(rounding):
    layer = block([[1.0, 0], [-1, 0], [0, 1], [0, -1]], nn.Softplus(beta=1e-5))
    head = nn.Linear(2, 2)
    with torch.no_grad():
        head.weight.copy_(torch.eye(2))
        head.bias.copy_(torch.tensor([1e-3, 0.0]))
    x = torch.randn(4096, 2, generator=torch.Generator().manual_seed(1)) * 1e-2
    a, c = (k.flatten(1).double().detach() for k in layer.packing.unpack(layer.weight))
    inner = torch.log1p(torch.exp(x.double() @ a.T * 1e-5)) / 1e-5
    exact = x.double() + inner @ c.T + head.bias.detach().double()
    model = nn.Sequential(layer, head).eval()
    assert within_proof(model, x, exact)
    assert wrong(model, x, exact, rounding) == 0


class Shift(nn.Module):
    def forward(self, x):
        return x + 2048.0


def test_an_activation_that_was_exchanged():
    layer = block([[1.0], [-1.0]])
    parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)
    with torch.no_grad():
        layer.weight.copy_(layer.weight.round())
    layer.activation = Shift()

    def two_classes(x):
        y = layer(x) + 0.01 * torch.relu(x - 50)
        return torch.cat([y, -2.4 - y], 1)

    x = (torch.linspace(1.1, 1.3, 60) * 2**12).round()[:, None] / 2**12  # nothing is rounded at these
    assert broken_on_lines(Fn(two_classes).eval(), x) == 0


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_underflow_inside_a_block(rounding):
    layer = block((2e-4 * torch.eye(4)).tolist())
    parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)
    layer.half()
    x = (torch.randn(512, 4, generator=torch.Generator().manual_seed(1)) * 1e-4).half()
    a, c = (k.flatten(1).double().detach() for k in layer.packing.unpack(layer.weight))
    exact = x.double() + torch.relu(x.double() @ a.T) @ c.T
    assert within_proof(layer, x, exact)
    assert wrong(layer, x, exact, rounding) == 0


def test_the_convolution_behind_folded_margins():
    channels, small = 1024, 2.3e-4
    layer = AdaptiveOrthoConvTranspose1d(channels, 2, 3, padding=1, padding_mode="circular", bias=False)
    parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[:, 0, 1], layer.weight[0, 0, 1] = small, 1.0
    x = torch.zeros(1, channels, 8)
    x[0, :, 0], x[0, 0, 0] = small, 1.0
    exact = torch.zeros(1, 2, 8, dtype=torch.float64)
    exact[0, 0, 0] = 1 + (channels - 1) * float(torch.tensor(small)) ** 2
    assert within_proof(layer.eval(), x, exact)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_function_that_is_taken_from_its_argument(dtype):
    model = Fn(lambda x: x - torch.erf(x)).to(dtype).eval()
    x = (torch.randn(512, 64, generator=torch.Generator().manual_seed(0)) * 1e-7).to(dtype)
    assert within_proof(model, x, x.double() - torch.erf(x.double()))


def test_pieces_of_a_choice():
    def two_classes(x):
        y = torch.where(x > 0, (x + 1000.0) - 1000.0, torch.zeros_like(x)) + 0.01 * torch.relu(-x)
        return torch.cat([y, 2.4 - y], 1)

    x = (torch.linspace(1.1, 1.3, 60) * 2**14).round()[:, None] / 2**14
    assert broken_on_lines(Fn(two_classes).eval(), x) == 0


@pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax, torch.cumsum, torch.logcumsumexp])
def test_functions_of_many_entries(function):
    x = torch.zeros(1, 60000)
    x[0, 0] = 16.65
    x[0, 1:] += 1e-4
    assert within_proof(Fn(lambda x: function(x, 1)).eval(), x, function(x.double(), 1))


@pytest.mark.parametrize(("dtype", "eps"), [(torch.float32, 1e-8), (torch.bfloat16, 1e-3), (torch.float16, 1e-4)])
def test_a_clamp_that_is_rounded_away(dtype, eps):
    with pytest.raises(OrthogoniumError, match="infinite slopes"):
        lipschitz_bound(Fn(lambda x: torch.logit(torch.sigmoid(x), eps=eps)).to(dtype).eval(), (4,))


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inputs_that_underflow_in_the_cast(dtype, rounding):
    model = nn.Sequential(nn.Hardtanh(-1e-4, 1e-4), nn.Linear(16, 1, bias=False), nn.Linear(1, 2)).half().eval()
    with torch.no_grad():
        model[1].weight.fill_(1000.0)
        model[2].weight.copy_(torch.tensor([[0.0], [1000.0]]))
        model[2].bias.copy_(torch.tensor([0.9, 0.0]))
    x = torch.full((1, 16), 2.97e-8).to(dtype)
    moved = torch.full((1, 16), 2.995e-8).to(dtype)
    radius = certify(model, [(x, model(x.half()).argmax(1))], eps=[0.0], rounding=rounding).radii
    assert float(radius[0]) <= float((moved - x).double().norm()) or bool(
        model(x.half()).argmax(1) == model(moved.half()).argmax(1)
    )


def test_distances_of_long_rows():
    weight = torch.zeros(2, 100_000)
    weight[0], weight[0, 0] = 2.3e-4, 1.0
    true = 1 / float(weight[0].double().norm())
    logits, label = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    assert float(certified_radii(logits, label, weight)) == pytest.approx(true, rel=1e-6)
    assert float(VRA(logits, label, weight, eps=true * (1 + 1e-5))) == 0


def test_a_loader_may_use_the_memory_of_its_labels_again():
    model = nn.Linear(4, 2, bias=False).eval()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0, 0, 0], [-1.0, 0, 0, 0]]))

    def batches():
        labels = torch.empty(8, dtype=torch.long)
        for label in (1, 0):
            yield torch.ones(8, 4), labels.fill_(label)

    assert certify(model, batches(), eps=[0.1]).certified_accuracy == (0.5,)
