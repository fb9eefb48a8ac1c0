"""Small operators for tests of how layers execute."""

from orthogonium.layers.conv import execution
from orthogonium.layers.parametrization import Constraint


def count_in_turn(monkeypatch, channels=1, pixels=execution.MOST_PIXELS):
    """Allow factors in turn for few channels (and many pixels); returns the list of constraints that have done so."""
    monkeypatch.setattr(execution, "FEWEST_CHANNELS", channels)
    monkeypatch.setattr(execution, "MOST_PIXELS", pixels)
    calls, factors = [], Constraint.factors

    def spy(self, *arguments):
        calls.append(self)
        return factors(self, *arguments)

    monkeypatch.setattr(Constraint, "factors", spy)
    return calls
