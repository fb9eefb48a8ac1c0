import pytest
import torch
from torch import nn

from orthogonium.errors import ParameterError
from orthogonium.spectral import jacobian, jacobian_singular_values, steepest_point


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_jacobians_are_those_of_torch(dtype):
    fn = nn.Sequential(nn.Conv1d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(9, 4)).to(dtype)
    x = torch.randn(3, 2, 5, dtype=dtype)
    expected = torch.stack(
        [torch.autograd.functional.jacobian(lambda v: fn(v[None])[0], sample).reshape(4, 10) for sample in x]
    )
    torch.testing.assert_close(jacobian(fn, x), expected)
    torch.testing.assert_close(jacobian_singular_values(fn, x), torch.linalg.svdvals(expected.double()))


def test_large_jacobians_are_computed_in_pieces():
    x = torch.randn(1, 2100, dtype=torch.float64)
    batches = []

    def fn(x):
        batches.append(len(x))
        return torch.sin(x)

    torch.testing.assert_close(jacobian(fn, x)[0], torch.diag(torch.cos(x[0])))
    assert len(batches) > 2 and max(batches) < 2100


def test_ascent_finds_the_steepest_point_of_a_smooth_function():
    # |d/dx sin(x)·2| ≤ 2, attained at multiples of π only
    steepness, where = steepest_point(lambda x: 2 * torch.sin(x), torch.full((4, 1), 1.2, dtype=torch.float64))
    assert steepness.max() == pytest.approx(2, abs=1e-6)
    assert (torch.sin(where[steepness.argmax()]).abs() < 1e-3).all()


def test_ascent_crosses_the_pieces_of_a_piecewise_linear_function():
    # slope 3 only for x > 1, starting where the slope is 1
    steepness, _ = steepest_point(lambda x: x + 2 * torch.relu(x - 1), torch.zeros(8, 1), step_size=0.5)
    assert steepness.max() == pytest.approx(3)


@pytest.mark.parametrize("seed", range(3))
def test_never_above_the_largest_jacobian_where_it_stands(seed):
    torch.manual_seed(seed)
    fn = nn.Sequential(nn.Linear(5, 16), nn.SiLU(), nn.Linear(16, 3)).double()
    steepness, where = steepest_point(fn, torch.randn(6, 5, dtype=torch.float64), steps=20)
    exact = jacobian_singular_values(fn, where)[:, 0]
    assert (steepness <= exact * (1 + 1e-12)).all()
    assert (steepness >= 0.9 * exact).all()


def test_ascent_does_not_touch_the_callers_point_or_seed():
    x = torch.randn(2, 3)
    before, state = x.clone(), torch.get_rng_state()
    steepest_point(torch.sin, x, steps=3)
    assert torch.equal(x, before)
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(ParameterError, match="positive"):
        steepest_point(torch.sin, x, steps=0)
