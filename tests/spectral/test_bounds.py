"""Every certified bound against the SVD of the operator: never below it, and sharp where it claims to be."""

import math

import pytest
import torch
from torch import nn

from orthogonium.errors import ParameterError, ShapeError
from orthogonium.spectral import (
    circular_gram_bound,
    convolution,
    geometry_of,
    gram_bound,
    grid_bound,
    norm_bound,
    unfolding_bound,
)
from orthogonium.spectral.enclosure import enclosure
from tests.spectral.zoo import (
    KERNELS,
    WrappedConv,
    WrappedConvTranspose,
    fill,
    oracle_norms_of_groups,
    oracle_values,
    random_conv,
    rng,
)

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
D = torch.float64
BOUNDS = {
    "norm": norm_bound,
    "norm at any size": lambda layer, size, **options: norm_bound(layer, **options),
    "coarse grid": lambda layer, size, **options: grid_bound(layer, size, rtol=0.5, **options),
    "thinned grid": lambda layer, size, **options: norm_bound(layer, size, budget=10.0, **options),
    "unfoldings": unfolding_bound,
    "Gram 1": lambda layer, size, **options: gram_bound(layer, size, steps=1, **options),
    "Gram 2": lambda layer, size, **options: gram_bound(layer, size, steps=2, **options),
    "circular Gram": lambda layer, size, **options: circular_gram_bound(layer, size, steps=5, **options),
    "Gram on a grid": lambda layer, size, **options: circular_gram_bound(layer, steps=3, rtol=0.2, **options),
}


def assert_sound(layer, size):
    """All bounds of all groups; returns how many layers that were."""
    exact = oracle_norms_of_groups(layer, (layer.in_channels, *size))
    with torch.no_grad():
        for name, bound in BOUNDS.items():
            found = bound(layer, size, per_group=True)
            assert found.dtype == D
            assert (found >= exact).all(), f"{name}: {found.tolist()} < {exact.tolist()} for {layer} on {size}"
    return len(exact)


@pytest.mark.parametrize("dtype", [torch.float32, D])
@pytest.mark.parametrize("seed", range(3))
def test_never_below_the_norm(dtype, seed):
    random = rng(seed)
    kinds = [random.choice(list(KERNELS)) for _ in range(96)]
    # each group is a layer of its own, with its own kernel
    layers = sum(
        assert_sound(*_filled(random_conv(random, groups=random.choice((2, 8)), dtype=dtype), kind)) for kind in kinds
    )
    assert layers >= 350  # six times


def _filled(layer_and_size, kind):
    return fill(layer_and_size[0], kind), layer_and_size[1]


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, D])
def test_never_below_the_norm_of_structured_kernels(kind, dtype):
    for layer, size in [
        (nn.Conv2d(16, 16, 3, padding=1, groups=8, dtype=dtype, bias=False), (5, 4)),
        (nn.Conv2d(16, 16, 3, 2, 1, groups=8, padding_mode="circular", dtype=dtype, bias=False), (7, 6)),
        (nn.Conv1d(8, 8, 5, padding=2, groups=8, padding_mode="circular", dtype=dtype, bias=False), (3,)),
        (WrappedConv(8, 8, 3, 2, groups=4, dtype=dtype), (5, 6)),
    ]:
        assert_sound(fill(layer, kind), size)


@pytest.mark.parametrize(("k", "s", "d"), [(3, 2, 1), (5, 2, 1), (2, 3, 1), (3, 2, 3), (4, 4, 2), (5, 3, 2), (1, 2, 1)])
def test_never_below_the_norm_of_layers_that_torch_does_not_have(k, s, d):
    for n in (1, 2, 3, 6):
        assert_sound(WrappedConv(4, 8, k, s, d, groups=4), (n, n + 1))
        if n < 4:
            assert_sound(WrappedConvTranspose(8, 4, k, s, d, groups=4), (n, n + 1))


@pytest.mark.parametrize("n", range(3, 12))
def test_a_frequency_that_the_circle_misses(n):
    # [1, −1] has norm 2 at the Nyquist frequency, which only even circles have
    weight = torch.tensor([[[1.0, -1.0]]], dtype=D)
    exact = 2 if n % 2 == 0 else 2 * math.cos(math.pi / (2 * n))
    on_circle = convolution(weight, padding="same", padding_mode="circular")
    assert exact <= norm_bound(on_circle, (n,)) <= exact * 1.01
    assert exact <= circular_gram_bound(on_circle, (n,), rtol=0.0) <= exact * 1.001
    for bound in (norm_bound, gram_bound, grid_bound, unfolding_bound, circular_gram_bound):
        assert bound(on_circle) >= 2


def test_bounds_hold_at_every_size():
    for mode in ("zeros", "circular", "reflect", "replicate"):
        layer = nn.Conv1d(2, 2, 4, 2, 3, padding_mode=mode, dtype=D)
        every = [bound(layer) for bound in (norm_bound, gram_bound, grid_bound, unfolding_bound, circular_gram_bound)]
        for n in range(4, 24):
            assert min(every) >= oracle_values(layer, (2, n))[0]


@pytest.mark.parametrize("bound", [norm_bound, grid_bound])
@pytest.mark.parametrize(("k", "s", "d", "groups"), [(3, 1, 1, 1), (3, 2, 1, 1), (4, 2, 3, 2), (5, 1, 2, 2)])
def test_sharp_on_circles(bound, k, s, d, groups):
    layer = WrappedConv(4, 6, k, s, d, groups)
    exact = oracle_values(layer, (4, 12, 12))[0]
    assert exact <= bound(layer, (12, 12)) <= exact * 1.01


def test_rtol_is_kept():
    conv = convolution(torch.randn(3, 3, 3, dtype=D), padding=1, padding_mode="circular")
    lattice = torch.linalg.matrix_norm(torch.fft.fft(conv.weight, 4096).movedim(2, 0), 2).amax()
    for rtol in (0.3, 0.1, 0.01, 0.001):
        assert lattice <= grid_bound(conv, rtol=rtol) <= lattice * (1 + rtol) * (1 + 2e-6)


def test_large_images_with_zero_padding_come_near_the_bound():
    layer = nn.Conv1d(3, 3, 3, padding=1, dtype=D)
    exact = oracle_values(layer, (3, 200))[0]
    assert exact <= norm_bound(layer) <= exact * 1.012


@pytest.mark.parametrize("bound", [norm_bound, gram_bound, grid_bound, unfolding_bound, circular_gram_bound])
def test_one_orthogonal_tap(bound):
    layer = fill(nn.Conv2d(32, 32, 3, padding=1, dtype=D, bias=False), "orthogonal")
    excess = {unfolding_bound: 3, circular_gram_bound: 32 ** (1 / 128) * 1.01}.get(bound, 1.01)
    assert 1 - 1e-13 <= bound(layer, (6, 6)) <= excess * (1 + 1e-5)


def test_bounds_do_not_depend_on_the_image_for_zero_padding():
    layer = nn.Conv2d(4, 4, 3, padding=1)
    values = {norm_bound(layer, (n, n)).item() for n in (100, 1000, 10**6)}
    assert len(values) == 1


@pytest.mark.parametrize("scale", [0.0, 1e-200, 1e200, 5e-324])
def test_extreme_scales(scale):
    weight = torch.ones(2, 2, 3, dtype=D) * scale
    exact = 6 * scale
    for bound in (norm_bound, gram_bound, grid_bound, unfolding_bound, circular_gram_bound):
        found = bound(convolution(weight, padding=1)).item()
        assert exact <= found <= 12 * exact * 1.01


def test_half_precision_weights():
    layer = nn.Conv2d(4, 4, 3, padding=1, bias=False).bfloat16()
    assert_sound(layer.float(), (4, 4))
    torch.testing.assert_close(norm_bound(layer.bfloat16()), norm_bound(layer.float()))


@pytest.mark.parametrize("name", BOUNDS)
def test_differentiable(name):
    for geometry in ({"padding": 1}, {"stride": 2, "padding": 1, "padding_mode": "circular"}, {"groups": 2}):
        weight = torch.randn(2, 2, 3, 2, dtype=D, requires_grad=True)

        def bound(w, geometry=geometry):
            return BOUNDS[name](convolution(w, **geometry), (4, 5))

        assert torch.autograd.gradcheck(bound, (weight,), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", BOUNDS)
def test_gradient_at_zero_and_in_float32(name):
    zero = torch.zeros(2, 2, 3, requires_grad=True)
    BOUNDS[name](convolution(zero), (5,)).backward()
    assert torch.equal(zero.grad, torch.zeros_like(zero))
    layer = nn.Linear(3, 4)
    BOUNDS[name](layer, ()).backward()
    assert layer.weight.grad.dtype == torch.float32
    expected = torch.randn(4, 3)
    expected.copy_(layer.weight.detach()).requires_grad_()
    if name != "Gram 1":
        torch.linalg.matrix_norm(expected, 2).backward()
        assert torch.nn.functional.cosine_similarity(layer.weight.grad.flatten(), expected.grad.flatten(), 0) > 0.9


def test_smallest_singular_value_from_below():
    for k, s in [(1, 1), (3, 1), (2, 2), (5, 1)]:
        layer = fill(WrappedConv(8, 4, k, s), "orthogonal")
        if s == 2:
            layer.weight.data = nn.init.orthogonal_(torch.empty(4, 32, dtype=D)).reshape(4, 8, 2, 2)
        layer.weight.data += 1e-3 * torch.randn_like(layer.weight)
        exact = oracle_values(layer, (8, 4, 4))[-1]
        lower = enclosure(geometry_of(layer), (4, 4)).lower.amin()
        assert 0.5 < lower <= exact
    for seed in range(20):
        layer, size = random_conv(rng(seed))
        lower = enclosure(geometry_of(layer), size).lower.amin()
        assert lower <= oracle_values(layer, (layer.in_channels, *size))[-1] + 1e-14


def test_unknown_geometry_has_no_bound():
    class Doubled(nn.Conv2d):
        def forward(self, x):
            return 2 * super().forward(x)

    for bound in (norm_bound, gram_bound, grid_bound, unfolding_bound, circular_gram_bound):
        with pytest.raises(ParameterError, match="spectral_geometry"):
            bound(Doubled(1, 1, 3))
    with pytest.raises(ParameterError, match="step"):
        gram_bound(nn.Linear(2, 2), steps=0)
    with pytest.raises(ShapeError, match="spatial sizes"):
        norm_bound(nn.Conv2d(1, 1, 3), (4,))
