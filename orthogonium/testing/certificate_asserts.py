"""Whether a certificate survives an attack."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from orthogonium.attacks.distances import finite_radii
from orthogonium.errors import ShapeError
from orthogonium.testing.counterexamples import find_counterexample

_BATCH_SIZES = (7, 1)
_CALLS = 64  # calls of the model, for each of them


@torch.no_grad()
def _classes(
    model: Callable[[Tensor], Tensor] | nn.Module,
    x: Tensor,  # (n, …)
    size: int,
) -> Tensor:  # (n,)
    """Predictions in batches of a size; −1 where a logit is NaN or +∞."""
    logits = torch.cat([model(part.clone()) for part in x.split(size)])  # models may write into it
    return torch.where((logits < math.inf).all(dim=1), logits.argmax(dim=1), -1)


def assert_certificate(
    model: Callable[[Tensor], Tensor] | nn.Module,
    x: Tensor,
    radius: Tensor | float,
    labels: Tensor | None = None,
    *,
    fraction: float = 0.999,
    steps: int = 40,
    restarts: int = 3,
    seed: int = 0,
) -> None:
    """Fail if an attack inside the certified balls changes a class, or if a change of batch size alone does.

    A radius > 0 also claims that the input is of the certified class to begin with, with finite logits; a NaN radius
    fails. An infinite one is attacked up to 1000 times the size of the input away. A failure is certain; a pass is
    evidence that grows with `steps` and `restarts`.

    Args:
        model: maps inputs to logits (n, classes).
        x: inputs (n, …).
        radius: certified radii (n,), or one for all; inputs with a radius ≤ 0 claim nothing and are left out.
        labels: the certified classes; the predictions by default.
        fraction: fraction of the radius to attack, so that rounding in the attack itself does not matter.
        steps: number of steps of each descent; more steps find more.
        restarts: number of descents, all but the first from random points.
        seed: seed of these points.

    >>> from orthogonium.testing import assert_certificate
    >>> assert_certificate(torch.nn.Identity(), torch.tensor([[1.0, 0.0]]), 0.5**0.5)
    """
    radii = torch.as_tensor(radius, dtype=torch.float64).expand(len(x)) if not isinstance(radius, Tensor) else radius
    if radii.shape != x.shape[:1]:
        raise ShapeError(f"One radius per input is needed: got {tuple(radii.shape)} for {len(x)} inputs.")
    if radii.isnan().any():
        raise AssertionError(
            f"{int(radii.isnan().sum())} of {len(x)} radii are NaN: the first is that of input "
            f"{int(radii.isnan().nonzero()[0])}."
        )
    claimed = radii > 0
    index = claimed.nonzero().flatten().to(x.device)
    if not len(index):
        return
    labels = _classes(model, x, len(x)) if labels is None else labels.to(x.device)
    for size in (len(x), *_BATCH_SIZES):
        some = index[: _CALLS * size]
        # The certified batch is run as it was, whatever it claims.
        found = _classes(model, x, size)[some] if size == len(x) else _classes(model, x[some], size)
        unlike = ((found != labels[some]) | (found < 0)).nonzero().flatten()
        if len(unlike):
            first = int(some[unlike[0]])
            raise AssertionError(
                f"{len(unlike)} of {len(some)} certificates are broken without any perturbation: input {first} is not "
                f"of its class {int(labels[first])} in batches of {size}, certified was {float(radii[first]):.6g}."
            )
    attacked = x[index]
    around = finite_radii(attacked, fraction * radii[claimed].to(x.device))
    fooled, found = find_counterexample(
        model, attacked, around, labels[index], steps=steps, restarts=restarts, seed=seed
    )
    if fooled.any():
        first = int(fooled.nonzero()[0])
        distance = float((found[first] - attacked[first]).double().norm())
        raise AssertionError(
            f"{int(fooled.sum())} of {len(index)} certificates are broken: input {int(index[first])} changes its class "
            f"at distance {distance:.6g}, certified was {float(radii[claimed][first]):.6g}."
        )
