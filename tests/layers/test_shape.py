import pytest
import torch
import torch.nn.functional as F
from torch import nn

from orthogonium.errors import ParameterError, ShapeError
from orthogonium.layers.channel_shift import ChannelShift
from orthogonium.layers.channel_shuffle import ChannelShuffle
from orthogonium.layers.positional_bias import PositionalBias
from orthogonium.layers.shape import InvertibleDownsampling, InvertibleUpsampling, IsometricPad, pad_constant
from tests.jacobians import jacobian, singular_values

MODES = ["zeros", "circular", "reflect", "replicate"]


def is_permutation(fn, x):
    matrix = jacobian(fn, x)
    one = torch.ones(len(matrix), dtype=x.dtype)
    square = matrix.shape[0] == matrix.shape[1]
    binary = torch.equal(matrix, matrix.bool().to(x.dtype))
    return square and binary and torch.equal(matrix.sum(0), one) and torch.equal(matrix.sum(1), one)


@pytest.mark.parametrize(
    ("shape", "factor"),
    [((2, 3, 6), 3), ((1, 2, 4, 6), 2), ((1, 2, 4, 6), (2, 3)), ((1, 2, 4, 3), (4, 1)), ((1, 1, 2, 4, 6), (1, 2, 3))],
)
def test_down_and_upsampling_are_permutations_and_inverse(shape, factor):
    x = torch.randn(shape)
    down = InvertibleDownsampling(factor)
    y = down(x)
    factors = factor if isinstance(factor, tuple) else (factor,) * (len(shape) - 2)
    assert y.shape[2:] == tuple(n // f for n, f in zip(shape[2:], factors, strict=True))
    assert y.numel() == x.numel()
    assert is_permutation(down, x) and is_permutation(down.inverse(), y)
    assert torch.equal(down.inverse()(y), x)
    assert torch.equal(down.inverse().inverse()(x), y)
    assert down.guarantee.kind == "orthogonal"


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_order_is_that_of_pixel_unshuffle(factor):
    x = torch.randn(2, 3, 6, 12)
    y = InvertibleDownsampling(factor)(x)
    assert torch.equal(y, nn.PixelUnshuffle(factor)(x))
    assert torch.equal(InvertibleUpsampling(factor)(y), nn.PixelShuffle(factor)(y))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("size", "padding"),
    [((5,), 2), ((5,), (3, 1)), ((3,), (2, 2)), ((4, 3), 1), ((4, 3), (0, 2, 1, 0)), ((4, 3), (2, 2, 3, 3))],
)
def test_padding_is_isometric_and_its_plain_form_has_the_stated_constant(size, padding, mode):
    x = torch.randn(1, 2, *size, dtype=torch.float64)
    layer = IsometricPad(padding, mode)
    assert (singular_values(layer, x) - 1).abs().max() < 1e-12
    pairs = padding if isinstance(padding, tuple) else (padding,) * (2 * len(size))
    torch_mode = "constant" if mode == "zeros" else mode
    plain = singular_values(lambda z: F.pad(z, pairs, mode=torch_mode), x)
    assert pad_constant(pairs, size, mode) == pytest.approx(plain.max().item(), abs=1e-12)
    assert layer(x).shape == F.pad(x, pairs, mode=torch_mode).shape


def test_padding_of_extreme_sizes():
    x = torch.randn(1, 1, 3, dtype=torch.float64)
    assert (singular_values(IsometricPad(3, "circular"), x) - 1).abs().max() < 1e-12  # three copies of everything
    assert pad_constant((3, 3), (3,), "circular") == pytest.approx(3**0.5)
    one = torch.randn(1, 1, 1, dtype=torch.float64)
    assert (singular_values(IsometricPad(4, "replicate"), one) - 1).abs().max() < 1e-12
    volume = torch.randn(1, 1, 2, 3, 2, dtype=torch.float64)
    assert (singular_values(IsometricPad(1, "reflect"), volume) - 1).abs().max() < 1e-12


def test_padding_keeps_dtype_and_interior():
    x = torch.randn(1, 1, 9, dtype=torch.bfloat16)
    y = IsometricPad(2, "circular")(x)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y[..., 4:9], x[..., 2:7])
    assert torch.equal(IsometricPad((1, 2))(x), F.pad(x, (1, 2)))


@pytest.mark.parametrize(("groups", "shape"), [((2, 3), (1, 12)), ((4, 2), (2, 8, 3)), ((1, 5), (1, 5, 2, 2))])
def test_channel_shuffle_is_a_permutation_that_spreads_each_group(groups, shape):
    layer = ChannelShuffle(*groups)
    x = torch.randn(shape)
    assert is_permutation(layer, x)
    assert torch.equal(layer.inverse()(layer(x)), x)
    group_in, group_out = groups
    origin = torch.arange(shape[1]) // (shape[1] // group_in)  # which group before
    shares = layer(origin[None]).reshape(group_out, -1)
    for share in shares:
        assert share.bincount(minlength=group_in).tolist() == [shape[1] // (group_in * group_out)] * group_in


def test_channel_shuffle_is_torchs_when_the_last_group_is_single():
    x = torch.randn(2, 12, 3, 3)
    assert torch.equal(ChannelShuffle(3, 4)(x), nn.ChannelShuffle(3)(x))
    last = x.movedim(1, -1)
    assert torch.equal(ChannelShuffle(3, 2, dim=-1)(last), ChannelShuffle(3, 2)(x).movedim(1, -1))


@pytest.mark.parametrize("shape", [(2, 7, 5, 4), (1, 12, 3, 3), (2, 4, 6, 2), (1, 5, 4), (1, 9, 2, 3, 2)])
@pytest.mark.parametrize("pixels", [1, 2, -3])
def test_channel_shift_is_a_permutation_in_every_direction(shape, pixels):
    layer = ChannelShift(pixels)
    x = torch.randn(shape)
    y = layer(x)
    assert is_permutation(layer, x)
    assert torch.equal(layer.inverse()(y), x)
    parts, axes = 2 * (len(shape) - 2), range(2, len(shape))
    share = max(shape[1] // (parts + 1), 1)
    expected = x.clone()  # by indices instead of `roll`
    for part, (axis, sign) in enumerate((axis, sign) for axis in axes for sign in (1, -1)):
        channels = slice(part * share, (part + 1) * share)
        source = (torch.arange(shape[axis]) - sign * pixels) % shape[axis]
        expected[:, channels] = x[:, channels].index_select(axis, source)
    assert torch.equal(y, expected)
    assert torch.equal(y[:, parts * share :], x[:, parts * share :])


def test_positional_bias_is_a_translation_of_one_shape():
    layer = PositionalBias((2, 3, 3))
    x = torch.randn(4, 2, 3, 3)
    assert torch.equal(layer(x), x)
    torch.nn.init.normal_(layer.bias)
    assert torch.equal(layer(x), x + layer.bias) and layer(x.bfloat16()).dtype == torch.bfloat16
    layer.reset_parameters()
    assert torch.equal(layer(x), x)
    with pytest.raises(ShapeError, match=r"shape \(2, 3, 3\): got \(4, 2, 1, 1\)"):
        layer(x[..., :1, :1])
    with pytest.raises(ParameterError, match="positive sizes"):
        PositionalBias((2, 0))


def test_bad_arguments_are_rejected():
    with pytest.raises(ParameterError, match="not 0"):
        ChannelShift(0)
    with pytest.raises(ShapeError, match="two channels for each"):
        ChannelShift()(torch.randn(1, 3, 4, 4))
    with pytest.raises(ShapeError, match="spatial axis"):
        ChannelShift()(torch.randn(1, 3))
    for layer in (InvertibleDownsampling, InvertibleUpsampling):
        with pytest.raises(ParameterError, match="≥ 1"):
            layer((2, 0))
        with pytest.raises(ShapeError, match="spatial axes"):
            layer((2, 2))(torch.randn(2, 4, 8))
        with pytest.raises(ShapeError, match="at least one"):
            layer(2)(torch.randn(2, 4))
    with pytest.raises(ShapeError, match=r"divide the size \(5, 4\)"):
        InvertibleDownsampling(2)(torch.randn(1, 1, 5, 4))
    with pytest.raises(ShapeError, match="multiple of 4"):
        InvertibleUpsampling(2)(torch.randn(1, 6, 5, 4))
    with pytest.raises(ParameterError, match="modes"):
        IsometricPad(1, "mirror")
    with pytest.raises(ParameterError, match="≥ 0"):
        IsometricPad((1, -1))
    with pytest.raises(ShapeError, match="two numbers"):
        IsometricPad((1, 1))(torch.randn(1, 1, 4, 4))
    with pytest.raises(ShapeError, match="at most 3 pixels"):
        IsometricPad(4, "reflect")(torch.randn(1, 1, 4))
    with pytest.raises(ShapeError, match="at most 4 pixels"):
        IsometricPad(5, "circular")(torch.randn(1, 1, 4))
    with pytest.raises(ParameterError, match="two numbers"):
        pad_constant((1, 1), (4, 4))
    with pytest.raises(ParameterError, match="modes"):
        pad_constant((1, 1), (4,), "symmetric")
    with pytest.raises(ParameterError, match="one group"):
        ChannelShuffle(0, 2)
    with pytest.raises(ShapeError, match="2 · 3"):
        ChannelShuffle(2, 3)(torch.randn(1, 8))


def test_printed_form():
    layers = [InvertibleDownsampling(2), IsometricPad(1, "reflect"), ChannelShuffle(2, 3), ChannelShuffle(2, 3, dim=-1)]
    layers += [ChannelShift(2), PositionalBias((2, 3))]
    assert [repr(layer) for layer in layers] == [
        "InvertibleDownsampling(2)",
        "IsometricPad(1, mode='reflect')",
        "ChannelShuffle(2, 3)",
        "ChannelShuffle(2, 3, dim=-1)",
        "ChannelShift(2)",
        "PositionalBias((2, 3))",
    ]


def test_compiles_in_one_graph():
    torch.compiler.reset()
    model = nn.Sequential(
        IsometricPad(1, "circular"),
        InvertibleDownsampling(2),
        ChannelShuffle(2, 4),
        ChannelShift(),
        InvertibleUpsampling(2),
    )
    x = torch.randn(2, 2, 6, 6)
    assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(x), model(x))
