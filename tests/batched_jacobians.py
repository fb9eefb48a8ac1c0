"""Judges of nonlinear layers: Jacobians by automatic differentiation, and inputs where they are as large as can be found."""

import torch


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
