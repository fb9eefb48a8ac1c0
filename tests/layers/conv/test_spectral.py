"""Convolutions divided by a bound of their norm: it is one, for every geometry, and a tight one."""

import random

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import spectral_norm

import orthogonium
from orthogonium.errors import GeometryError, ParameterError
from orthogonium.layers import (
    AdaptiveOrthoConv2d,
    SpectralConv1d,
    SpectralConv2d,
    SpectralConv3d,
    SpectralConvTranspose1d,
    SpectralConvTranspose2d,
    SpectralConvTranspose3d,
    freeze,
    normalize,
)
from tests.jacobians import train
from tests.oracle import plain_conv, singular_values

CONV = {1: SpectralConv1d, 2: SpectralConv2d, 3: SpectralConv3d}
TRANSPOSE = {1: SpectralConvTranspose1d, 2: SpectralConvTranspose2d, 3: SpectralConvTranspose3d}


def geometry(rng):
    """Random arguments of a convolution, and an image size that it takes."""
    dims = rng.choice((1, 1, 2, 2, 3))
    largest = {1: 5, 2: 4, 3: 2}[dims]
    groups = rng.choice((1, 1, 2, 3))
    channels = [groups * rng.randint(1, 3) for _ in range(2)]
    kernel = tuple(rng.randint(1, largest) for _ in range(dims))
    stride = tuple(rng.randint(1, 3) for _ in range(dims))
    dilation = tuple(rng.randint(1, 2) for _ in range(dims))
    extent = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    mode = rng.choice(("zeros", "circular"))
    padding = tuple(rng.randint(0, (x - 1) // 2) for x in extent) if rng.random() < 0.6 else "same"
    size = [max(x, rng.randint(3, {1: 12, 2: 6, 3: 4}[dims])) for x in extent]
    arguments = {
        "kernel_size": kernel,
        "stride": stride,
        "dilation": dilation,
        "groups": groups,
        "padding": padding,
        "padding_mode": mode,
        "bias": rng.random() < 0.5,
        "niter": rng.choice((0, 3, 7)),
    }
    return dims, channels, arguments, size


def scrambled(layer, rng):
    """Raw parameters of another scale and direction."""
    with torch.no_grad():
        for p in layer.parametrizations.parameters():
            p.copy_(torch.randn_like(p) * 10 ** rng.uniform(-12, 12))


def assert_bounded(layer, *size):
    assert singular_values(freeze(layer), *size).max() <= 1 + 1e-6, (layer, size)


@pytest.mark.parametrize("part", range(10))
def test_random_geometries(part):
    """300 of them, transposed or not, at the start, at other scales, and after training: σ_max ≤ 1 + 1e-6."""
    rng = random.Random(part)
    for _ in range(30):
        dims, channels, arguments, size = geometry(rng)
        transposed = rng.random() < 0.4
        if transposed and arguments["padding_mode"] == "zeros" and arguments["padding"] == "same":
            arguments["padding"] = 0
        layer = (TRANSPOSE if transposed else CONV)[dims](*channels, **arguments)
        if transposed:
            size = [max(2, n // s) for n, s in zip(size, layer.stride, strict=True)]
        assert_bounded(layer, channels[0], *size)
        scrambled(layer, rng)
        assert_bounded(layer, channels[0], *size)
        train(layer, torch.randn(2, channels[0], *size), 3)
        assert_bounded(layer, channels[0], *size)


@pytest.mark.parametrize("start", ["orthogonal tap", "normal", "half of the spectrum", "trained"])
def test_it_is_tight(start):
    """At frequencies of a fine grid, some singular value of a 3×3 kernel of 64 channels is at least 0.98."""
    layer = SpectralConv2d(64, 64, 3, padding=1, padding_mode="circular", bias=False)
    if start == "normal":
        layer.weight = torch.randn(64, 64, 3, 3)
    if start == "half of the spectrum":  # the worst case of Gram iteration has many equal values, and others
        layer.weight = AdaptiveOrthoConv2d(64, 64, 3).weight.detach() * (torch.arange(64) < 32).view(-1, 1, 1, 1)
    if start == "trained":
        train(layer, torch.randn(2, 64, 6, 6), 3)
    weight = layer.weight.detach().double()
    symbol = torch.fft.fft2(weight, s=(40, 40)).permute(2, 3, 0, 1)[:21]
    sigma = torch.linalg.matrix_norm(symbol, ord=2).max()
    assert 0.98 <= sigma <= 1 + 1e-6


def test_zero_stays_zero_and_groups_are_scaled_apart():
    layer = SpectralConv2d(4, 4, 3, groups=2, padding=1, bias=False)
    layer.weight = torch.cat([torch.zeros(2, 2, 3, 3), 1e-20 * torch.randn(2, 2, 3, 3)])
    assert not layer.weight[:2].any()
    assert singular_values(layer, 4, 9, 9).max() > 0.8
    layer.weight.sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parametrizations.parameters())


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
def test_linear_residuals(padding_mode, transposed):
    """What is normalized is the identity plus a kernel: with a zero kernel it is the identity."""
    cls = TRANSPOSE[2] if transposed else CONV[2]
    layer = cls(4, 4, 3, padding=2, dilation=2, groups=2, padding_mode=padding_mode, residual=True, bias=False)
    x = torch.randn(2, 4, 7, 6)
    for _ in range(2):
        assert singular_values(layer, 4, 7, 6).max() <= 1 + 1e-6
        train(layer, x, 3)
    with torch.no_grad():
        for p in layer.parametrizations.parameters():
            p.zero_()
    # One frequency would do for one tap: the grid of a 3×3 kernel costs at most 1.0080².
    torch.testing.assert_close(layer(x), x * layer(x).norm() / x.norm(), rtol=1e-5, atol=1e-6)
    assert 0.98 <= layer(x).norm() / x.norm() <= 1


@pytest.mark.parametrize(
    "arguments", [(4, 6, 3), (4, 4, 2), (4, 4, 3, 2)], ids=["channels", "an even kernel", "a stride"]
)
def test_residuals_that_have_no_identity(arguments):
    with pytest.raises(GeometryError, match="identity"):
        SpectralConv2d(*arguments, padding="same", residual=True)


def test_residuals_keep_the_image():
    with pytest.raises(GeometryError, match="keeps the image"):
        SpectralConv2d(4, 4, 3, residual=True)
    with pytest.raises(ParameterError, match="niter"):
        SpectralConv2d(4, 4, 3, niter=-1)


# ── layers of torch ──

PLAIN = [
    (lambda: nn.Conv1d(3, 5, 5, padding=2), (11,)),
    (lambda: nn.Conv2d(4, 6, 3, padding=1), (7, 6)),
    (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), (7, 6)),
    (lambda: nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), (5, 5)),
    (lambda: nn.Conv2d(4, 4, 3, stride=2, padding=1, padding_mode="circular"), (5, 5)),  # which torch does not tile
    (lambda: nn.Conv2d(4, 4, 3, padding=2, padding_mode="circular"), (5, 5)),  # windows repeat
    (lambda: nn.Conv2d(4, 4, 3, padding=2, padding_mode="reflect"), (3, 3)),
    (lambda: nn.Conv2d(4, 4, 3, padding=1, padding_mode="replicate"), (1, 4)),
    (lambda: nn.Conv2d(4, 4, (3, 1), padding="same", dilation=2, padding_mode="replicate"), (5, 3)),
    (lambda: nn.Conv3d(2, 3, 2), (3, 3, 3)),
    (lambda: nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1, groups=1), (4, 4)),
    (lambda: nn.ConvTranspose1d(4, 2, 4, stride=2, dilation=2, groups=2), (5,)),
]


@pytest.mark.parametrize("lipschitz", [1.0, 3.0])
@pytest.mark.parametrize("case", range(len(PLAIN)))
def test_layers_of_torch(case, lipschitz):
    make, size = PLAIN[case]
    for fill in (lambda weight: weight, torch.randn_like, torch.ones_like):
        layer = make()
        given = fill(layer.weight.detach())
        layer.weight.data.copy_(given)
        assert normalize(layer, lipschitz) is layer
        assert torch.cosine_similarity(layer.weight.flatten(), given.flatten(), dim=0) > 0.9
        x = torch.randn(2, layer.in_channels, *size)
        for _ in range(2):
            assert singular_values(layer, layer.in_channels, *size).max() <= lipschitz * (1 + 1e-6)
            train(layer, x, 2)


def test_it_is_right_where_torch_is_not():
    """A kernel that averages: as a matrix its norm is a third of what it is as a convolution."""
    conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
    nn.init.ones_(conv.weight)
    ours, torchs = normalize(nn.Conv2d(4, 4, 3, padding=1, bias=False)), spectral_norm(conv, n_power_iterations=30)
    ours.weight = torch.ones(4, 4, 3, 3)
    size = (4, 16, 16)
    assert singular_values(torchs.eval(), *size).max() > 2.8
    assert 0.9 < singular_values(ours, *size).max() <= 1 + 1e-6
    assert orthogonium.lipschitz_bound(ours, size).value <= 1 + 1e-4


def test_linear_layers_and_refusals():
    linear = nn.Linear(6, 9)
    direction = linear.weight.detach().clone()
    normalize(linear, 0.5)
    sigma = torch.linalg.svdvals(linear.weight.double()).max()
    assert 0.49 < sigma <= 0.5 * (1 + 1e-6)
    assert torch.cosine_similarity(linear.weight.flatten(), direction.flatten(), dim=0) > 0.9999
    assert list(freeze(nn.Sequential(linear)).state_dict()) == ["0.bias", "0.weight"]
    with pytest.raises(ParameterError, match="parametrized already"):
        normalize(linear)
    parametrize.remove_parametrizations(linear, "weight")
    assert type(linear) is nn.Linear
    with pytest.raises(ParameterError, match="parametrized already"):
        normalize(SpectralConv2d(3, 3, 3))
    with pytest.raises(ParameterError, match="takes nn.Linear"):
        normalize(nn.ReLU())
    with pytest.raises(ParameterError, match="positive"):
        normalize(nn.Linear(2, 2), 0.0)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_they_are_convolutions(dims):
    for table, transposed in ((CONV, False), (TRANSPOSE, True)):
        layer = table[dims](2, 3, 3)
        assert isinstance(layer, plain_conv(dims, transposed)) and str(layer.guarantee).startswith("1-Lipschitz")
