"""Independent judges of maps: Jacobians by automatic differentiation, searched worst cases; no algebra of ours."""

import torch


def jacobian(fn, x):
    """Matrix of the derivative of `fn` at `x`."""
    derivative = torch.autograd.functional.jacobian(fn, x)
    return derivative.reshape(-1, x.numel())


def singular_values(fn, x):
    """Singular values of the derivative at `x`, measured in float64."""
    return torch.linalg.svdvals(jacobian(fn, x).double())


def largest_jump(fn, x, y, steps=2000):
    """Largest ratio of moved to travelled distance between neighbours on the segment from `x` to `y`, batches of one.

    A map with a jump of size d gives about d · steps / ‖y − x‖, whatever its Jacobians.
    """
    t = torch.linspace(0, 1, steps + 1, dtype=x.dtype).reshape(-1, *[1] * (x.dim() - 1))
    points = x + t * (y - x)
    with torch.no_grad():
        values = fn(points)
    moved, travelled = ((p[1:] - p[:-1]).flatten(1).norm(dim=1) for p in (values, points))
    return (moved / travelled).max().item()


def worst_ratio(fn, x, y, steps=60, lr=0.1):
    """Ratio ‖fn(x) − fn(y)‖ / ‖x − y‖ after gradient ascent on both points: a lower bound of the Lipschitz constant."""
    best = 0.0
    for _ in range(steps):
        x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
        ratio = (fn(x) - fn(y)).norm() / (x - y).norm()
        best = max(best, ratio.item())
        slopes = torch.autograd.grad(ratio, (x, y))
        x, y = (p + lr * g / (g.norm() + 1e-9) for p, g in zip((x, y), slopes, strict=True))
    return best
