"""Sound or refused: the two answers a certifier may give."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from orthogonium import certify, lipschitz_bound
from orthogonium.certification import Certificates, RefutedError, TraceError, UnboundedError
from orthogonium.errors import OrthogoniumError
from tests.certification.fuzz.examine import broken
from tests.certification.fuzz.judge import Judge

REFUSALS = (UnboundedError, TraceError)  # a RefutedError is none: a rule was wrong, and chance has found it


def sound_or_refused(
    model: nn.Module,
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float64,
    pairs: Sequence[tuple[Tensor, Tensor]] = (),
    refusals: tuple[type[Exception], ...] = REFUSALS,
) -> float | None:
    """The bound of a model, None if it is refused; fails if a search, or one of the given pairs, refutes it."""
    try:
        bound = lipschitz_bound(model, shape).value
    except refusals:
        return None
    for x, y in pairs:
        with torch.no_grad():
            change = model(x[None].clone()).double() - model(y[None].clone()).double()
        quotient = float(change.norm() / (x.double() - y.double()).norm())
        assert quotient <= bound * (1 + 1e-6), f"bound {bound:.6g}, quotient {quotient:.6g}"
    against = Judge(model, shape, dtype).verdict(bound).against
    assert against is None, f"bound {bound:.9g}: {against}"
    return bound


def certified_or_refused(
    model: nn.Module, *batches: Tensor, sizes: Sequence[int] = (1,), steps: int = 40, **options: object
) -> Certificates | None:
    """Certificates of the model's own predictions, None if it is refused; fails if one of them does not hold.

    Each is attacked at 0.999 of its radius, and no sample may change its class with the size of the batch.
    """
    with torch.no_grad():
        labels = [model(x.clone()).argmax(1) for x in batches]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = certify(model, [(x.clone(), y) for x, y in zip(batches, labels, strict=True)], **options)
    except RefutedError:
        raise
    except OrthogoniumError:
        return None
    x, y = torch.cat(batches), torch.cat(labels)
    assert not found.radii.isnan().any()
    claimed = found.radii > 0
    for size in sizes:
        with torch.no_grad():
            again = torch.cat([model(part.clone()).argmax(1) for part in x.split(size)])
        changed = claimed & (again != y)
        assert not changed.any(), (
            f"{int(changed.sum())} of {int(claimed.sum())} certified inputs change their class in batches of {size}, "
            f"with radii up to {float(found.radii[changed].max()):.3g}"
        )
    if claimed.any():
        radii = found.radii[claimed].clamp_max(1e6)
        against = broken(model, x[claimed], y[claimed], radii, steps=steps)
        assert against is None, against
    return found
