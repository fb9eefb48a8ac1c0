"""What a walk reports."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torch.nn.utils import parametrize


@dataclass(frozen=True)
class Step:
    """One operation of the model that may change distances."""

    place: str
    operation: str
    factor: float  # Lipschitz constant of the operation
    kind: str
    bound: float  # of its output, with respect to the input of the network
    sigma_min: float | None = None
    sigma_max: float | None = None
    stable_rank: float | None = None
    slack: float = 0.0  # relative, of the factor
    guarantee: str | None = None
    method: str = ""
    warnings: tuple[str, ...] = ()


def type_name(module: nn.Module) -> str:
    """Class of a module as written by its author."""
    return parametrize.type_before_parametrizations(module).__name__
