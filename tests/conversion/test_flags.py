"""`convert`: what was frozen stays so, and nothing else is; every module keeps its mode."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from orthogonium import convert
from orthogonium.conversion.scaled import Scaled
from orthogonium.layers import AdditiveResidual, OrthoLinear, Scale

OPTIONS = [{}, {"lipschitz": 2.0}, {"weights": "keep"}, {"weights": "keep", "lipschitz": 2.0}, {"method": "sll"}]


def network_of(model):
    """Without the factor behind it."""
    return model[0] if isinstance(model, nn.Sequential) and isinstance(model[-1], Scale) else model


def trained(module):
    return {name for name, parameter in module.named_parameters() if parameter.requires_grad}


def is_trained(module):
    (flag,) = {parameter.requires_grad for parameter in module.parameters()}
    return flag


class Shift(nn.Module):
    """A parameter of its own beside a layer."""

    def __init__(self, size=4):
        super().__init__()
        self.shift, self.layer = nn.Parameter(torch.ones(size)), nn.Linear(size, size)

    def forward(self, x):
        return self.layer(x) + self.shift


class Untraceable(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x):
        if x.abs().max() > 1e9:
            x = torch.zeros_like(x)
        return self.last(F.relu(self.norm(self.first(x))))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("frozen", [0, 2])
def test_frozen_layers(frozen, options):
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    plain[frozen].requires_grad_(False)
    network = network_of(convert(plain, (4,), **options).model)
    assert {i: is_trained(network.get_submodule(str(i))) for i in (0, 2)} == {frozen: False, 2 - frozen: True}


@pytest.mark.parametrize("options", OPTIONS)
def test_weight_and_bias_are_frozen_apart(options):
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    plain[0].weight.requires_grad_(False)
    plain[2].bias.requires_grad_(False)
    network = network_of(convert(plain, (4,), **options).model)
    first, last = network.get_submodule("0"), network.get_submodule("2")
    assert trained(first) == {"bias"}
    assert trained(last) == {name for name, _ in last.named_parameters()} - {"bias"} != set()


@pytest.mark.parametrize("options", OPTIONS[:4])
def test_a_frozen_parameter_freezes_nothing_else(options):
    """Also where it is the only one that its module has itself, be this a block or the whole network."""
    block = nn.Sequential(Shift(), nn.ReLU(), nn.Linear(4, 2))
    block[0].shift.requires_grad_(False)
    whole = Shift()
    whole.shift.requires_grad_(False)
    for plain, left in ((block, {"0.shift"}), (whole, {"shift"})):
        network = network_of(convert(plain, (4,), **options).model)
        assert {name for name, p in network.named_parameters() if not p.requires_grad} == left


def test_networks_that_cannot_be_traced():
    for lipschitz in (1.0, 3.0):
        plain = Untraceable()
        plain.first.requires_grad_(False)
        plain.last.weight.requires_grad_(False)
        plain.norm.eval()
        network = network_of(convert(plain, (4,), lipschitz=lipschitz).model)
        assert not trained(network.first) and is_trained(network.norm) and trained(network.last) == {"bias"}
        assert network.training and network.last.parametrizations.training and not network.norm.training


def test_new_parameters_are_frozen_where_everything_around_them_was():
    """Gates of sums, and biases where there were none."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False)

        def forward(self, x):
            return x + self.norm(self.layer(x))

    plain = nn.Sequential(Block(), Block())
    plain[0].requires_grad_(False)
    network = convert(plain, (4,)).model
    gates = [is_trained(network.get_submodule(name)) for name in ("add", "add_1")]
    assert gates == [False, True]
    assert not is_trained(network.get_submodule("0.norm")) and is_trained(network.get_submodule("1.norm"))


def test_names_in_the_graph_are_not_those_of_modules_that_are_never_called():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.add = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return x + self.layer(x)

    plain = Net()
    plain.add.requires_grad_(False).eval()
    network = convert(plain, (4,)).model
    assert is_trained(network.add) and network.add.training  # the gates of the sum


@pytest.mark.parametrize("options", OPTIONS[:4])
def test_every_module_keeps_its_mode(options):
    plain = nn.Sequential(
        nn.Sequential(nn.Linear(4, 4), nn.Dropout()),
        AdditiveResidual(nn.Sequential(OrthoLinear(4, 4), nn.Dropout())),
        nn.Linear(4, 2),
    )
    plain[0].eval()[1].train()
    plain[1].fn[1].eval()
    plain[2].eval()
    for mode in (True, False):
        plain.training = mode
        model = convert(plain, (4,), **options).model
        network = network_of(model)
        residual = network.get_submodule("1")
        if isinstance(residual, Scaled):  # in the units it was made for
            setattr(network, "1", residual.fn)
        before, after = dict(plain.named_modules()), dict(network.named_modules())
        assert model.training == network.training == mode
        assert all(after[name].training == before[name].training for name in before)
        assert not after["2"].parametrizations.weight[0].training


def test_functions_have_the_mode_of_the_module_that_calls_them():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return F.dropout(self.layer(x), 0.5, self.training)

    plain = nn.Sequential(Noisy(), Noisy())
    plain[0].eval()
    network = convert(plain, (4,)).model
    assert [m.training for m in network.modules() if isinstance(m, nn.Dropout)] == [False, True]


def test_frozen_layers_do_not_train_and_follow_their_mode():
    plain = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    plain[0].requires_grad_(False)
    plain[1].eval()
    model = convert(plain, (2, 4, 4), weights="keep", lipschitz=2.0).model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    F.cross_entropy(model(torch.randn(8, 2, 4, 4)), torch.arange(8) % 3).backward()
    optimizer.step()
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert {name.split(".")[1] for name in changed} == {"1", "4"} and "0.1.running_mean" not in changed
