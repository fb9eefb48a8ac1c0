"""Independent judges of maps: Jacobians by automatic differentiation, searched worst cases; no algebra of ours."""

import warnings

import torch


def jacobian(fn, x):
    """Matrix of the derivative of `fn` at `x`."""
    derivative = torch.autograd.functional.jacobian(fn, x)
    return derivative.reshape(-1, x.numel())


def assert_same_in_both_directions(fn, *inputs):
    """That forward derivatives of `fn` are the adjoint of backward ones, as exactly as float64 has them."""
    tangents = tuple(torch.randn_like(x) for x in inputs)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", DeprecationWarning)  # torch's own
        y, forward = torch.func.jvp(fn, inputs, tangents)
    upstream = torch.randn_like(y)
    backward = torch.func.vjp(fn, *inputs)[1](upstream)
    expected = sum((t * g).sum() for t, g in zip(tangents, backward, strict=True))
    size = forward.norm() * upstream.norm() + sum(t.norm() * g.norm() for t, g in zip(tangents, backward, strict=True))
    assert ((forward * upstream).sum() - expected).abs() <= 1e-12 * size


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


# ── of every sample of a batch ──


def jacobians(function, x):  # (batch, *shape) → (batch, outputs, inputs)
    """The Jacobian at each input of a batch whose samples do not interact."""
    x = x.detach().requires_grad_()
    y = function(x).flatten(1)
    basis = torch.eye(y.shape[1], dtype=y.dtype)[:, None].expand(-1, len(x), -1)
    (rows,) = torch.autograd.grad(y, x, basis, is_grads_batched=True)
    return rows.flatten(2).transpose(0, 1).double()


def jacobian_norm(function, x):
    return torch.linalg.matrix_norm(jacobians(function, x), ord=2).max().item()


def ascend(function, x, steps=20, rate=0.2):
    """Inputs moved up the slope of secants `‖f(x) − f(y)‖ / ‖x − y‖`, with the points between them.

    The Jacobian of a piecewise linear function does not change with its input except by jumps, so that its norm has
    no gradient to follow; along the steepest secant some Jacobian is at least as large as its slope.
    """
    x = x.detach().clone().requires_grad_()
    y = (x.detach() + torch.randn_like(x)).requires_grad_()
    optimizer = torch.optim.Adam([x, y], lr=rate)
    for _ in range(steps):
        slope = (function(x) - function(y)).flatten(1).norm(dim=1) / (x - y).flatten(1).norm(dim=1)
        x.grad, y.grad = torch.autograd.grad(-slope.sum(), [x, y])
        optimizer.step()
    with torch.no_grad():
        return torch.cat([x + t * (y - x) for t in (0.0, 0.5, 1.0)])


def train(layer, x, steps=10, rate=0.1):
    """Fit random targets with large steps."""
    target = torch.randn_like(layer(x).detach())
    optimizer = torch.optim.Adam(layer.parameters(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        (layer(x) - target).square().mean().backward()
        optimizer.step()


def largest_norm(layer, x):
    """Of Jacobians at random and at optimized inputs, before and after ten optimizer steps."""
    found = []
    for trained in (False, True):
        if trained:
            train(layer, x)
        layer.eval().requires_grad_(False)  # kernels are built once
        found += [jacobian_norm(layer, x), jacobian_norm(layer, ascend(layer, x))]
        layer.train().requires_grad_(True)
    return max(found)
