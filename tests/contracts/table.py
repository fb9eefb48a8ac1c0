"""The table of constrained layers: one line gives a layer the whole contract suite."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import orthogonium.linalg as linalg
from orthogonium.layers import OrthoLinear, SpectralLinear, UnitNormLinear


@dataclass
class Case:
    cls: type
    arguments: dict
    counterpart: type = nn.Linear
    input: Callable[[nn.Module], Tensor] = lambda layer: torch.randn(3, layer.in_features)

    def make(self, **options):
        return self.cls(**self.arguments, **options)


def _dense(cls, in_features=6, out_features=4, **arguments):
    return Case(cls, {"in_features": in_features, "out_features": out_features, **arguments})


LAYERS = {
    **{
        f"OrthoLinear-{name}": _dense(OrthoLinear, ortho_params=getattr(linalg, f"{name}_ORTHO_PARAMS"))
        for name in ["DEFAULT", "POLAR", "BJORCK", "BJORCK_PASS_THROUGH", "EXP", "CAYLEY", "QR", "CHOLESKY"]
    },
    "OrthoLinear-tall": _dense(OrthoLinear, 4, 6),
    "UnitNormLinear": _dense(UnitNormLinear),
    "SpectralLinear": _dense(SpectralLinear),
}
