"""What a run depends on beside its recipe: the data behind a name, and the code behind the name of a class."""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from orthogonium.comparison.contestant import Contestant
from orthogonium.data import ImageDataModule
from orthogonium.errors import ParameterError

_IMAGES = 256  # of each part of the data, evenly spread: those in files take time to read


def data_digest(data: ImageDataModule) -> str:
    """A digest of all classes and labels, and of some of the images."""
    digest = hashlib.sha256("\n".join(data.classes).encode())
    for source in (data.train, data.validation, data.test, data.extra):
        if source is not None:
            index = torch.linspace(0, len(source) - 1, min(_IMAGES, len(source))).round().long()
            digest.update(source.labels.numpy().tobytes())
            digest.update(source.fetch(index).contiguous().numpy().tobytes())
    return digest.hexdigest()


def code_digest(contestant: Contestant) -> str | None:
    """A digest of the file that a class of another library is named by, and of the one that defines it.

    None for methods, and for classes without files.
    """
    if contestant.kind == "method":
        return None
    named = contestant.find_class(), sys.modules[contestant.name.partition(":")[0]]  # it may be made elsewhere
    files: list[str | None] = [getattr(inspect.getmodule(part), "__file__", None) for part in named]
    places = sorted({file for file in files if file is not None})
    return hashlib.sha256(b"".join(Path(place).read_bytes() for place in places)).hexdigest() if places else None


def check_same(file: Path, entry: Mapping[str, Any]) -> None:
    """Refuse to continue a run that was begun with other data or other code: its figures would be those of neither."""
    if not file.is_file():
        return
    begun = json.loads(file.read_text(encoding="utf-8"))
    for key, what in (("data", "images or labels"), ("code", "the file that defines the class")):
        if key in begun and begun[key] != entry[key]:
            raise ParameterError(
                f"{file.parent} was begun with other contents of {what}. Remove that folder to run it anew, or choose "
                "another one for the comparison."
            )
