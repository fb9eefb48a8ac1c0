"""Kept weights keep the function: by a method that only multiplies them, outputs are the same up to a factor."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from orthogonium import convert


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
