"""`from_torch`: sizes of a plain layer, weights that are the closest of the set."""

import math

import pytest
import torch
from torch import nn

from orthogonium import layers
from orthogonium.errors import ConstraintError, GeometryError, ParameterError, ShapeError
from orthogonium.layers import freeze
from orthogonium.methods import METHODS
from orthogonium.methods.fitting import minimize
from orthogonium.reparametrizers import CAYLEY_ORTHO_PARAMS, EXP_ORTHO_PARAMS
from tests.contracts.table import LAYERS
from tests.oracle import singular_values

OWN = ("ortho_params", "niter", "order", "rank", "image_size")


@pytest.mark.filterwarnings("ignore::orthogonium.errors.GuaranteeWarning")
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_plain_layer_of_the_set_keeps_its_outputs(name, dtype):
    case = LAYERS[name]
    source = case.make(dtype=dtype).eval()
    if source.bias is not None:
        nn.init.normal_(source.bias)
    plain = freeze(source)
    made = case.cls.from_torch(plain, **{k: v for k, v in case.arguments.items() if k in OWN}).eval()
    x = case.input(source).to(dtype)
    with torch.no_grad():
        torch.testing.assert_close(made(x), source(x), rtol=0, atol=1e-4)
    assert made.distance_to(plain) < 1e-4 and made.weight.dtype == dtype


@pytest.mark.parametrize("channels", [1, 2, 5, 8])
def test_square_skew_kernels_are_recovered(channels):
    plain = freeze(layers.AdaptiveSOCConv2d(channels, channels, 3))
    assert layers.AdaptiveSOCConv2d.from_torch(plain).distance_to(plain) < 1e-5


FITTED = {
    "SOC": (layers.AdaptiveSOCConv2d, (6, 4, 3), {}),
    "SOC strided": (layers.AdaptiveSOCConv2d, (4, 6, 3), {"stride": 2}),
    "SOC strided, more outputs": (layers.AdaptiveSOCConv2d, (2, 12, 3), {"stride": 2}),
    "SOC strided, more outputs, groups": (layers.AdaptiveSOCConv2d, (2, 16, 3), {"stride": 2, "groups": 2}),
    "BRO": (layers.BROConv2d, (4, 4, 3), {"image_size": 6}),
    "BRO strided": (layers.BROConv2d, (2, 6, 3), {"stride": 2, "image_size": 8}),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", FITTED)
def test_fitted_kernels_of_other_constants_are_recovered(name, seed):
    cls, sizes, options = FITTED[name]
    torch.manual_seed(seed)
    plain = freeze(cls(*sizes, lipschitz=1.5, **options))
    assert cls.from_torch(plain).distance_to(plain) < 1e-5


@pytest.mark.parametrize("name", ["SOC-strided", "SOC-strided-columns", "OrthoLinear-DEFAULT", "AOL"])
def test_a_constrained_layer_keeps_its_raw_parameters(name):
    case = LAYERS[name]
    source = case.make()
    made = case.cls.from_torch(source, **{k: v for k, v in case.arguments.items() if k in OWN})
    for own, other in zip(made.parameters(), source.parameters(), strict=True):
        assert torch.equal(own, other) and own is not other


@pytest.mark.parametrize("name", [name for name in LAYERS if "depthwise" not in name])
def test_any_weight_gives_a_layer_of_the_set_that_trains(name):
    case = LAYERS[name]
    plain = freeze(case.make())
    nn.init.normal_(plain.weight)
    made = case.cls.from_torch(plain, steps=20, **{k: v for k, v in case.arguments.items() if k in OWN})
    x = case.input(made)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    for _ in range(2):
        shape = x.shape[1:]
        limit = math.sqrt(made.out_features) if isinstance(made, layers.UnitNormLinear) else 1
        assert singular_values(made, *shape)[0] <= limit + 1e-5
        optimizer.zero_grad()
        made(x).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5)])
def test_dense_weights_are_polar_factors(shape):
    plain = nn.Linear(*shape)
    u, _, vh = torch.linalg.svd(plain.weight.detach().double(), full_matrices=False)
    made = layers.OrthoLinear.from_torch(plain)
    torch.testing.assert_close(made.weight.double(), u @ vh, rtol=0, atol=1e-6)
    closest = made.distance_to(plain)
    for _ in range(20):  # no other orthogonal matrix is closer
        assert layers.OrthoLinear(*shape).distance_to(plain) > closest


@pytest.mark.parametrize("params", [EXP_ORTHO_PARAMS, CAYLEY_ORTHO_PARAMS])
def test_rotations_are_fitted_where_the_map_moves_orthogonal_matrices(params):
    plain = nn.Linear(6, 4)
    made = layers.OrthoLinear.from_torch(plain, ortho_params=params)
    assert made.distance_to(plain) <= layers.OrthoLinear.from_torch(plain).distance_to(plain) + 1e-4


@pytest.mark.parametrize("cls", [layers.AOLLinear, layers.SpectralLinear])
def test_methods_that_scale_keep_the_function_up_to_a_factor(cls):
    plain = nn.Linear(6, 4)
    made = cls.from_torch(plain)
    assert made.distance_to(plain, up_to_scale=True) < 1e-5
    ratio = made.weight / plain.weight
    assert ratio.min() > 0 and ratio.max() / ratio.min() < 1 + 1e-4


@pytest.mark.parametrize("niter", [1, 3])
@pytest.mark.parametrize("geometry", [{}, {"stride": 2}, {"groups": 2}, {"dilation": 2}])
def test_aol_kernels_are_scaled_as_a_whole(geometry, niter):
    plain = nn.Conv2d(4, 8, 3, **geometry)
    made = layers.AOLConv2d.from_torch(plain, niter=niter)
    for own, other in zip(made.weight.chunk(made.groups), plain.weight.chunk(made.groups), strict=True):
        scale = (own * other).sum() / other.square().sum()
        torch.testing.assert_close(own, scale * other, rtol=0, atol=1e-4)
    assert singular_values(made, 4, 9, 9)[0] <= 1 + 1e-6


@pytest.mark.parametrize("name", ["OrthoLinear-DEFAULT", "AOC", "AOL", "SpectralLinear"])
def test_other_constants_are_taken_over(name):
    case = LAYERS[name]
    source = case.make(lipschitz=3.0).eval()
    made = case.cls.from_torch(freeze(source), **{k: v for k, v in case.arguments.items() if k in OWN}).eval()
    x = case.input(source)
    assert made.lipschitz == 3
    torch.testing.assert_close(made(x), source(x), rtol=0, atol=3e-4)


def test_fits_overlap_more_than_what_they_start_from():
    plain = nn.Conv2d(8, 8, 3)
    started = layers.AdaptiveOrthoConv2d.from_torch(plain, steps=0, padding="valid")
    fitted = layers.AdaptiveOrthoConv2d.from_torch(plain, padding="valid")
    assert fitted.distance_to(plain, up_to_scale=True) < started.distance_to(plain, up_to_scale=True) - 0.01
    assert started.distance_to(plain) < layers.AdaptiveOrthoConv2d(8, 8, 3).distance_to(plain)
    again = layers.AdaptiveOrthoConv2d.from_torch(plain, padding="valid")
    assert torch.equal(again.weight, fitted.weight)  # nothing is random


def test_soc_takes_a_kernel_of_the_size_that_was_asked_for():
    plain = nn.Conv2d(4, 4, 3, padding=1)
    made = layers.AdaptiveSOCConv2d.from_torch(plain, steps=200)
    assert made.weight.shape == (4, 4, 9, 9) and made(torch.randn(1, 4, 6, 6)).shape == (1, 4, 6, 6)
    others = [layers.AdaptiveSOCConv2d(4, 4, 3).distance_to(plain, up_to_scale=True) for _ in range(10)]
    assert made.distance_to(plain, up_to_scale=True) < min(others)


def seen_distance(made, plain, size=97):
    """Relative, by what both layers make of impulses amid an image, one for each phase of the stride."""
    middle, channels = size // 2, plain.in_channels
    impulses = torch.zeros(channels, plain.stride[0], channels, size, dtype=torch.float64)
    for channel in range(channels):
        for phase in range(plain.stride[0]):
            impulses[channel, phase, channel, middle + phase] = 1
    with torch.no_grad():
        own, target = made(impulses.flatten(0, 1)), plain(impulses.flatten(0, 1))
    return ((own - target).norm() / target.norm()).item()


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("stride,dilation", [(1, 1), (1, 2), (1, 3), (2, 1), (3, 1)])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_distance_of_a_grown_kernel_is_that_of_the_operators(transposed, stride, dilation):
    cls = layers.AdaptiveSOCConvTranspose1d if transposed else layers.AdaptiveSOCConv1d
    torch_cls = nn.ConvTranspose1d if transposed else nn.Conv1d
    compared = 0
    for kernel in (1, 2, 3, 4, 5):
        for padding in (0, 1, 2, *([] if transposed else ["valid"]), *([] if transposed or stride > 1 else ["same"])):
            kind = {"dilation": dilation, "bias": False, "dtype": torch.float64, "padding_mode": "zeros"}
            plain = torch_cls(4, 4, kernel, stride, padding, **kind)
            try:
                made = cls(4, 4, kernel, stride, padding, padding_to="kernel", **kind)
                said = made.distance_to(plain)
            except GeometryError:
                continue
            assert said == pytest.approx(seen_distance(made, plain), rel=1e-9), (kernel, padding)
            compared += 1
    assert compared >= 6


@pytest.mark.parametrize("padding,dilation", [("same", 2), ("valid", 1), (0, 1), (2, 2), ("valid", 3)])
def test_a_rotation_of_the_channels_is_found_wherever_the_windows_begin(padding, dilation):
    plain = nn.Conv1d(4, 4, 3, padding=padding, dilation=dilation, bias=False, dtype=torch.float64)
    a = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        plain.weight.zero_()[:, :, 1] = torch.linalg.matrix_exp(0.1 * (a - a.T))
    made = layers.AdaptiveSOCConv1d.from_torch(plain)
    assert made.distance_to(plain) < 1e-3 and seen_distance(made, plain) < 1e-3


def test_taps_that_the_grown_kernel_does_not_have_are_refused():
    with pytest.raises(GeometryError, match=r"meet pixels.*no dilation"):
        layers.AdaptiveSOCConv1d.from_torch(nn.Conv1d(4, 4, 2, padding="same", dilation=2))


BLOCKS = {
    "SLL": (layers.SDPBasedLipschitzResBlock, nn.Conv2d(4, 4, 3, padding=1), {}),
    "SLL-AOC": (layers.SLLxAOCLipschitzResBlock, nn.Conv2d(4, 8, 3, stride=2, padding=1), {}),
    "Sandwich": (layers.SandwichConv2d, nn.Conv2d(3, 6, 3, padding=1), {}),
    "CPL": (layers.CPLConv1d, nn.Conv1d(4, 4, 3, padding=1), {}),
    "AOC residual": (layers.AOCLipschitzResBlock, nn.Conv2d(4, 4, 3, padding=1), {}),
    "SLL dense": (layers.SDPBasedLipschitzDense, nn.Linear(6, 4), {"inner_dim": 12}),
    "Sandwich dense": (layers.SandwichLinear, nn.Linear(6, 4), {"activation": "tanh"}),
    "CPL dense": (layers.CPLLinear, nn.Linear(6, 6), {}),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_do_what_the_activation_makes_of_the_layer(name):
    cls, plain, options = BLOCKS[name]
    made = cls.from_torch(plain, steps=60, **options)
    started = cls.from_torch(plain, steps=0, **options)
    assert made.distance_to(plain) < 0.95 * started.distance_to(plain)


def test_a_dense_sandwich_is_an_activated_rotation():
    plain = nn.Linear(4, 4)
    nn.init.orthogonal_(plain.weight)
    assert layers.SandwichLinear.from_torch(plain).distance_to(plain) < 1e-2


def test_every_method_has_it():
    for method in METHODS.values():
        for path in method.layers:
            assert callable(layers.lipschitz.layer_class(path).from_torch)


def test_options_take_the_place_of_those_of_the_layer():
    plain = nn.Conv2d(4, 8, 3, stride=2, padding=1, padding_mode="reflect", bias=False)
    with pytest.raises(GeometryError, match="circular"):
        layers.AdaptiveOrthoConv2d.from_torch(plain)
    made = layers.AdaptiveOrthoConv2d.from_torch(plain, padding="same", padding_mode="circular", steps=0)
    assert made.stride == (2, 2) and made.bias is None and made.padding_mode == "circular"


def test_refusals():
    with pytest.raises(ParameterError, match=r"orthogonium\.convert"):
        layers.OrthoLinear.from_torch(nn.LSTM(4, 4))
    with pytest.raises(ParameterError, match="does not take colour"):
        layers.OrthoLinear.from_torch(nn.Linear(4, 4), colour=3)
    with pytest.raises(ParameterError, match="steps"):
        layers.OrthoLinear.from_torch(nn.Linear(4, 4), steps=-1)
    with pytest.raises(ShapeError, match="4 → 6"):
        layers.CPLLinear.from_torch(nn.Linear(4, 6))
    broken = nn.Linear(4, 4)
    nn.init.constant_(broken.bias, math.nan)
    with pytest.raises(ConstraintError, match="NaN"):
        layers.OrthoLinear.from_torch(broken)
    with pytest.raises(TypeError):
        layers.AdaptiveOrthoConv2d.from_torch(nn.Linear(4, 4))


def test_long_fits_tell_how_far_they_are(capsys, monkeypatch):
    clock = iter(float(i) for i in range(1000))
    monkeypatch.setattr("orthogonium.methods.fitting.time.monotonic", lambda: next(clock))
    matrix = torch.diag(torch.logspace(0, 4, 50, dtype=torch.float64))
    minimize(lambda x: matrix @ x - 1, [torch.zeros(50, 1)], 60, "fit of a vector")
    told = capsys.readouterr().err
    assert "\rfit of a vector [" in told and "/60 distance" in told and told.endswith("\n")
    minimize(lambda x: x, [torch.zeros(3)], 60, "quick")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("made", [layers.AOLConv2d, layers.AdaptiveOrthoConv2d, layers.SpectralConv2d])
def test_a_transposed_layer_is_not_started_from_one_that_is_not(made):
    adjoint = getattr(layers, f"{made.__name__[:-2]}Transpose2d")
    plain, transposed = nn.Conv2d(4, 4, 3, padding=1), nn.ConvTranspose2d(4, 4, 3, padding=1)
    for cls, layer in ((made, transposed), (adjoint, plain)):
        with pytest.raises(GeometryError, match="adjoint"):
            cls.from_torch(layer)
    with pytest.raises(GeometryError, match="adjoint"):
        made(4, 4, 3, padding=1).distance_to(transposed)


@pytest.mark.parametrize(
    ("cls", "plain", "shape"),
    [
        (layers.SandwichConv2d, nn.Conv2d(16, 16, 3, padding=1), (16, 8, 8)),
        (layers.SandwichLinear, nn.Linear(32, 32), (32,)),
    ],
)
def test_the_distance_of_blocks_is_that_of_inputs_they_were_not_fitted_on(cls, plain, shape):
    made = cls.from_torch(plain, steps=60)
    x = torch.randn(2**18 // math.prod(shape), *shape)
    with torch.no_grad():
        target, own = made.activation(plain(x)), made(x)
    assert made.distance_to(plain) == pytest.approx(float((own - target).norm() / target.norm()), rel=0.05)
