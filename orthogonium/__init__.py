"""Orthogonal and 1-Lipschitz layers for PyTorch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from orthogonium.class_param import ClassParam
from orthogonium.published import paths as _published_paths

if TYPE_CHECKING:
    from orthogonium.building import build_once, build_together
    from orthogonium.certification import audit, certify, lipschitz_bound
    from orthogonium.conversion import convert
    from orthogonium.layers import inverse
    from orthogonium.saving import load, save

_published_paths.install()

__version__ = "0.2.0"
__all__ = [
    "ClassParam",
    "__version__",
    "audit",
    "build_once",
    "build_together",
    "certify",
    "convert",
    "inverse",
    "lipschitz_bound",
    "load",
    "save",
]

_VERBS = {  # imported when they are first used
    "audit": "certification",
    "build_once": "building",
    "build_together": "building",
    "certify": "certification",
    "convert": "conversion",
    "inverse": "layers",
    "lipschitz_bound": "certification",
    "load": "saving",
    "save": "saving",
}


def __getattr__(name: str) -> Any:
    if name not in _VERBS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"orthogonium.{_VERBS[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_VERBS})
