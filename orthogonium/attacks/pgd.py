"""Projected gradient descent in l2 balls, in plain torch (Madry et al. 2018), with a radius for each input.

Note [Where the search looks]
The first descent starts at the input and decreases the margin over all other classes, which may waver between them. The
next ones start at random points of the ball and head for one class each, in order of decreasing logit at the input:
they decrease the margin over that class. Steps follow the normalized gradient, so no scale of logits can hide it, half
a radius long at first and ever shorter; where the gradient vanishes they are random. A point counts as soon as it is
passed; after the search it is moved back towards the input by bisection while it stays adversarial.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from orthogonium.attacks.distances import box_of, distances, inner_radii, per_sample
from orthogonium.certification.radii import margins
from orthogonium.errors import ParameterError

_BISECTIONS = 8


def l2_pgd(
    model: Callable[[Tensor], Tensor],
    images: Tensor,  # (n, …)
    labels: Tensor,  # (n,)
    eps: float | Tensor,  # one radius, or (n,)
    *,
    steps: int = 40,
    restarts: int = 4,
    bounds: tuple[float, float] | None = None,
    seed: int = 0,
) -> Tensor:  # (n, …)
    """Find points of another class in l2 balls around inputs; where none is found, the input itself is returned.

    Inputs that are misclassified to begin with are returned unchanged.

    Args:
        model: maps inputs to logits (n, classes), treating samples independently.
        images: the inputs.
        labels: the classes to move away from.
        eps: radius of the balls, one for all or one for each input.
        steps: number of steps of each descent.
        restarts: number of descents: one from the input, the others from random points, each towards one class.
        bounds: smallest and largest value of a pixel; by default points may leave the range of images.
        seed: seed of the random starts.

    >>> from orthogonium.attacks import l2_pgd
    >>> x = torch.tensor([[1.0, 0.0]] * 2)  # at distance 1/√2 from another class
    >>> l2_pgd(torch.nn.Identity(), x, torch.tensor([0, 0]), torch.tensor([0.70, 0.72])).argmax(dim=1)
    tensor([0, 1])
    """
    if steps < 1 or restarts < 1:
        raise ParameterError(
            f"An attack needs at least one step and one start: got steps={steps}, restarts={restarts}."
        )
    images = images.detach()
    low, high = box_of(images, bounds)
    radius = inner_radii(images, per_sample(eps, images))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        logits = model(images)
    standing = ~misclassified(logits, labels)
    others = logits.scatter(1, labels[:, None], -math.inf).argsort(dim=1, descending=True)[:, :-1]
    found = images.clone()
    for restart in range(restarts):
        # Drawn for all inputs, so what is tried at one does not depend on the outcome at others.
        noise = torch.randn(images.shape, generator=generator, dtype=torch.float64).to(images)
        index = standing.nonzero().flatten()
        if not len(index):
            break
        x, y = images[index], labels[index]
        start = x if restart == 0 else _projected(x + noise[index], x, radius[index], low, high)
        target = None if restart == 0 else others[index, (restart - 1) % others.shape[1]]
        fooled, points = _descend(model, x, y, target, radius[index], start, noise[index], steps, (low, high))
        found[index[fooled]] = points[fooled]
        standing[index[fooled]] = False
    return _drawn_back(model, images, labels, found)


def misclassified(
    logits: Tensor,  # (n, classes)
    labels: Tensor,  # (n,)
) -> Tensor:  # (n,)
    """Where another class is preferred to the label, or a logit is NaN, which is neither above nor below another."""
    return (margins(logits, labels) < 0) | logits.isnan().any(dim=1)


def _descend(
    model: Callable[[Tensor], Tensor],
    x: Tensor,
    labels: Tensor,
    target: Tensor | None,
    radius: Tensor,
    point: Tensor,
    noise: Tensor,
    steps: int,
    box: tuple[float, float],
) -> tuple[Tensor, Tensor]:
    """Which inputs were fooled in one descent, and the first point where each was."""
    fooled, found = torch.zeros(len(x), dtype=torch.bool, device=x.device), x.clone()
    for step in range(steps + 1):
        with torch.enable_grad():
            point = point.detach().requires_grad_()
            logits = model(point)
            (slope,) = torch.autograd.grad(_ahead(logits, labels, target).sum(), point)
        success = misclassified(logits.detach(), labels) & ~fooled
        found[success] = point.detach()[success]
        fooled |= success
        if step == steps or fooled.all():
            break
        length = radius * (0.5 * (1 - step / steps) + 0.01)
        point = _projected(point.detach() - length * _direction(slope, noise), x, radius, *box)
    return fooled, found


def _ahead(logits: Tensor, labels: Tensor, target: Tensor | None) -> Tensor:
    """The margin of the label: over all other classes, or over the target."""
    if target is None:
        return margins(logits, labels)
    return (logits.gather(1, labels[:, None]) - logits.gather(1, target[:, None]))[:, 0]


def _norm(x: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(x.flatten(1), dim=1, dtype=torch.float64)  # many equal numbers add up inexactly
    return norm.to(x.dtype).reshape(-1, *[1] * (x.dim() - 1))


def _direction(slope: Tensor, noise: Tensor) -> Tensor:
    """The normalized slope, or noise where it vanishes or is not finite."""
    size = _norm(slope)
    usable = (size > 0) & size.isfinite()
    return torch.where(usable, slope / size, noise / _norm(noise).clamp_min(torch.finfo(noise.dtype).tiny))


def _projected(point: Tensor, x: Tensor, radius: Tensor, low: float, high: float) -> Tensor:
    """Project into the ball around x, then into the box, which moves the point towards x."""
    delta = point - x
    inside = x + delta * (radius / _norm(delta).clamp_min(torch.finfo(x.dtype).tiny)).clamp(max=1)
    return inside if math.isinf(low) and math.isinf(high) else inside.clamp(low, high)


def _drawn_back(model: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor, found: Tensor) -> Tensor:
    """The points, moved towards the inputs by bisection as far as they stay adversarial."""
    moved = (found != images).flatten(1).any(dim=1).nonzero().flatten()
    if not len(moved):
        return found
    x, y, far, near = images[moved], labels[moved], found[moved], images[moved]
    for _ in range(_BISECTIONS):
        middle = (near + far) / 2
        with torch.no_grad():
            adversarial = misclassified(model(middle), y).reshape(-1, *[1] * (x.dim() - 1))
        far, near = torch.where(adversarial, middle, far), torch.where(adversarial, near, middle)
    closer = (distances(far, x) <= distances(found[moved], x)).reshape(-1, *[1] * (x.dim() - 1))
    found[moved] = torch.where(closer, far, found[moved])
    return found
