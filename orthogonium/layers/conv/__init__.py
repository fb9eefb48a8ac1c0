"""Constrained convolutions."""
