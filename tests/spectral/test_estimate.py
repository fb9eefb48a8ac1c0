"""Estimates are never above the truth, and reach it where theory says so."""

import pytest
import torch
from torch import nn

from orthogonium.errors import ParameterError
from orthogonium.spectral import geometry_of, lanczos, power_iteration, tensor_norm, top_singular_values
from tests.spectral.test_gram import lattice_norm
from tests.spectral.zoo import KERNELS, WrappedConv, fill, oracle_values, random_conv, rng

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
D = torch.float64


@pytest.mark.parametrize("seed", range(4))
def test_never_above_the_exact_values(seed):
    random = rng(seed)
    for _ in range(25):
        layer, size = random_conv(random, bias=True)
        fill(layer, random.choice(list(KERNELS)))
        shape = (layer.in_channels, *size)
        exact = oracle_values(layer, shape)
        slack = 1e-12 * exact[0] + 1e-14
        assert power_iteration(layer, shape, steps=5) <= exact[0] + slack
        ritz = lanczos(layer, shape, steps=6)
        assert ritz[0] <= exact[0] + slack
        assert ritz[-1] >= exact[-1] - slack
        count = min(3, len(exact))
        top = top_singular_values(layer, shape, count, steps=4)
        assert (top <= exact[:count] + slack).all()


def test_converge():
    layer = nn.Conv2d(3, 5, 3, stride=2, padding=1, dtype=D)
    exact = oracle_values(layer, (3, 8, 8))
    torch.testing.assert_close(power_iteration(layer, (3, 8, 8), steps=500), exact[0], rtol=1e-6, atol=0)
    ritz = lanczos(layer, (3, 8, 8), steps=80)
    torch.testing.assert_close(ritz[0], exact[0])
    torch.testing.assert_close(ritz[-1], exact[-1], rtol=1e-6, atol=1e-9)
    top = top_singular_values(layer, (3, 8, 8), 4, steps=2000)
    torch.testing.assert_close(top, exact[:4], rtol=1e-5, atol=0)


def test_lanczos_of_everything_is_the_spectrum():
    for shape in ((6, 4), (4, 6)):
        layer = nn.Linear(*shape, dtype=D)
        torch.testing.assert_close(lanczos(layer, shape[:1], steps=50), torch.linalg.svdvals(layer.weight.detach()))


def test_krylov_spaces_may_close():
    ritz = lanczos(lambda x: 2 * x, (50,), steps=30)
    torch.testing.assert_close(ritz, torch.full_like(ritz, 2.0), rtol=1e-6, atol=0)
    assert lanczos(lambda x: 0 * x, (5,)).max() == 0
    assert power_iteration(lambda x: 0 * x, (5,)) == 0
    assert top_singular_values(lambda x: 0 * x, (5,), 2).max() == 0


def test_float32_modules_and_records():
    layer = nn.Conv2d(2, 3, 3, padding=1)
    exact = oracle_values(nn.Conv2d(2, 3, 3, padding=1, dtype=D).requires_grad_(False), (2, 4, 4))  # other weights
    assert exact.shape == (32,)
    measured = lanczos(layer, (2, 4, 4), steps=32)
    record = lanczos(geometry_of(layer), (2, 4, 4), steps=32)
    torch.testing.assert_close(measured[0], record[0], rtol=1e-5, atol=0)


def test_same_answer_twice_and_no_trace():
    layer = nn.Conv1d(2, 2, 3)
    state = torch.get_rng_state()
    assert torch.equal(lanczos(layer, (2, 9)), lanczos(layer, (2, 9)))
    assert torch.equal(power_iteration(layer, (2, 9), steps=3), power_iteration(layer, (2, 9), steps=3))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in layer.parameters())


@pytest.mark.parametrize(
    "call", [power_iteration, lanczos, lambda f, n, steps: top_singular_values(f, n, 1, steps=steps)]
)
def test_steps_are_counted_and_checked(call):
    layer = nn.Linear(30, 30)
    assert call(layer, (30,), steps=1).max() < call(layer, (30,), steps=20).max()
    with pytest.raises(ParameterError, match="steps"):
        call(layer, (30,), steps=0)


def test_more_values_than_there_are():
    with pytest.raises(ParameterError, match="2 singular values"):
        top_singular_values(nn.Linear(5, 2), (5,), 3)


@pytest.mark.parametrize("kind", ["gaussian", "block diagonal", "rank one", "alternating"])
def test_tensor_norm_is_a_lower_estimate_within_the_root_of_the_taps(kind):
    for _ in range(5):
        weight = fill(nn.Conv2d(4, 4, 3, dtype=D), kind).weight
        layer = nn.Conv2d(4, 4, 3, dtype=D)
        layer.weight = weight
        exact = lattice_norm(weight.detach(), 64)
        assert tensor_norm(layer) <= exact * (1 + 1e-3)
        assert 3 * tensor_norm(layer, restarts=30) >= exact * (1 - 1e-9)


def test_tensor_norm_never_above_circular_layers():
    for seed in range(10):
        torch.manual_seed(seed)
        for k, s, d, groups in [(3, 1, 1, 2), (4, 2, 1, 1), (3, 2, 3, 1), (2, 3, 1, 2)]:
            layer = WrappedConv(4, 4, k, s, d, groups)
            exact = oracle_values(layer, (4, 12, 12))[0] if seed == 0 else None
            found = tensor_norm(layer, per_group=True)
            assert found.shape == (groups,)
            assert exact is None or found.amax() <= exact * (1 + 1e-9)


def test_tensor_norm_needs_complex_vectors():
    # taps I and a quarter turn: real vectors reach √2, complex ones the true √2·√2 at the eigenvector of the turn
    weight = torch.stack([torch.eye(2), torch.tensor([[0.0, -1.0], [1.0, 0.0]])], 2).double()
    layer = nn.Conv1d(2, 2, 2, dtype=D)
    layer.weight = nn.Parameter(weight)
    assert 2**0.5 * tensor_norm(layer) == pytest.approx(2, rel=1e-6)
    assert lattice_norm(weight) == pytest.approx(2, rel=1e-6)


def test_tensor_norm_may_end_in_a_local_maximum():
    """Why it is an estimate: times the root of the taps, a single start can fall below the true norm."""
    below = 0
    for seed in range(40):
        torch.manual_seed(seed)
        layer = fill(nn.Conv2d(4, 4, 3, dtype=D), "block diagonal")
        below += bool(3 * tensor_norm(layer, restarts=1, seed=seed) < lattice_norm(layer.weight.detach(), 64))
    assert below > 0
