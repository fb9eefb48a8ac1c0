"""`convert`: networks as people write them become 1-Lipschitz, train, and tell what was done to them."""

import copy
import io

import pytest
import torch
from torch import nn

from orthogonium import convert, lipschitz_bound
from orthogonium.layers import AdaptiveOrthoConv2d, BatchCentering, OrthoLinear
from orthogonium.methods import METHODS
from tests.conversion.checks import SMALL, check_bound_and_training, train
from tests.conversion.networks import VGG11, Everything, ResNet18, UNet

FULL = {"ResNet-18": (ResNet18, (3, 64, 64)), "VGG-11": (lambda: VGG11(hidden=512), (3, 32, 32))}


@pytest.mark.parametrize("name", SMALL)
def test_networks_become_1_lipschitz_and_train(name):
    check_bound_and_training(*SMALL[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", FULL)
def test_networks_of_their_own_width(name):
    # Of 32×32 pixels the last pooling of VGG makes 49 copies of one: logits hardly differ, and 1 / std would be too
    # steep. Entries of orthonormal rows are as small as 1 / √width, and so are steps.
    check_bound_and_training(*FULL[name], temperature=20.0 if name == "VGG-11" else None, lr=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_every_method(method):
    shape = (1, 8, 8)
    found = convert(UNet(width=4), shape, method)
    assert found.refused == () and found.bound <= 1 + 1e-4
    train(found.model, shape, steps=2)
    assert lipschitz_bound(found.model, shape).value <= 1 + 1e-4
    if METHODS[method].activated:
        assert "inside the layer before it" in str(found.changes)


def test_the_table_names_every_change():
    found = convert(ResNet18(width=4), (3, 32, 32))
    names = [change.name for change in found.changes]
    assert len(names) == 20 + 20 + 17 + 8 + 1 + 1 + 1  # convolutions, norms, activations, sums, two poolings, head
    text = str(found)
    assert "layer2.0.downsample.0" in text and "kernel (2, 2)" in text  # 4→8 channels, stride 2: no orthogonal 1×1
    assert "ConvexSum(2)" in text and "ScaledMaxPool2d" in text and "windows overlap" in text
    assert text.splitlines()[-1].startswith("ResNet18: Lipschitz constant")
    module = found.model.get_submodule("layer1.0.conv1")
    assert isinstance(module, AdaptiveOrthoConv2d) and isinstance(found.model.fc, OrthoLinear)
    assert isinstance(found.model.get_submodule("layer1.0.bn1"), BatchCentering)


def test_a_feasible_shortcut_stays_one_by_one():
    plain = nn.Sequential(nn.Conv2d(8, 8, 1, stride=2), nn.ReLU(), nn.Conv2d(8, 32, 1, stride=(1, 2)))
    found = convert(plain, (8, 9, 9))
    assert found.model.get_submodule("0").kernel_size == (1, 1)
    assert found.model.get_submodule("2").kernel_size == (1, 2)
    assert found.model(torch.randn(1, 8, 9, 9)).shape == plain(torch.randn(1, 8, 9, 9)).shape


@pytest.mark.parametrize("options", [{}, {"activation": "keep"}, {"padding_mode": "circular"}, {"learnable": False}])
def test_calls_in_forward(options):
    found = check_bound_and_training(Everything, (3, 8, 8), **options)
    after = {change.name: change.after for change in found.changes}
    assert after["depthwise"].startswith("AOLConv2d") and after["cat"].startswith("UnitConcat(2")
    assert after["add"].startswith("ConvexSum(2") and after["add_2"].startswith("ConvexSum(2")
    assert after["log_softmax"] == "Identity()" and after["dropout"].startswith("Dropout")
    gates = [p for name, p in found.model.named_parameters() if name.endswith("raw")]
    assert len(gates) == (0 if options.get("learnable") is False else 3)
    if options.get("activation") == "keep":
        assert "constant 1.12" in str(found.changes)  # GELU
    else:
        assert after["elu"] == "Abs()"  # 7 channels
    x = torch.randn(64, 3, 8, 8)
    found.model.eval()
    assert torch.equal(found.model(x), found.model(x))  # dropout follows eval
    found.model.train()
    assert not torch.equal(found.model(x), found.model(x))


def test_copies_pickles_and_state_dicts():
    found = convert(Everything(), (3, 8, 8))
    x = torch.randn(2, 3, 8, 8)
    model = found.model.eval()
    twin = copy.deepcopy(model)
    torch.testing.assert_close(twin(x), model(x))
    other = convert(Everything(), (3, 8, 8)).model.eval()
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(x), model(x))
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    torch.testing.assert_close(torch.load(buffer, weights_only=False)(x), model(x))


def test_a_shared_layer_is_converted_once():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.step = nn.Linear(6, 6)

        def forward(self, x):
            for _ in range(3):
                x = torch.tanh(self.step(x))
            return x

    found = convert(Recurrent(), (6,))
    assert [c.name for c in found.changes] == ["step"] and found.bound <= 1 + 1e-4


def test_layer_norm_of_the_last_axes():
    """Of tokens (batch, time, channels): the mean of each over its channels is subtracted."""
    plain = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 4), nn.LayerNorm((5, 4)))
    found = convert(plain, (5, 4))
    assert found.bound <= 1 + 1e-4 and found.refused == ()
    x = torch.randn(2, 5, 6)
    torch.testing.assert_close(found.model.get_submodule("1")(x), x - x.mean(-1, keepdim=True))


def test_options_reach_the_layers():
    found = convert(nn.Sequential(nn.Conv2d(2, 4, 3)), (2, 6, 6), "aol", niter=3)
    assert found.model.get_submodule("0").parametrizations.weight[0].kernel.niter == 3


@pytest.mark.parametrize("dims", [1, 3])
def test_other_dimensions(dims):
    conv, transpose = getattr(nn, f"Conv{dims}d"), getattr(nn, f"ConvTranspose{dims}d")
    norm, pool = getattr(nn, f"BatchNorm{dims}d"), getattr(nn, f"MaxPool{dims}d")
    plain = nn.Sequential(conv(2, 4, 3, padding=1), norm(4), nn.ReLU(), pool(3, 1, 1), transpose(4, 2, 2, stride=2))
    found = convert(plain, (2, *(6,) * dims))
    assert found.bound <= 1 + 1e-4 and len(found.changes) == 5
