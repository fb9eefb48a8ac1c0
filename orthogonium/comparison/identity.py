"""What a run depends on beside its recipe: the data behind a name, and the code behind the name of a class."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any

from orthogonium.comparison.contestant import Contestant
from orthogonium.data import ImageDataModule
from orthogonium.errors import ParameterError

_INSTALLED = {Path(folder).resolve() for name, folder in sysconfig.get_paths().items() if "lib" in name}


def data_digest(data: ImageDataModule) -> str:
    """A digest of all classes and labels, and of the images: of some of them where they are read from files."""
    digest = hashlib.sha256("\n".join(data.classes).encode())
    for source in (data.train, data.validation, data.test, data.extra):
        if source is not None:
            digest.update(source.digest().encode())
    return digest.hexdigest()


def code_digest(contestant: Contestant) -> str | None:
    """A digest of the files behind a class of another library: those that name and define it, and what they import.

    None for methods, and for classes without files.
    """
    if contestant.kind == "method":
        return None
    named = inspect.getmodule(contestant.find_class()), sys.modules[contestant.name.partition(":")[0]]
    places = sorted(_files_behind(module for module in named if module is not None))
    return hashlib.sha256(b"".join(map(Path.read_bytes, places))).hexdigest() if places else None


def _files_behind(modules: Iterable[ModuleType]) -> set[Path]:
    """The files of modules and of what they import; what installed packages import goes with their version."""
    found: set[Path] = set()
    left = list(modules)
    while left:
        module = left.pop()
        place = Path(getattr(module, "__file__", None) or "").resolve()
        if place.suffix != ".py" or place in found:
            continue
        found.add(place)
        if not any(place.is_relative_to(folder) for folder in _INSTALLED):
            left += [sys.modules[name] for name in _imports_of(module, place) if name in sys.modules]
    return found


def _imports_of(module: ModuleType, place: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(place.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), module.__package__ or "")
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names))


def check_same(file: Path, entry: Mapping[str, Any]) -> None:
    """Refuse to continue a run that was begun with other data or other code: its figures would be those of neither."""
    if not file.is_file():
        return
    begun = json.loads(file.read_text(encoding="utf-8"))
    for key, what in (("data", "images or labels"), ("code", "the files behind the class")):
        if key in begun and begun[key] != entry[key]:
            raise ParameterError(
                f"{file.parent} was begun with other contents of {what}. Remove that folder to run it anew, or choose "
                "another one for the comparison."
            )
