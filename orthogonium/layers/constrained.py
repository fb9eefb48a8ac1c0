"""What all constrained layers have in common beside their weight: a stated guarantee, copying and pickling.

Note [Copies of parametrized modules]
torch gives each parametrized module a class of its own that holds the `weight` property, forbids pickling it, and lets
a deep copy share that class, so that removing the parametrization of a copy breaks the original. Here a copy (or an
unpickled module) starts from the class as written and gets a fresh class of its own.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from orthogonium.methods.constraint import Constraint


@dataclass(frozen=True)
class Guarantee:
    """What a layer promises about the linear map (or the function) it applies.

    `orthogonal`: all singular values are 1, i.e. the map is an isometry or the adjoint of one.
    `lipschitz`: no two inputs are moved apart by more than a factor of 1.
    """

    kind: Literal["orthogonal", "lipschitz"]
    condition: str = "always"

    def __str__(self) -> str:
        meaning = {"orthogonal": "all singular values 1", "lipschitz": "1-Lipschitz"}[self.kind]
        return f"{meaning}, {self.condition}"


def _restore(cls: type[nn.Module], state: dict[str, Any]) -> nn.Module:
    module = cls.__new__(cls)
    nn.Module.__setstate__(module, state)
    if "parametrizations" in module._modules:
        parametrize._inject_new_class(module)
        for name in module.parametrizations:  # type: ignore[union-attr]
            parametrize._inject_property(module, name)
    return module


class Constrained(nn.Module):
    """Mixin of every constrained layer. Note [Copies of parametrized modules]."""

    @property
    def guarantee(self) -> Guarantee:
        """The property this layer keeps whatever its parameters are."""
        raise NotImplementedError

    def weight_source(self) -> tuple[Constraint, tuple[Tensor, ...]] | None:
        """The constraint and the raw parameters that the weight is built of, if by nothing else.

        `constraint(*raw)` is `weight`, for half the cost of the property where the constraint only looks at its cache.
        There is no such pair after `remove_parametrizations`, beside a second parametrization or hooks on the first, or in
        `parametrize.cached()`.
        """
        chains = self._modules.get("parametrizations")
        if chains is None or parametrize._cache_enabled:
            return None
        chain: Any = chains._modules.get("weight")
        if chain is None or len(chain._modules) != 1 or not isinstance(chain._modules["0"], Constraint):
            return None
        constraint = chain._modules["0"]
        if constraint._forward_hooks or constraint._forward_pre_hooks:
            return None
        return constraint, tuple(chain._parameters.values())

    def reset_parameters(self) -> None:
        """Draw new raw parameters, zero the bias: what `to_empty` and initializers of models call."""
        bias: Any = getattr(self, "bias", None)
        with torch.no_grad():
            if isinstance(bias, torch.Tensor):
                bias.zero_()
            if parametrize.is_parametrized(self, "weight"):
                chain: Any = self.parametrizations.weight  # type: ignore[union-attr]
                raw = list(chain.parameters(recurse=False))
                fresh = chain[0].initial(raw[0].device, raw[0].dtype)
                for parameter, value in zip(raw, fresh if isinstance(fresh, tuple) else (fresh,), strict=True):
                    parameter.copy_(value)

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return _restore, (parametrize.type_before_parametrizations(self), self.__dict__.copy())

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        copy = _restore(
            parametrize.type_before_parametrizations(self),
            {k: deepcopy(v, memo) for k, v in self.__dict__.items()},
        )
        memo[id(self)] = copy
        return copy
