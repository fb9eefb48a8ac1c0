import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from orthogonium.errors import GeometryError, ParameterError, ShapeError
from orthogonium.spectral import Spectrum, convolution, geometry_of, norm_bound, spectrum
from tests.spectral.zoo import WrappedConv, WrappedConvTranspose, fill, oracle_values, random_conv, rng

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
D = torch.float64


def stable_rank(values):
    return (values.square().sum() / values[0].square()).item() if values[0] else 0.0


@pytest.mark.parametrize("dtype", [torch.float32, D])
@pytest.mark.parametrize("seed", range(2))
def test_each_kind_keeps_its_word(seed, dtype):
    random = rng(seed)
    for _ in range(40):
        layer, size = random_conv(random, dtype=dtype, bias=True)
        shape = (layer.in_channels, *size)
        exact = oracle_values(copy.deepcopy(layer).double(), shape)
        slack = 1e-5 if dtype == torch.float32 else 1e-12

        found = spectrum(layer, shape)
        assert found.kind == "exact"
        assert found.sigma_max == pytest.approx(exact[0].item(), rel=1e-12)
        assert found.sigma_min == pytest.approx(exact[-1].item(), abs=1e-12)
        assert found.stable_rank == pytest.approx(stable_rank(exact), rel=1e-10)
        assert exact[0] <= found.upper_bound <= exact[0] * (1 + 1e-9)

        upper = spectrum(layer, shape, kind="upper")
        assert upper.kind == "upper"
        assert upper.upper_bound >= upper.sigma_max >= exact[0]
        assert upper.sigma_min <= exact[-1] + 1e-14
        assert upper.stable_rank <= stable_rank(exact) * (1 + 1e-12)

        estimate = spectrum(layer, shape, kind="estimate")
        assert estimate.kind == "estimate"
        assert estimate.sigma_max <= exact[0] * (1 + slack)
        assert estimate.sigma_min >= exact[-1] - slack


def test_the_cheapest_sound_way():
    circular = nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular")
    assert spectrum(circular, (4, 40, 40)).method == "Fourier"
    assert spectrum(nn.Conv2d(4, 4, 3, padding=1), (4, 6, 6)).method == "operator"
    large = spectrum(nn.Conv2d(64, 64, 3, padding=1), (64, 224, 224))
    assert large.kind == "upper"
    assert large.method.startswith("frequencies")
    orthogonal = spectrum(fill(nn.Conv2d(64, 64, 3, padding=1), "orthogonal"), (64, 224, 224))
    assert orthogonal.method == "Gram, deviation"
    assert 1 <= orthogonal.sigma_max < 1.00002
    dense = nn.Linear(4, 7)
    assert spectrum(dense).method == "SVD"
    assert spectrum(dense, budget=1.0).kind == "upper"
    assert spectrum(nn.Sequential(nn.Conv2d(3, 3, 3), nn.ReLU()), (3, 5, 5)).kind == "estimate"


def test_stable_rank_is_the_ratio_of_squared_norms():
    layer = nn.Linear(3, 3, dtype=D)
    layer.weight.data = torch.diag(torch.tensor([2.0, 1.0, 1.0], dtype=D))
    assert spectrum(layer).stable_rank == pytest.approx(1.5)  # (4 + 1 + 1) / 4, not (2 + 1 + 1) / 2
    assert spectrum(layer, (5, 3)).stable_rank == pytest.approx(7.5)  # five independent copies
    assert spectrum(layer, (5, 3), kind="upper").stable_rank == pytest.approx(7.5, rel=1e-4)


def test_zero_layers():
    layer = fill(nn.Conv1d(2, 2, 3), "zero")
    for kind in ("exact", "upper"):
        found = spectrum(layer, (2, 5), kind=kind)
        assert (found.sigma_max, found.sigma_min, found.stable_rank, found.upper_bound) == (0, 0, 0, 0)


def test_cancelling_taps_keep_their_rounding():
    # on one pixel all taps add up: 1e8 + 1 − 1e8 = 1
    layer = convolution(torch.tensor([[[1e8, 1.0, -1e8]]], dtype=D), padding="same", padding_mode="circular")
    found = spectrum(layer, (1, 1))
    assert abs(found.sigma_max - 1) <= found.rounding
    assert found.upper_bound >= 1


def test_without_a_size_the_bound_holds_at_every_size():
    layer = nn.Conv2d(3, 4, 3, padding=1)
    found = spectrum(layer)
    assert found.kind == "upper"
    assert math.isnan(found.stable_rank)
    assert found.sigma_max == pytest.approx(norm_bound(layer).item())
    with pytest.raises(ParameterError, match="input_shape"):
        spectrum(layer, kind="exact")


def test_parametrized_layers():
    layer = parametrizations.orthogonal(nn.Linear(6, 4))
    found = spectrum(layer)
    assert found.sigma_min == pytest.approx(1, abs=1e-5)
    assert found.sigma_max == pytest.approx(1, abs=1e-5)


def test_stated_geometry_is_used_and_checked():
    for layer, shape in [(WrappedConv(2, 3, 3, 2), (2, 5, 6)), (WrappedConvTranspose(3, 2, 3, 2), (3, 3, 4))]:
        exact = oracle_values(layer, shape)
        assert spectrum(layer, shape).sigma_max == pytest.approx(exact[0].item())
        assert exact[0] <= spectrum(layer, shape, kind="upper").sigma_max

    class Liar(WrappedConv):
        def forward(self, x):
            return 1.05 * super().forward(x)

    with pytest.raises(GeometryError, match="not the convolution"):
        spectrum(Liar(2, 2, 3), (2, 5, 5), kind="upper")


class Doubled(nn.Conv2d):
    def forward(self, x):
        return 2 * super().forward(x)


def test_an_overridden_forward_is_measured():
    layer = Doubled(2, 3, 3, padding=1)
    exact = oracle_values(copy.deepcopy(layer).double(), (2, 4, 4))
    found = spectrum(layer, (2, 4, 4))
    assert (found.kind, found.method) == ("exact", "impulse responses")
    assert found.sigma_max == pytest.approx(exact[0].item(), rel=1e-5)
    assert exact[0] <= found.upper_bound <= exact[0] * (1 + 1e-3)
    assert spectrum(layer, (2, 4, 4), budget=10.0).kind == "estimate"
    with pytest.raises(ParameterError, match="spectral_geometry"):
        spectrum(layer, (2, 4, 4), kind="upper")
    with pytest.raises(ParameterError, match="input_shape"):
        spectrum(layer)


def test_a_large_bias_is_part_of_the_rounding():
    layer = Doubled(1, 1, 1)
    layer.weight.data.fill_(1e-3)
    layer.bias.data.fill_(1e4)
    found = spectrum(layer, (1, 3, 3))
    assert found.upper_bound >= 2e-3
    assert found.rounding > 1e-3  # f(e) − f(0) has lost the weight


def test_linear_only_if_said_and_true():
    fn = nn.Sequential(nn.Conv1d(2, 2, 3), nn.Flatten())
    assert spectrum(fn, (2, 5)).kind == "estimate"
    declared = spectrum(fn, (2, 5), linear=True)
    assert declared.kind == "exact"
    assert declared.sigma_max == pytest.approx(oracle_values(fn.double(), (2, 5))[0].item(), rel=1e-5)
    with pytest.raises(ParameterError, match="not linear"):
        spectrum(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), (3,), linear=True)
    with pytest.raises(ParameterError, match="linear=True"):
        spectrum(fn, (2, 5), kind="exact")

    class Clamped(nn.Linear):
        def forward(self, x):
            return super().forward(x).clamp(-10, 10)

    with pytest.raises(ParameterError, match="not linear"):
        spectrum(Clamped(3, 3), (3,))


def test_non_linear_modules_are_estimated_from_below():
    found = spectrum(lambda x: 3 * torch.sin(x), (2,))
    assert found.kind == "estimate"
    assert 2.9 < found.sigma_max <= 3 + 1e-5
    assert 0 <= found.sigma_min <= found.sigma_max
    assert 1 <= found.stable_rank <= 2 + 1e-5


def test_estimates_bound_nothing():
    with pytest.raises(ParameterError, match="bounds nothing"):
        spectrum(torch.tanh, (2,)).upper_bound  # noqa: B018
    assert Spectrum(0.5, 1.0, 1.0, "upper", "by hand").upper_bound >= 1.0


def test_hooks_are_seen():
    layer = nn.Linear(3, 3)
    layer.register_forward_hook(lambda module, args, out: 10 * out)
    exact = 10 * torch.linalg.matrix_norm(layer.weight, 2).item()
    assert spectrum(layer, (3,)).sigma_max == pytest.approx(exact, rel=1e-4)


def test_records_and_their_shapes():
    conv = geometry_of(nn.Conv2d(3, 4, 3))
    assert spectrum(conv, (3, 5, 5)).kind == "exact"
    assert spectrum(conv, (3, 5, 5), kind="estimate").kind == "estimate"
    with pytest.raises(ShapeError, match="3 channels"):
        spectrum(conv, (4, 5, 5))
    with pytest.raises(ShapeError, match="spatial"):
        spectrum(conv, (3, 5))
    with pytest.raises(ParameterError, match="kind"):
        spectrum(conv, (3, 5, 5), kind="guess")


@pytest.mark.parametrize("kind", [None, "exact", "upper"])
@pytest.mark.parametrize("exponent", [-1030, -700, 700, 1010])
def test_weights_at_the_ends_of_the_range(exponent, kind):
    """Spectra scale with the weight: by a power of two, exactly, until numbers have fewer digits."""
    for layer, shape in (
        (nn.Conv2d(3, 4, 3, padding=1, dtype=torch.float64), (3, 6, 6)),
        (nn.Linear(5, 3, dtype=torch.float64), (5,)),
    ):
        expected = spectrum(layer, shape, kind=kind)
        with torch.no_grad():
            layer.weight.mul_(2.0**exponent)
        found = spectrum(layer, shape, kind=kind)
        step = 2.0**-1074
        digits = 1e-12 if exponent > -1000 else 64 * 2.0**-44  # the weight itself has lost some
        assert found.stable_rank == pytest.approx(expected.stable_rank, rel=digits)
        for side in ("sigma_min", "sigma_max"):
            value = getattr(expected, side) * 2.0**exponent
            assert abs(getattr(found, side) - value) <= digits * expected.sigma_max * 2.0**exponent + step
        assert found.kind == expected.kind and found.rounding <= expected.rounding * 2.0**exponent + step
        assert found.upper_bound > 0
