"""`config.json` of a saved network: how to build it, and how to check that the result is right."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

import torch

from orthogonium.annotations import describe, fits
from orthogonium.errors import CheckpointError

FORMAT = 1
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Config:
    """The entries of the file.

    Attributes:
        format: format number of the folder; it grows with changes that older versions cannot read.
        version: version of the library that wrote it.
        model: the name of the architecture.
        image_shape: (channels, height, width).
        n_classes: number of logits.
        lipschitz: the factor by which the constant of the network was multiplied.
        options: options of the model, including all defaults that are plain data.
        dtype: dtype of its parameters, a key of `DTYPES`.
        frozen: names of the parameters with `requires_grad=False`.
        sha256: SHA-256 of the weights file.
        probe: outputs for a given image (`probe.py`).
    """

    format: int
    version: str
    model: str
    image_shape: tuple[int, ...]
    n_classes: int
    lipschitz: float
    options: Mapping[str, Any]
    dtype: str
    frozen: tuple[str, ...]
    sha256: str
    probe: tuple[float, ...]

    def to_json(self) -> str:
        """The text of the file."""
        return json.dumps(asdict(self), indent=2, allow_nan=False) + "\n"

    @classmethod
    def read(cls, path: Path) -> Config:
        """The entries of a file; all of them are required, and none is ignored."""
        if not path.is_file():
            raise CheckpointError(f"{path.parent} is not the folder of a saved network: it has no {path.name}.")
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{path} is not JSON, or is damaged: {error}.") from error
        if not isinstance(found, dict) or "format" not in found:
            raise CheckpointError(f"{path} is not the config of a network that orthogonium.save has written.")
        if found["format"] != FORMAT:
            raise CheckpointError(
                f"{path} has format {found['format']}, written by orthogonium {found.get('version')}; this version "
                f"reads {FORMAT}: use the version that wrote it."
            )
        expected = {f.name for f in fields(cls)}
        if wrong := sorted(expected ^ found.keys()):
            raise CheckpointError(f"{path} lacks, or has entries that are not known: {', '.join(wrong)}.")
        hints = get_type_hints(cls)
        for name, value in found.items():
            if not fits(value, hints[name]):
                raise CheckpointError(f"{path}: {name} must be {describe(hints[name])}, got {value!r}.")
        if found["dtype"] not in DTYPES:
            raise CheckpointError(f"{path}: dtype must be one of {', '.join(DTYPES)}, got {found['dtype']!r}.")
        entries: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in found.items()}
        return cls(**entries)
