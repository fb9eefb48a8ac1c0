import math

import pytest

from orthogonium.errors import ParameterError
from orthogonium.recipes.schedules import schedule_factor
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


def test_unknown_names_are_refused():
    with pytest.raises(ParameterError, match="one of constant"):
        schedule_factor("exponential", 0.0, 0.5)
