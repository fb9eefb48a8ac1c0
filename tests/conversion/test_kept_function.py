"""Kept weights keep the function: by a method that only multiplies them, outputs are the same up to a factor."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

from orthogonium import convert
from orthogonium.conversion.constrained import _feasible
from orthogonium.layers import (
    AdaptiveOrthoConv1d,
    AdaptiveOrthoConv2d,
    CayleyConv2d,
    MaxMin,
    OrthoLinear,
    SandwichLinear,
    normalize,
)


def largest_error(model, shape, lipschitz=1.0):
    """Relative, up to a factor, of the outputs of the converted network; and what was refused."""
    torch.manual_seed(0)
    found = convert(model.eval(), shape, "aol", weights="keep", lipschitz=lipschitz)
    x = torch.randn(64, *shape)
    with torch.no_grad():
        a, b = model(x).flatten().double(), found.model.eval()(x).flatten().double()
    return float((a - (a @ b) / (b @ b) * b).norm() / a.norm()), found.refused


class Two(nn.Module):
    """Two dense layers with a function between them."""

    def __init__(self, function, size=10.0):
        super().__init__()
        self.a, self.b, self.function = nn.Linear(6, 6), nn.Linear(6, 3), function
        with torch.no_grad():
            self.a.weight.mul_(size)

    def forward(self, x):
        return self.b(self.function(self.a(x)))


FUNCTIONS = {
    "clamp": lambda y: torch.clamp(y, -1, 1),
    "sin": torch.sin,
    "hardtanh": F.hardtanh,
    "softsign": F.softsign,
    "clamp_min": lambda y: torch.clamp_min(y, 1.0),
    "pad": lambda y: F.pad(y, (1, -1), value=50.0),
    "relu6": nn.ReLU6(),
    "Hardtanh": nn.Hardtanh(-10, 10),
    "twice the same": lambda y: y + y,
    "scalars": lambda y: torch.relu(3 * y - 1) / 7 + 2,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_with_a_size_of_their_own(name):
    error, refused = largest_error(Two(FUNCTIONS[name]), (6,))
    assert error <= 1e-5 and refused == ()


@pytest.mark.parametrize("activation", [nn.Tanh, nn.Sigmoid, nn.GELU])
def test_an_activation_that_is_called_twice(activation):
    shared = activation()
    network = nn.Sequential(nn.Linear(6, 8), shared, nn.Linear(8, 8), shared, nn.Linear(8, 3))
    with torch.no_grad():
        network[0].weight.mul_(4)
        network[2].weight.mul_(9)
    error, refused = largest_error(network, (6,))
    assert error <= 1e-5 and refused == ()


class Again(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 3)
        with torch.no_grad():
            self.a.weight.mul_(5)

    def forward(self, x):
        return self.b(torch.relu(self.a(torch.relu(self.a(x)))))


class Written(Two):
    def forward(self, x):
        y = self.a(x)
        self.function(y, x)
        return self.b(y)


class BufferTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.register_buffer("p", 30 * torch.randn(6))

    def forward(self, x):
        return self.b(torch.relu(self.a(x) + self.p)) + self.p


REFUSED = {
    "a bias that is met in two units": Again,
    "add_": lambda: Written(lambda y, x: y.add_(x)),
    "elu": lambda: Written(lambda y, x: F.elu(y, inplace=True)),
    "relu_": lambda: Written(lambda y, x: F.relu_(y)),
    "a constant that is added twice": BufferTwice,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_kept_is_refused(name):
    _, refused = largest_error(REFUSED[name](), (6,))
    assert refused != ()


@pytest.mark.parametrize("lipschitz", [0.01, 100.0])
def test_constants_multiply_what_is_kept(lipschitz):
    error, _ = largest_error(Two(torch.relu), (6,), lipschitz)
    assert error <= 1e-5


class Tokens(nn.Module):
    """Features are last, the normalization is along the second axis, of as many."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 5), nn.BatchNorm1d(5)
        nn.init.uniform_(self.norm.weight, 1.0, 1.0001)
        nn.init.normal_(self.norm.bias)
        self.norm.running_mean.normal_()

    def forward(self, x):
        return self.norm(self.linear(x))


def test_a_normalization_along_another_axis_is_not_folded():
    error, _ = largest_error(Tokens(), (5, 6))
    assert error <= 1e-3  # its scales are nearly equal, and dropped


def with_statistics(norm):
    nn.init.uniform_(norm.weight, 0.2, 3.0)
    nn.init.normal_(norm.bias)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.1, 4.0)
    return norm


PARAMETRIZED = {
    "weight_norm": lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 6, 3)),
    "spectral_norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Conv2d(2, 6, 3)),
    "normalize": lambda: normalize(nn.Conv2d(2, 6, 3)),
    "transposed": lambda: nn.utils.parametrizations.spectral_norm(nn.ConvTranspose2d(2, 6, 3)),
    "AOC": lambda: AdaptiveOrthoConv2d(2, 6, 3, padding=1, padding_mode="zeros", lipschitz=2.0),
}


@pytest.mark.parametrize("name", PARAMETRIZED)
def test_the_scale_of_a_normalization_goes_into_parametrized_layers(name):
    torch.manual_seed(0)
    plain = nn.Sequential(
        PARAMETRIZED[name](), with_statistics(nn.BatchNorm2d(6)), nn.ReLU(), nn.Conv2d(6, 2, 3)
    ).eval()
    x = torch.randn(2, 2, 6, 6)
    before = plain(x)
    found = convert(plain, (2, 6, 6), "spectral", weights="keep")
    assert found.agreement > 1 - 1e-6 and found.refused == () and found.bound <= 1 + 1e-4
    assert torch.equal(plain(x), before)  # the classes of copies are their own


@pytest.mark.parametrize("weights", ["new", "keep"])
def test_constrained_layers_stay(weights):
    torch.manual_seed(0)
    own = OrthoLinear(6, 6)
    nn.init.normal_(own.bias)
    plain = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), own, MaxMin(), nn.Linear(6, 3))
    with torch.no_grad():
        plain[0].weight.mul_(10.0)
    found = convert(plain, (6,), "spectral", weights=weights)
    stayed = found.model.get_submodule("2")
    assert isinstance(stayed, OrthoLinear) and torch.equal(stayed.weight, own.weight)
    assert found.refused == () and found.bound <= 1 + 1e-4
    assert weights == "new" or found.agreement > 1 - 1e-6


def test_a_constrained_layer_that_no_scale_goes_into_stays():
    plain = nn.Sequential(CayleyConv2d(2, 2, 3, image_size=6), with_statistics(nn.BatchNorm2d(2)))
    found = convert(plain, (2, 6, 6), "spectral", weights="keep")
    assert found.refused == () and [change.note for change in found.changes] == ["without the division"]


def test_other_modules_of_the_library_keep_their_units():
    torch.manual_seed(0)
    block = SandwichLinear(6, 6)
    nn.init.normal_(block.bias)
    plain = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), block, nn.Linear(6, 3))
    with torch.no_grad():
        plain[2].weight.mul_(10.0)
    error, refused = largest_error(plain, (6,))
    assert error <= 1e-5 and refused == ()


@pytest.mark.parametrize("size", [8, 9, 12])
@pytest.mark.parametrize("kernel,stride,padding,dilation", [
    (1, 2, 0, 1), (3, 4, 1, 1), (2, 3, 1, 1), (3, 5, 2, 1), (2, 4, 1, 2), (2, 5, 2, 3), (1, 3, 1, 1),
])  # fmt: skip
def test_enlarged_kernels_have_their_taps_on_the_same_pixels(kernel, stride, padding, dilation, size):
    plain = nn.Conv1d(2, 2 * stride + 2, kernel, stride, padding, dilation, bias=False, dtype=torch.float64)
    x = torch.eye(2 * size, dtype=torch.float64).view(-1, 2, size)
    for larger, changed, note in list(_feasible(plain, (size,), (plain(x).shape[-1],)))[1:]:
        made = AdaptiveOrthoConv1d.from_torch(larger, steps=0, **{"padding_mode": "zeros", **changed})
        parametrize.remove_parametrizations(made, "weight")
        with torch.no_grad():
            made.weight.copy_(larger.weight)
        torch.testing.assert_close(made(x), plain(x))
        assert f"kernel {made.kernel_size}" in note and ("dilation" in note) == (dilation > 1)


@pytest.mark.filterwarnings("ignore::orthogonium.errors.NumericalWarning")  # zeros beside the taps have no rank
@pytest.mark.parametrize("geometry", [(3, 4, 1), (2, 4, 1, 2)])
@pytest.mark.parametrize("method", ["aoc", "soc"])
def test_enlarged_kernels_agree_with_the_network(method, geometry):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(2, 40, *geometry))
    found = convert(plain, (2, 12, 12), method, weights="keep", steps=20)
    assert found.refused == () and "taps on the same pixels" in str(found.changes)
    # More than with the same network one pixel aside, of which there are four.
    x = torch.randn(64, 2, 12, 12)
    moved = [x, *(x.roll(step, axis) for axis in (2, 3) for step in (-1, 1))]
    made, *wanted = (net(image) - net(0 * image) for net, image in [(found.model, x), *((plain, z) for z in moved)])
    agrees, *aside = (F.cosine_similarity(made.flatten(), y.flatten(), dim=0).item() for y in wanted)
    assert agrees > 2 * max(map(abs, aside))


def test_channels_keep_the_signs_of_a_normalization():
    torch.manual_seed(0)
    norm = with_statistics(nn.BatchNorm2d(4))
    with torch.no_grad():
        norm.running_var.fill_(1.0)
        norm.weight.copy_(torch.tensor([2.0, -2.0, -2.0, 2.0]))
    plain = nn.Sequential(norm, nn.ReLU(), nn.Conv2d(4, 2, 3))
    error, refused = largest_error(plain, (4, 6, 6))
    assert error <= 1e-5 and refused == ()
    changes = str(convert(plain, (4, 6, 6), "aol", weights="keep").changes)
    assert "SignedCentering(2 of 4 channels by −1)" in changes and "keep their signs" in changes
