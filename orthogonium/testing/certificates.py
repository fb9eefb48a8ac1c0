"""Whether a certificate survives an attack."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from orthogonium.attacks.distances import finite_radii
from orthogonium.errors import ShapeError
from orthogonium.testing.attack import find_counterexample


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
    """Fail if an attack inside the certified balls changes a class.

    A failure is certain; a pass is evidence that grows with `steps` and `restarts`.

    Args:
        model: from inputs to logits (n, classes).
        x: inputs (n, …).
        radius: certified radii (n,), or one for all; inputs with a radius ≤ 0 claim nothing and are left out.
        labels: classes the certificates are about; the predictions by default.
        fraction: of the radius that is attacked, so that rounding of the attack itself does not matter.
        steps: of the attack.
        restarts: of the attack.
        seed: of its random starts.

    >>> from orthogonium.testing import assert_certificate
    >>> assert_certificate(torch.nn.Identity(), torch.tensor([[1.0, 0.0]]), 0.5**0.5)
    """
    radii = torch.as_tensor(radius, dtype=torch.float64).expand(len(x)) if not isinstance(radius, Tensor) else radius
    if radii.shape != x.shape[:1]:
        raise ShapeError(f"One radius per input is needed: got {tuple(radii.shape)} for {len(x)} inputs.")
    claimed = radii > 0
    index = claimed.nonzero().flatten().to(x.device)
    if not len(index):
        return
    attacked = x[index]
    around = finite_radii(attacked, fraction * radii[claimed].to(x.device))
    left = None if labels is None else labels[index.to(labels.device)].to(x.device)
    fooled, found = find_counterexample(model, attacked, around, left, steps=steps, restarts=restarts, seed=seed)
    if fooled.any():
        first = int(fooled.nonzero()[0])
        distance = float((found[first] - attacked[first]).double().norm())
        raise AssertionError(
            f"{int(fooled.sum())} of {len(index)} certificates are broken: input {int(index[first])} changes its class at "
            f"distance {distance:.6g}, certified was {float(radii[claimed][first]):.6g}."
        )
