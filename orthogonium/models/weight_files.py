"""State dicts as files: safetensors, which hold tensors and nothing that could run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from orthogonium.errors import CheckpointError, ShapeError, lacking


def write_state(state: Mapping[str, Tensor], path: Path) -> None:
    """Write a state dict with the permissions of the umask; the library itself would let nobody else read it.

    Tensors that share their memory are written once for each name.
    """
    path.write_bytes(_safetensors().save({k: v.detach().cpu().contiguous().clone() for k, v in state.items()}))


def read_state(path: Path) -> dict[str, Tensor]:
    """The state dict in a file."""
    library = _safetensors()
    if not path.is_file():
        raise CheckpointError(f"The file of the weights is missing: {path}.")
    try:
        return library.load_file(path)
    except library.Error as error:
        raise CheckpointError(f"{path} is not a safetensors file, or is damaged: {error}.") from error


def check_fit(state: Mapping[str, Tensor], own: Mapping[str, Tensor], weights: str, model: str) -> None:
    """Refuse a state dict whose entries and shapes are not exactly those of the model."""
    wrong = [f"{k} is missing" for k in own if k not in state]
    wrong += [f"{k} is not part of the model" for k in state if k not in own]
    wrong += [
        f"{k} has shape {tuple(state[k].shape)}, the model {tuple(own[k].shape)}"
        for k in own
        if k in state and state[k].shape != own[k].shape
    ]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise ShapeError(f"The weights {weights!r} do not fit {model!r}: {'; '.join(wrong[:3])}{more}.")


class _Library:
    """The parts of safetensors that are used."""

    def __init__(self) -> None:
        from safetensors import SafetensorError
        from safetensors.torch import load_file, save

        self.Error, self.load_file, self.save = SafetensorError, load_file, save


def _safetensors() -> _Library:
    try:
        return _Library()
    except ModuleNotFoundError as error:
        raise lacking("Files of weights need safetensors") from error
