import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from orthogonium.errors import ParameterError, ShapeError
from orthogonium.spectral import Convolution, convolution, geometry_of
from tests.spectral.zoo import WrappedConv, WrappedConvTranspose


def test_reads_every_torch_layer():
    conv = geometry_of(nn.Conv2d(4, 6, (3, 5), (2, 1), (1, 2), (1, 3), groups=2, padding_mode="reflect"))
    assert conv.weight.shape == (6, 2, 3, 5)
    assert (conv.stride, conv.dilation, conv.padding) == ((2, 1), (1, 3), ((1, 1), (2, 2)))
    assert (conv.groups, conv.padding_mode, conv.transposed, conv.extend) == (2, "reflect", False, False)
    assert (conv.in_channels, conv.out_channels, conv.reach) == (4, 6, (3, 13))
    dense = geometry_of(nn.Linear(3, 5))
    assert (dense.in_channels, dense.out_channels, dense.stride) == (3, 5, ())
    up = geometry_of(nn.ConvTranspose1d(4, 6, 3, 2, 1, 1, groups=2))
    assert up.transposed
    assert (up.in_channels, up.out_channels, up.output_padding) == (4, 6, (1,))


def test_same_padding_is_torchs():
    assert geometry_of(nn.Conv1d(1, 1, 4, padding="same", dilation=3)).padding == ((4, 5),)
    assert geometry_of(nn.Conv1d(1, 1, 4, padding="valid")).padding == ((0, 0),)


def test_same_with_stride_extends_to_whole_strides():
    conv = convolution(torch.ones(1, 1, 5, 2), stride=(2, 3), padding="same", padding_mode="circular")
    assert conv.padding == ((1, 3), (0, 1))
    assert conv.extend
    assert not convolution(torch.ones(1, 1, 5), padding="same", padding_mode="circular").extend


def test_reads_parametrized_weights():
    layer = parametrizations.orthogonal(nn.Linear(4, 4))
    assert torch.equal(geometry_of(layer).weight, layer.weight)


def test_only_calling_tells_what_an_overridden_forward_does():
    class Doubled(nn.Conv2d):
        def forward(self, x):
            return 2 * super().forward(x)

    class Padded(nn.Conv2d):
        def _conv_forward(self, x, weight, bias):
            return super()._conv_forward(x, 3 * weight, bias)

    class Renamed(nn.Conv2d):
        pass

    assert geometry_of(Doubled(1, 1, 3)) is None
    assert geometry_of(Padded(1, 1, 3)) is None
    assert isinstance(geometry_of(Renamed(1, 1, 3)), Convolution)
    patched = nn.Conv2d(1, 1, 3)
    patched.forward = lambda x: 5 * x
    assert geometry_of(patched) is None
    hooked = nn.Conv2d(1, 1, 3)
    handle = hooked.register_forward_hook(lambda module, args, out: 7 * out)
    assert geometry_of(hooked) is None
    handle.remove()
    assert geometry_of(hooked) is not None


def test_layers_state_their_geometry():
    assert geometry_of(WrappedConv(2, 4, 3, 2)).extend
    up = geometry_of(WrappedConvTranspose(4, 2, 1, 3))
    assert (up.transposed, up.padding_mode, up.output_padding) == (True, "circular", (2, 2))

    class Misspelt(WrappedConv):
        def spectral_geometry(self):
            return {"strides": 2}

    with pytest.raises(ParameterError, match="strides"):
        geometry_of(Misspelt(1, 1, 3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stride": 0}, "stride"),
        ({"dilation": (1, 1)}, "dilation"),
        ({"padding": "full"}, "padding"),
        ({"padding": -1}, "padding"),
        ({"padding": ((1, 2, 3),)}, "padding"),
        ({"padding": "same", "stride": 2, "padding_mode": "reflect"}, "no meaning"),
        ({"padding_mode": "mirror"}, "padding_mode"),
        ({"groups": 3}, "groups"),
    ],
)
def test_rejects_what_it_cannot_mean(changes, message):
    with pytest.raises(ParameterError, match=message):
        convolution(torch.ones(4, 2, 3), **changes)


def test_rejects_weights_that_are_none():
    with pytest.raises(ShapeError, match="lazy"):
        convolution(torch.ones(0, 2, 3))
    with pytest.raises(ParameterError, match="real"):
        convolution(torch.ones(1, 1, 3, dtype=torch.complex64))
