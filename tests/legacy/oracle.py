"""Independent judges, which see only a callable: operators from impulse responses, Jacobians, secants by ascent."""

import torch


def operator(function, shape, dtype):
    """Matrix (outputs × inputs) of an affine map, column by column from unit impulses; `shape` without the batch."""
    impulses = torch.eye(torch.Size(shape).numel(), dtype=dtype).view(-1, *shape)
    with torch.no_grad():
        return (function(impulses) - function(torch.zeros_like(impulses))).flatten(1).T


def singular_values(function, shape, dtype):
    return torch.linalg.svdvals(operator(function, shape, dtype).double())


def jacobian_norm(function, x):
    """Largest spectral norm of the Jacobians at each input of a batch."""
    norms = []
    for point in x:
        jacobian = torch.autograd.functional.jacobian(lambda z: function(z[None])[0], point)
        norms.append(torch.linalg.matrix_norm(jacobian.reshape(-1, point.numel()).double(), ord=2))
    return torch.stack(norms).max().item()


def steepest_secant(function, shape, dtype, steps=60):
    """Largest ‖f(x) − f(y)‖ / ‖x − y‖ that gradient ascent over pairs finds."""
    x, y = (torch.randn(8, *shape, dtype=dtype).requires_grad_() for _ in range(2))
    ascent = torch.optim.Adam([x, y], lr=0.1)
    best = 0.0
    for _ in range(steps):
        slope = (function(x) - function(y)).flatten(1).norm(dim=1) / (x - y).flatten(1).norm(dim=1)
        best = max(best, slope.max().item())
        gradients = torch.autograd.grad(-slope.sum(), [x, y])
        x.grad, y.grad = gradients
        ascent.step()
    return best


def train(layer, shape, steps=10, lr=1e-2):
    """Fit a random target; the losses of every step."""
    dtype = next(layer.parameters()).dtype
    layer.train()
    x = torch.randn(8, *shape, dtype=dtype)
    target = 0.5 * torch.randn_like(layer(x).detach())
    optimizer = torch.optim.Adam(layer.parameters(), lr=lr)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (layer(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
