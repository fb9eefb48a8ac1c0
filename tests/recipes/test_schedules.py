import math

import pytest

from orthogonium.errors import ParameterError
from orthogonium.recipes.schedules import RADIUS_SCHEDULES, radius_factor, schedule_factor
from orthogonium.training import SCHEDULES

GRID = [i / 200 for i in range(201)]


@pytest.mark.parametrize("name", SCHEDULES)
def test_rises_to_the_peak_and_falls_to_its_end(name):
    values = [schedule_factor(name, 0.25, p) for p in GRID]
    assert values[50] == max(values) == 1.0
    assert values[:51] == sorted(values[:51]) and values[50:] == sorted(values[50:], reverse=True)
    assert values[-1] == pytest.approx(1.0 if name == "constant" else 0.0, abs=1e-12)
    assert values[0] == pytest.approx(1 / 25 if name == "one-cycle" else 0.0)


def test_values():
    assert schedule_factor("linear", 0.0, 0.25) == 0.75
    assert schedule_factor("cosine", 0.0, 1 / 3) == pytest.approx((1 + math.cos(math.pi / 3)) / 2)
    assert schedule_factor("constant", 0.5, 0.25) == 0.5
    assert schedule_factor("cosine", 0.0, 2.0) == pytest.approx(0.0)  # past the end of a time limit


@pytest.mark.parametrize("name", RADIUS_SCHEDULES)
def test_radii_grow_and_stay(name):
    values = [radius_factor(name, 0.4, p) for p in GRID]
    assert values == sorted(values) and values[80:] == [1.0] * 121 and min(values) > 0
    assert values[0] == pytest.approx(1.0 if name == "constant" else 0.01)
    assert radius_factor("cosine", 0.4, 0.1) == pytest.approx(0.01 + 0.99 * (1 - math.cos(math.pi / 4)) / 2)
    assert radius_factor("linear", 0.4, 0.1) == pytest.approx(0.01 + 0.99 / 4)
    assert radius_factor(name, 1.0, 3.0) == 1.0


def test_unknown_names_are_refused():
    with pytest.raises(ParameterError, match="one of constant, linear, cosine"):
        radius_factor("log", 0.5, 0.5)
    with pytest.raises(ParameterError, match="radius_warmup=0"):
        radius_factor("linear", 0, 0.5)
    with pytest.raises(ParameterError, match="one of constant"):
        schedule_factor("exponential", 0.0, 0.5)
