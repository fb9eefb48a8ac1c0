"""Certificates of robustness."""

from orthogonium.certification.radii import VRA, certified_radii, input_scaling, margins

__all__ = ["VRA", "certified_radii", "input_scaling", "margins"]
