"""Import paths of 0.0.4 that lie deeper than ours, served from one table: no second implementation, no file for each.

Note [Published paths]
The paths that the paper and the documentation name (`orthogonium.layers.conv.AOC`, `orthogonium.reparametrizers`, …)
are files, which type checkers see. Below them, 0.0.4 had one more level, where things were defined. The paths in the
table are found by `Finder`, which `orthogonium` puts at the end of `sys.meta_path`: it makes a module from the names in
the table. For Python to look for anything below a file, the file needs a `__path__`, which is empty.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_AOC = "orthogonium.layers.conv.AOC"
_AOL = "orthogonium.layers.conv.AOL"
_SLL = "orthogonium.layers.conv.SLL"
_SOC = "orthogonium.layers.conv.adaptiveSOC"
_SPECTRAL = "orthogonium.layers.conv.singular_values"
_LINEAR = "orthogonium.layers.linear"
_HELPERS = "orthogonium.published.helpers"
_REPARAMETRIZERS = "orthogonium.reparametrizers"

_FAST_SOC = {"FastSOC": f"{_SOC}:AdaptiveSOCConv2d", "SOCTranspose": f"{_SOC}:AdaptiveSOCConvTranspose2d"}
_SOC_RKO = {
    "SOCRkoConv2d": f"{_SOC}:AdaptiveSOCConv2d",
    "SOCRkoConvTranspose2d": f"{_SOC}:AdaptiveSOCConvTranspose2d",
}

# path → name there → "module:name" here, or the module if the name is the same
PATHS: dict[str, dict[str, str]] = {
    "orthogonium.model_factory.classparam": dict.fromkeys(("ClassParam", "flatten_config"), "orthogonium.class_param"),
    f"{_AOC}.ortho_conv": {
        **dict.fromkeys(("AdaptiveOrthoConv2d", "AdaptiveOrthoConvTranspose2d"), _AOC),
        **dict.fromkeys(("FastBlockConv2d", "FastBlockConvTranspose2D", "RKOConv2d", "RkoConvTranspose2d"), _AOC),
        **dict.fromkeys(("BcopRkoConv2d", "BcopRkoConvTranspose2d"), _AOC),
        "OrthoParams": _REPARAMETRIZERS,
    },
    f"{_AOC}.fast_block_ortho_conv": {
        **dict.fromkeys(("FastBlockConv2d", "FastBlockConvTranspose2D"), _AOC),
        **dict.fromkeys(("fast_matrix_conv", "fast_batched_matrix_conv", "transpose_kernel", "block_orth"), _HELPERS),
        **dict.fromkeys(("L2Normalize", "OrthoParams"), _REPARAMETRIZERS),
    },
    f"{_AOC}.rko_conv": {**dict.fromkeys(("RKOConv2d", "RkoConvTranspose2d"), _AOC), "OrthoParams": _REPARAMETRIZERS},
    f"{_AOC}.bcop_x_rko_conv": {
        **dict.fromkeys(("BcopRkoConv2d", "BcopRkoConvTranspose2d"), _AOC),
        "fast_matrix_conv": _HELPERS,
        "OrthoParams": _REPARAMETRIZERS,
    },
    f"{_AOL}.aol": {
        **dict.fromkeys(("AOLConv2D", "AOLConvTranspose2D"), _AOL),
        "conv_orthogonal_": "orthogonium.layers.conv.init",
        **dict.fromkeys(("fast_matrix_conv", "transpose_kernel"), _HELPERS),
    },
    f"{_SLL}.sll_layer": {
        **dict.fromkeys(
            ("SDPBasedLipschitzResBlock", "SDPBasedLipschitzDense", "SLLxAOCLipschitzResBlock", "AOCLipschitzResBlock"),
            _SLL,
        ),
        "AdaptiveOrthoConv2d": _AOC,
        "OrthoParams": _REPARAMETRIZERS,
        **dict.fromkeys(("fast_matrix_conv", "transpose_kernel"), _HELPERS),
    },
    f"{_SOC}.ortho_conv": {
        **dict.fromkeys(("AdaptiveSOCConv2d", "AdaptiveSOCConvTranspose2d"), _SOC),
        **_FAST_SOC,
        **_SOC_RKO,
        **dict.fromkeys(("RKOConv2d", "RkoConvTranspose2d"), _AOC),
        "OrthoParams": _REPARAMETRIZERS,
    },
    f"{_SOC}.fast_skew_ortho_conv": {**_FAST_SOC, **dict.fromkeys(("fast_matrix_conv", "transpose_kernel"), _HELPERS)},
    f"{_SOC}.soc_x_rko_conv": {**_SOC_RKO, "fast_matrix_conv": _HELPERS, "OrthoParams": _REPARAMETRIZERS},
    f"{_SPECTRAL}.get_sv": {
        "get_conv_sv": _SPECTRAL,
        **dict.fromkeys(("compute_delattre2023", "compute_delattre2024"), _HELPERS),
    },
    f"{_SPECTRAL}.delattre24": dict.fromkeys(("compute_delattre2023", "compute_delattre2024"), _HELPERS),
    f"{_LINEAR}.ortho_linear": {
        **dict.fromkeys(("OrthoLinear", "UnitNormLinear"), _LINEAR),
        **dict.fromkeys(("L2Normalize", "OrthoParams"), _REPARAMETRIZERS),
    },
}


class Finder(MetaPathFinder, Loader):
    """Finds the paths in the table. Note [Published paths]."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A module for each path in the table."""
        return ModuleSpec(fullname, self) if fullname in PATHS else None

    def exec_module(self, module: ModuleType) -> None:
        """Bind the names in the table to their objects here."""
        names = PATHS[module.__name__]
        for name, place in names.items():
            source, _, own = place.partition(":")
            setattr(module, name, getattr(importlib.import_module(source), own or name))
        module.__doc__ = "A path of orthogonium 0.0.4; `orthogonium.published.paths` says where its names live."
        module.__all__ = list(names)  # type: ignore[attr-defined]


def install() -> None:
    """Let Python find the published paths."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.append(Finder())
