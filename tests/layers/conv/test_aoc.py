"""Borders, adjoints, arguments and parts of adaptive orthogonal convolutions."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrize

import orthogonium.linalg as linalg
from orthogonium.errors import GeometryError, GuaranteeWarning, ParameterError, ShapeError
from orthogonium.layers.conv import aoc, bcop, rko
from orthogonium.layers.conv.init import conv_orthogonal_
from orthogonium.layers.conv.soc import AdaptiveSOCConvTranspose2d
from tests.oracle import operator, plain_conv, singular_values

CONV = {d: getattr(aoc, f"AdaptiveOrthoConv{d}d") for d in (1, 2, 3)}
TRANSPOSE = {d: getattr(aoc, f"AdaptiveOrthoConvTranspose{d}d") for d in (1, 2, 3)}


def quiet(make, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuaranteeWarning)
        return make(*args, **options)


# ── borders ──


@pytest.mark.parametrize("size", [(8, 8), (7, 9), (5, 5), (6, 4)], ids=str)
@pytest.mark.parametrize("channels", [(2, 3), (2, 9), (4, 2)], ids=str)
@pytest.mark.parametrize("k,s,d", [(3, 2, 1), (5, 2, 1), (3, 3, 1), (4, 3, 2), (2, 2, 1), (3, 1, 1)])
def test_same_padding_with_stride(size, channels, k, s, d):
    """⌈n/s⌉ outputs; orthogonal when the stride divides the image; never above 1; columns stay isometric."""
    conv = aoc.AdaptiveOrthoConv2d(*channels, k, stride=s, dilation=d, dtype=torch.float64)
    out = conv(torch.zeros(1, channels[0], *size, dtype=torch.float64))
    assert out.shape == (1, channels[1], *(-(-n // s) for n in size))
    sigma = singular_values(conv, channels[0], *size)
    assert sigma.max() <= 1 + 1e-12
    if all(n % s == 0 for n in size):
        assert (sigma - 1).abs().max() <= 1e-12
    elif channels[1] > channels[0] * s * s:
        matrix = operator(conv, channels[0], *size)
        torch.testing.assert_close(matrix.T @ matrix, torch.eye(matrix.shape[1], dtype=torch.float64))


def test_odd_images_expand_without_the_remedy():
    """What a plain circular convolution with the same kernel does: the oracle sees it."""
    conv = aoc.AdaptiveOrthoConv1d(4, 8, 3, stride=2, dtype=torch.float64)
    plain = nn.Conv1d(4, 8, 3, stride=2, padding=1, padding_mode="circular", dtype=torch.float64)
    plain.load_state_dict({"weight": conv.weight.detach(), "bias": conv.bias.detach()})
    assert singular_values(plain, 4, 7).max() > 1.2
    assert singular_values(conv, 4, 7).max() <= 1 + 1e-12


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("k,d", [(3, 1), (5, 1), (3, 3), (4, 2)])
def test_kernels_larger_than_the_image(size, k, d):
    conv = aoc.AdaptiveOrthoConv2d(3, 3, k, dilation=d, dtype=torch.float64)
    assert (singular_values(conv, 3, size, size) - 1).abs().max() <= 1e-12


@pytest.mark.parametrize("k,s,d", [(3, 1, 1), (3, 2, 1), (5, 2, 1), (4, 2, 1), (3, 2, 3), (2, 3, 1)])
@pytest.mark.parametrize("mode", ["circular", "zeros"])
@pytest.mark.parametrize("size", [(12, 8), (7, 9)], ids=str)
def test_integer_padding_has_the_outputs_of_torch(k, s, d, mode, size):
    extent = d * (k - 1) + 1
    for padding in range((extent + 1) // 2):
        conv = aoc.AdaptiveOrthoConv2d(3, 4, k, s, padding, d, padding_mode=mode, dtype=torch.float64)
        plain = nn.Conv2d(3, 4, k, s, padding, d, padding_mode=mode, dtype=torch.float64)
        plain.load_state_dict({"weight": conv.weight.detach(), "bias": conv.bias.detach()})
        x = torch.randn(2, 3, *size, dtype=torch.float64)
        assert conv(x).shape == plain(x).shape
        if mode == "zeros" or all(n % s == 0 for n in size):
            torch.testing.assert_close(conv(x), plain(x))
        assert singular_values(conv, 3, *size).max() <= 1 + 1e-12
        if conv.guarantee.kind == "orthogonal" and all(n % s == 0 for n in size):
            assert (singular_values(conv, 3, *size) - 1).abs().max() <= 1e-12


def test_integer_padding_that_keeps_every_window_is_orthogonal():
    conv = aoc.AdaptiveOrthoConv2d(3, 4, 3, stride=2, padding=1)
    assert conv.guarantee.kind == "orthogonal"
    assert (singular_values(conv, 3, 8, 8) - 1).abs().max() <= 1e-5
    assert aoc.AdaptiveOrthoConv2d(3, 3, 5, padding=1).guarantee.kind == "lipschitz"
    assert aoc.AdaptiveOrthoConv2d(3, 3, 5, padding="valid").guarantee.kind == "lipschitz"


@pytest.mark.parametrize("padding", ["same", "valid", 0, 1, (2, 1), 4])
@pytest.mark.parametrize("k,s", [(3, 1), (2, 2), (3, 2), ((3, 2), (1, 2))], ids=str)
def test_zero_padding_never_expands(padding, k, s):
    for channels in [(2, 4), (4, 2), (2, 9)]:
        conv = aoc.AdaptiveOrthoConv2d(*channels, k, s, padding, padding_mode="zeros", dtype=torch.float64)
        assert conv.guarantee.kind == "lipschitz"
        for size in [(6, 6), (5, 7)]:
            assert singular_values(conv, channels[0], *size).max() <= 1 + 1e-12


def test_zero_padding_is_exact_where_it_can_be():
    """Full padding keeps columns, no padding keeps rows."""
    full = aoc.AdaptiveOrthoConv2d(2, 4, 3, padding=2, padding_mode="zeros", dtype=torch.float64)
    none = aoc.AdaptiveOrthoConv2d(4, 2, 3, padding=0, padding_mode="zeros", dtype=torch.float64)
    assert (singular_values(full, 2, 5, 5) - 1).abs().max() <= 1e-12
    assert (singular_values(none, 4, 5, 5) - 1).abs().max() <= 1e-12


def test_images_without_batch():
    conv = aoc.AdaptiveOrthoConv2d(3, 4, 3, stride=2)
    x = torch.randn(3, 7, 8)
    torch.testing.assert_close(conv(x), conv(x[None])[0])
    transpose = aoc.AdaptiveOrthoConvTranspose2d(4, 3, 3, stride=2, padding="same", padding_mode="circular")
    y = torch.randn(4, 3, 4)
    torch.testing.assert_close(transpose(y), transpose(y[None])[0])


# ── transposed convolutions ──


@settings(max_examples=60, deadline=None)
@given(data=st.data(), dims=st.integers(1, 3), mode=st.sampled_from(["circular", "zeros"]))
def test_transposed_layers_are_adjoints(data, dims, mode):
    """⟨Kx, y⟩ = ⟨x, Kᵀy⟩ for a convolution and the transposed layer with the same weight, any geometry."""
    draw = lambda low, high: tuple(data.draw(st.integers(low, high)) for _ in range(dims))  # noqa: E731
    k, s, d, g = draw(1, 3), draw(1, 3), draw(1, 2), data.draw(st.integers(1, 2))
    ci, co = g * data.draw(st.integers(1, 3)), g * data.draw(st.integers(1, 4))
    same = mode == "circular" and data.draw(st.booleans())
    extent = [c * (a - 1) + 1 for a, c in zip(k, d, strict=True)]
    padding = "same" if same else tuple(data.draw(st.integers(0, (x - 1) // 2)) for x in extent)
    size = tuple(data.draw(st.integers(x, x + 4)) for x in extent)
    options = dict(stride=s, padding=padding, dilation=d, groups=g, bias=False, padding_mode=mode, dtype=torch.float64)
    try:
        conv = quiet(CONV[dims], ci, co, k, **options)
    except GeometryError:
        assume(False)
    transpose = quiet(TRANSPOSE[dims], co, ci, k, **options)
    transpose.load_state_dict(conv.state_dict())
    x = torch.randn(2, ci, *size, dtype=torch.float64)
    kx = conv(x)
    y = torch.randn_like(kx)
    kty = transpose(y, output_size=size)
    assert kty.shape == x.shape
    torch.testing.assert_close((kx * y).sum(), (x * kty).sum())


def test_output_size():
    transpose = aoc.AdaptiveOrthoConvTranspose2d(8, 3, 3, stride=2, padding="same", padding_mode="circular")
    y = torch.randn(1, 8, 4, 5)
    assert transpose(y).shape == (1, 3, 8, 10)
    assert transpose(y, output_size=(7, 9)).shape == (1, 3, 7, 9)
    assert transpose(y, output_size=(1, 3, 7, 10)).shape == (1, 3, 7, 10)
    with pytest.raises(ShapeError, match=r"sizes from \(7, 9\) to \(8, 10\)"):
        transpose(y, output_size=(6, 9))
    assert singular_values(transpose, 8, 4, 5).max() <= 1 + 1e-6
    zeros = aoc.AdaptiveOrthoConvTranspose2d(8, 3, 3, stride=2, padding=1, output_padding=1)
    plain = nn.ConvTranspose2d(8, 3, 3, stride=2, padding=1, output_padding=1)
    plain.load_state_dict({"weight": zeros.weight.detach(), "bias": zeros.bias.detach()})
    torch.testing.assert_close(zeros(y), plain(y))
    torch.testing.assert_close(zeros(y, output_size=(7, 9)), plain(y, output_size=(7, 9)))


def test_bias_of_a_circular_transposed_layer():
    transpose = aoc.AdaptiveOrthoConvTranspose2d(4, 3, 3, padding="same", padding_mode="circular")
    with torch.no_grad():
        transpose.bias.copy_(torch.tensor([1.0, 2.0, 3.0]))
    out = transpose(torch.zeros(2, 4, 5, 5))
    torch.testing.assert_close(out, transpose.bias.view(1, 3, 1, 1).expand(2, 3, 5, 5))


# ── random geometries ──


@settings(max_examples=80, deadline=None)
@given(data=st.data(), dims=st.integers(1, 2), seed=st.integers(0, 2**16))
def test_any_geometry_is_refused_or_kept(data, dims, seed):
    draw = lambda low, high: tuple(data.draw(st.integers(low, high)) for _ in range(dims))  # noqa: E731
    k, s, d, g = draw(1, 5), draw(1, 4), draw(1, 3), data.draw(st.integers(1, 3))
    ci, co = g * data.draw(st.integers(1, 4)), g * data.draw(st.integers(1, 8))
    size = draw(1, 7)
    torch.manual_seed(seed)
    try:
        conv = quiet(CONV[dims], ci, co, k, stride=s, dilation=d, groups=g, dtype=torch.float64)
    except GeometryError:
        return
    sigma = singular_values(conv, ci, *size)
    assert sigma.max() <= 1 + 1e-12
    if all(n % t == 0 for n, t in zip(size, s, strict=True)):
        assert (sigma - 1).abs().max() <= 1e-12


# ── arguments ──


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_modes_that_repeat_pixels_are_rejected(mode):
    with pytest.raises(GeometryError, match="repeats border pixels.*circular"):
        aoc.AdaptiveOrthoConv2d(3, 3, 3, padding_mode=mode)


@pytest.mark.parametrize(
    "options,message",
    [
        (dict(padding=2), "repeats windows"),
        (dict(padding="full"), "padding must be"),
        (dict(padding=-1), "padding must be"),
        (dict(padding_mode="mirror"), "padding_mode must be one of"),
        (dict(kernel_size=4, stride=4, dilation=2, out_channels=17), "effective stride"),
        (dict(kernel_size=1, stride=2, out_channels=5), "effective stride"),
    ],
    ids=str,
)
def test_bad_arguments(options, message):
    arguments = {"in_channels": 4, "out_channels": 4, "kernel_size": 3, **options}
    with pytest.raises(GeometryError, match=message):
        aoc.AdaptiveOrthoConv2d(**arguments)


def test_bad_arguments_of_transposed_layers():
    with pytest.raises(GeometryError, match="circular"):
        aoc.AdaptiveOrthoConvTranspose2d(4, 4, 3, padding="same")
    with pytest.raises(GeometryError, match="output_padding"):
        aoc.AdaptiveOrthoConvTranspose2d(4, 4, 3, stride=2, output_padding=2)
    with pytest.raises(GeometryError, match="output_size"):
        aoc.AdaptiveOrthoConvTranspose2d(4, 4, 3, 2, "same", 1, padding_mode="circular")
    with pytest.raises(TypeError):
        aoc.AdaptiveOrthoConv2d(3, 3, 3, strides=2)


def test_ortho_params_must_be_some():
    for bad in ("qr", None):
        with pytest.raises(ParameterError, match="QR_ORTHO_PARAMS"):
            aoc.AdaptiveOrthoConv2d(3, 4, 3, ortho_params=bad)
    with pytest.raises(ParameterError, match="two factories"):
        linalg.OrthoParams(orthogonalizer="qr")


def test_wrong_images_are_named():
    with pytest.raises(ShapeError, match=r"\(batch, 3, height, width\)"):
        aoc.AdaptiveOrthoConv2d(3, 4, 3)(torch.randn(1, 4, 8, 8))
    with pytest.raises(ShapeError, match="images"):
        aoc.AdaptiveOrthoConv2d(3, 4, 3)(torch.randn(1, 3, 0, 5))
    with pytest.raises(ShapeError, match="smaller than the extent"):
        aoc.AdaptiveOrthoConv2d(3, 4, 5, padding=1)(torch.randn(1, 3, 8, 2))


def test_depthwise_warns():
    with pytest.warns(GuaranteeWarning, match="AdaptiveSOC"):
        conv = aoc.AdaptiveOrthoConv2d(8, 8, 3, groups=8)
    assert (singular_values(conv, 8, 4, 4) - 1).abs().max() <= 1e-6


# ── parity with torch, ortho_params, parts by name ──


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_it_is_a_torch_layer(dims, transposed):
    layer = (TRANSPOSE if transposed else CONV)[dims](4, 6, 3)
    assert isinstance(layer, plain_conv(dims, transposed))
    assert layer.weight.shape == plain_conv(dims, transposed)(4, 6, 3).weight.shape
    assert "4, 6, kernel_size=(3" in layer.extra_repr()


def test_a_plain_convolution_remains_after_removal():
    """Strided too: the weight is one tensor that a single convolution applies."""
    conv = aoc.AdaptiveOrthoConv2d(4, 8, 3, stride=2, padding=1, padding_mode="zeros")
    x = torch.randn(2, 4, 8, 8)
    expected = conv(x)
    parametrize.remove_parametrizations(conv, "weight")
    torch.testing.assert_close(F.conv2d(x, conv.weight, conv.bias, stride=2, padding=1), expected)


@pytest.mark.parametrize(
    "name", ["POLAR", "EXP", "CAYLEY", "QR", "CHOLESKY", "CHOLESKY_STABLE", "BJORCK", "BJORCK_PASS_THROUGH"]
)
@pytest.mark.parametrize("options", [dict(), dict(stride=2), dict(groups=2)], ids=str)
def test_every_preset_serves_convolutions(name, options):
    params = getattr(linalg, f"{name}_ORTHO_PARAMS")
    conv = aoc.AdaptiveOrthoConv2d(4, 6, 3, ortho_params=params, **options)
    assert (singular_values(conv, 4, 6, 6) - 1).abs().max() <= 1e-5
    conv.weight.sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in conv.parametrizations.parameters())


def test_presets_describe_the_same_kernels():
    """The span of the bases alone matters: QR and the default give the same kernel from the same raw parameters."""
    a = aoc.AdaptiveOrthoConv2d(6, 6, 3, dtype=torch.float64)
    b = aoc.AdaptiveOrthoConv2d(6, 6, 3, ortho_params=linalg.QR_ORTHO_PARAMS, dtype=torch.float64)
    b.load_state_dict(a.state_dict())
    torch.testing.assert_close(a.weight, b.weight)
    target = torch.randn_like(a.weight)
    for layer in (a, b):
        (layer.weight * target).sum().backward()
    torch.testing.assert_close(a.parametrizations.weight.original0.grad, b.parametrizations.weight.original0.grad)


def test_parts_by_name():
    x = torch.randn(1, 4, 8, 8)
    assert (singular_values(bcop.FastBlockConv2d(4, 4, 3), 4, 6, 6) - 1).abs().max() <= 1e-5
    for channels in (4, 12, 24):
        strided = bcop.FastBlockConv2d(4, channels, 3, stride=2, padding="same")
        assert (singular_values(strided, 4, 6, 6) - 1).abs().max() <= 1e-5
    assert bcop.FastBlockConvTranspose2D(4, 4, 3, stride=2, padding=1, output_padding=1)(x).shape == (1, 4, 16, 16)
    assert bcop.FastBlockConvTranspose2D(4, 4, 3, padding=1)(x).shape == x.shape
    assert (singular_values(aoc.BcopRkoConv2d(4, 6, 3, stride=2), 4, 6, 6) - 1).abs().max() <= 1e-5
    assert aoc.BcopRkoConvTranspose2d(4, 2, 3, stride=2)(x).shape == (1, 2, 17, 17)


@pytest.mark.parametrize("k,s,d", [(2, 2, 1), (2, 3, 1), (3, 1, 1), (3, 2, 1), (4, 2, 2), (5, 2, 1)])
@pytest.mark.parametrize("transposed", [False, True])
def test_rko(k, s, d, transposed):
    """Orthogonal where windows do not overlap, 1-Lipschitz and still large elsewhere; kernel ≠ stride is honoured."""
    options = dict(stride=s, dilation=d, padding="same", padding_mode="circular", dtype=torch.float64)
    size = 12 // s if transposed else 12
    if transposed:
        layer = rko.RkoConvTranspose2d(4, 3, k, **options)
    else:
        layer = rko.RKOConv2d(3, 4, k, **options)
    assert layer.weight.shape[2:] == (k, k)
    sigma = singular_values(layer, layer.in_channels, size, size)
    if k <= s and d == 1:
        assert layer.guarantee.kind == "orthogonal"
        assert (sigma - 1).abs().max() <= 1e-12
    else:
        assert layer.guarantee.kind == "lipschitz"
        assert 0.3 <= sigma.max() <= 1 + 1e-12


# ── initializer ──


@pytest.mark.parametrize(
    "dims,shape,options",
    [
        (1, (4, 3, 5), dict()),
        (2, (8, 3, 3, 2), dict(stride=2)),
        (2, (6, 2, 3, 3), dict(groups=2)),
        (2, (4, 4, 3, 3), dict(dilation=2, gain=0.5)),
        (3, (4, 2, 2, 2, 2), dict(stride=2)),
    ],
    ids=str,
)
def test_initializer(dims, shape, options):
    weight = torch.empty(shape, dtype=torch.float64)
    generator = torch.Generator().manual_seed(3)
    assert conv_orthogonal_(weight, generator=generator, **options) is weight
    again = conv_orthogonal_(torch.empty_like(weight), generator=torch.Generator().manual_seed(3), **options)
    assert torch.equal(weight, again)
    gain = options.pop("gain", 1.0)
    groups = options.get("groups", 1)
    conv = CONV[dims](shape[1] * groups, shape[0], shape[2:], bias=False, dtype=torch.float64, **options)
    parametrize.remove_parametrizations(conv, "weight")
    with torch.no_grad():
        conv.weight.copy_(weight)
    sigma = singular_values(conv, shape[1] * groups, *(6,) * dims)
    assert (sigma - gain).abs().max() <= 1e-12


def test_initializer_refuses_the_impossible():
    with pytest.raises(GeometryError):
        conv_orthogonal_(torch.empty(5, 4, 1, 1), stride=2)


def test_published_example():
    """Strided `padding="same"`, as in the published README."""
    layer = aoc.AdaptiveOrthoConv2d(
        in_channels=3, out_channels=16, kernel_size=4, stride=2, padding="same", padding_mode="circular", bias=True
    )
    x = torch.randn(1, 3, 32, 32)
    assert layer(x).shape == (1, 16, 16, 16)


@pytest.mark.parametrize("channels", [(3, 1), (2, 4), (4, 4)])
@pytest.mark.parametrize("stride,dilation,padding", [(1, 2, 1), (2, 3, 1), (1, 3, 3), (2, 1, 1), (3, 1, 0)])
def test_output_padding_and_the_promise(channels, stride, dilation, padding):
    """A promise of all singular values 1 is kept, for every output_padding that is accepted."""
    for extra in range(max(stride, dilation)):
        layer = aoc.AdaptiveOrthoConvTranspose1d(
            *channels, 3, stride, padding, output_padding=extra, dilation=dilation, padding_mode="circular"
        )
        for size in (4, 5):
            sigma = singular_values(layer, channels[0], size)
            assert sigma.max() <= 1 + 1e-5
            divisible = layer(torch.zeros(channels[0], size)).shape[-1] % stride == 0
            if layer.guarantee.kind == "orthogonal" and divisible:
                assert sigma.min() >= 1 - 1e-5


def test_output_padding_beyond_the_windows_is_no_isometry():
    for cls in (aoc.AdaptiveOrthoConvTranspose2d, AdaptiveSOCConvTranspose2d):
        layer = cls(3, 1, 1, dilation=2, output_padding=(0, 1), padding_mode="circular")
        assert singular_values(layer, 3, 4, 4).min() < 1e-5
        assert str(layer.guarantee).startswith("1-Lipschitz, for every image size")
