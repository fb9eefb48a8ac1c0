"""Leaves a model the same after an examination as before."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from orthogonium.layers.parametrization import Constraint


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Restore parameters, buffers, attributes and the random generator afterwards.

    Meanwhile parameters require no gradient and constraints are in eval mode, so constrained weights are built once.
    """
    modules = list(model.modules())
    tensors = [*model.parameters(), *model.buffers()]
    contents = [(t, t.data, t.detach().clone()) for t in tensors]
    asking = [p for p in model.parameters() if p.requires_grad]
    constraints = [m for m in modules if isinstance(m, Constraint)]
    training = [m for m in constraints if m.training]
    kept = [m for m in modules if not isinstance(m, Constraint)]
    attributes = [(m, _shallow(m.__dict__)) for m in kept]
    try:
        for p in asking:
            p.requires_grad_(False)
        for constraint in training:
            constraint.training = False
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            yield
    finally:
        for m, state in attributes:
            m.__dict__.clear()
            m.__dict__.update(state)
        for constraint in training:
            constraint.training = True
        with torch.no_grad():
            for t, own, content in contents:
                if t.data_ptr() != own.data_ptr():
                    t.data = own
                if not _same(t, content):
                    t.copy_(content)
        for p in asking:
            p.requires_grad_(True)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())


def _shallow(state: dict[str, Any]) -> dict[str, Any]:
    """Attributes of a module, its containers (dicts, lists) as they are now."""
    return {k: copy.copy(v) if type(v) in (dict, list, set) else v for k, v in state.items()}
