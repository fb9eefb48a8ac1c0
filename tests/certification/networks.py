"""Models for the tests, and a lower bound of their constant that knows nothing of the rules."""

import torch
from torch import nn


class Fn(nn.Module):
    """A function as a module."""

    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, x):
        return self.fn(x)


def steepest(model, shape, points=24, rounds=12, scales=(0.05, 1.0, 5.0)):
    """Largest norm of a Jacobian found by SVD at random points and by a random walk from the best of them."""
    generator = torch.Generator().manual_seed(1)

    def norm(x):
        jacobian = torch.func.jacrev(lambda z: model(z[None])[0].flatten())(x).flatten(1)
        return torch.linalg.matrix_norm(jacobian.double(), ord=2).item()

    best, where = 0.0, None
    for i in range(points):
        x = scales[i % len(scales)] * torch.randn(*shape, generator=generator, dtype=torch.float64)
        value = norm(x)
        best, where = (value, x) if value > best or where is None else (best, where)
    for i in range(rounds):
        x = where + 0.3 * 0.8**i * torch.randn(*shape, generator=generator, dtype=torch.float64)
        value = norm(x)
        best, where = (value, x) if value > best else (best, where)
    return best
