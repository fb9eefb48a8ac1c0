"""Fixtures of all tests of whole networks."""

from tests.building.network import inputs, model

__all__ = ["inputs", "model"]
