"""Recipes: what to train and how, as a value. Public names are in `orthogonium.training`."""
