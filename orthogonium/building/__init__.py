"""Whole networks: equal kernels in one batch, each built once per step."""

from orthogonium.building.once import build_once
from orthogonium.building.together import build_together

__all__ = ["build_once", "build_together"]
