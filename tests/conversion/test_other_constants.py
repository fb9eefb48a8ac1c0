"""`convert(lipschitz=…)`: constants are met, spread over the layers, and divide certified radii."""

import pytest
import torch
from torch import nn

import orthogonium
from orthogonium import convert
from orthogonium.layers import AdditiveResidual, MaxMin, OrthoLinear, SDPBasedLipschitzDense
from orthogonium.testing import assert_certificate
from tests.conversion.networks import MLP, ResNet18


def test_the_head_makes_up_for_rounding():
    found = convert(MLP(), (1, 8, 8))
    assert 1 - 1e-5 < found.bound <= 1 + 1e-6 and found.model.fc3.lipschitz <= 1


@pytest.mark.parametrize("lipschitz", [0.3, 7.0])
def test_other_constants(lipschitz):
    found = convert(MLP(), (1, 8, 8), lipschitz=lipschitz)
    assert found.bound == pytest.approx(lipschitz, rel=1e-4)
    own = [m.lipschitz for m in found.model.modules() if isinstance(m, OrthoLinear)]
    assert own == pytest.approx([lipschitz ** (1 / len(own))] * len(own), rel=1e-3)
    kept = convert(MLP(), (1, 8, 8), lipschitz=lipschitz, weights="keep")
    assert kept.bound == pytest.approx(lipschitz, rel=1e-4)


def test_constants_are_spread_over_what_everything_passes():
    """Not over branches, whose constants do not multiply; and a layer that is called twice has two shares."""

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.left, self.right, self.twice = (nn.Linear(6, 6) for _ in range(4))
            self.mixed = nn.Linear(6, 6)

        def forward(self, x):
            x = torch.relu(self.first(x))
            x = self.left(x) + torch.relu(self.right(x))
            x = self.twice(torch.relu(self.twice(x)))
            return x + self.mixed(self.mixed(x))

    found = convert(Branches(), (6,), lipschitz=27.0, learnable=False)
    assert found.bound == pytest.approx(27, rel=1e-3)
    own = {name: getattr(found.model, name).lipschitz for name in ("first", "left", "right", "twice", "mixed")}
    assert own == pytest.approx({"first": 3, "left": 1, "right": 1, "twice": 3, "mixed": 1}, rel=1e-3)
    branches = convert(ResNet18(width=4), (3, 32, 32), lipschitz=0.2)
    assert 0.1 < branches.bound <= 0.2 * (1 + 1e-4) and branches.model.fc.lipschitz < 1


def test_layers_that_are_inside_of_others_too_keep_their_constants():
    shared = SDPBasedLipschitzDense(6, 6, 8)  # which stays as it is
    plain = nn.Sequential(shared, AdditiveResidual(nn.Sequential(shared, MaxMin())), nn.Linear(6, 6))
    found = convert(plain, (6,), lipschitz=9.0)
    assert found.bound == pytest.approx(9, rel=1e-3)
    assert found.model.get_submodule("0").lipschitz == 1


@pytest.mark.parametrize("lipschitz", [0.3, 7.0])
def test_certificates_of_other_constants_hold(lipschitz):
    """Radii are divided by the constant, and an attack inside them finds nothing; one that ignored it would."""
    torch.manual_seed(0)
    model = convert(MLP(), (1, 8, 8), lipschitz=lipschitz).model.eval()
    x = torch.rand(16, 1, 8, 8)
    labels = model(x).argmax(1)
    radii = orthogonium.certify(model, [(x, labels)]).radii
    assert (radii > 0).all()
    assert_certificate(model, x, radii, labels)
    if lipschitz > 1:
        with pytest.raises(AssertionError):
            assert_certificate(model, x, radii * lipschitz, labels)
