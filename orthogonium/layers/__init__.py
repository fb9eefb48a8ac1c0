"""Constrained layers and everything else a 1-Lipschitz network is made of."""
