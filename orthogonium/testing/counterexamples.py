"""A search for inputs of another class, for tests."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from orthogonium.attacks import l2_pgd
from orthogonium.attacks.pgd import misclassified


def find_counterexample(
    model: Callable[[Tensor], Tensor] | nn.Module,
    x: Tensor,
    radius: Tensor,
    labels: Tensor | None = None,
    *,
    steps: int = 40,
    restarts: int = 3,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Search the l2 balls around inputs for another class, by `orthogonium.attacks.l2_pgd`.

    Args:
        model: maps inputs to logits (n, classes), treating samples independently.
        x: inputs (n, …).
        radius: radius of the ball around each input, (n,).
        labels: the classes to move away from; the predictions by default.
        steps: number of steps of each descent.
        restarts: number of descents, the first from the input itself, the others from random points.
        seed: seed of the random points.

    Returns:
        Which inputs were fooled, (n,), and the points found, (n, …), never outside the balls.

    >>> from orthogonium.testing import find_counterexample
    >>> fooled, _ = find_counterexample(torch.nn.Identity(), torch.tensor([[1.0, 0.0]] * 2), torch.tensor([0.7, 0.8]))
    >>> fooled  # the distance is 1/√2
    tensor([False,  True])
    """
    with torch.no_grad():
        labels = model(x).argmax(dim=1) if labels is None else labels
    found = l2_pgd(model, x, labels, radius, steps=steps, restarts=restarts, seed=seed)
    with torch.no_grad():
        return misclassified(model(found), labels), found
