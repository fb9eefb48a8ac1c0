"""From the argument CHECKPOINT to a network, and the data to evaluate it on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os.path import expanduser
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from orthogonium.cli.parsing import radii
from orthogonium.data import load_dataset, unit_pixels
from orthogonium.errors import ParameterError
from orthogonium.models import create_model, describe_model, describe_pretrained, list_models
from orthogonium.models.origin import origin_of
from orthogonium.saving import load
from orthogonium.saving.folder import CONFIG

if TYPE_CHECKING:
    from orthogonium.training import Recipe

RADII = (36 / 255, 72 / 255, 108 / 255)


@dataclass(frozen=True)
class Network:
    """A trained model in eval mode, and what is known about it."""

    name: str
    model: nn.Module
    image_shape: tuple[int, ...]
    data: str | None
    root: str | None
    eps: tuple[float, ...]
    recipe: Recipe | Mapping[str, Any]
    history: list[dict[str, float]]
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Inputs:
    """The test split: images (n, c, h, w) in [0, 1], labels (n,), names of classes."""

    name: str
    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]


def load_network(checkpoint: str) -> Network:
    """The network from a checkpoint, the folder of a run or of `save`, or the name of a pretrained model."""
    path = Path(expanduser(checkpoint))
    if (path / CONFIG).is_file():
        return _from_saved(path)
    if path.is_dir():
        return _from_folder(path)
    if path.is_file():
        return _from_file(path)
    trained = list_models(pretrained=True)
    if checkpoint in trained:
        return _from_weights(checkpoint)
    known = f"pretrained are {', '.join(trained)}" if trained else "there is no pretrained model"
    if checkpoint in list_models():
        raise ParameterError(
            f"{checkpoint!r} is an architecture, not a trained network ({known}): train it with "
            f"`orthogonium train --model {checkpoint}`."
        )
    raise ParameterError(
        f"{checkpoint!r} is neither a file, nor the folder of a run or of a saved network, nor a pretrained model "
        f"({known})."
    )


def load_inputs(network: Network, data: str | None, root: Path | None, limit: int | None) -> Inputs:
    """The test split to evaluate on: of `data`, or of what the network was trained on."""
    import torch

    name = data or network.data
    if name is None:
        raise ParameterError("It is not known what this network was trained on: say --data NAME.")
    folder = root if root is not None or data not in (None, network.data) else network.root
    found = load_dataset(name, folder)
    if found.image_shape != network.image_shape:
        raise ParameterError(
            f"{network.name} reads images of shape {network.image_shape}, those of {name} have {found.image_shape}."
        )
    count = min(limit or len(found.test), len(found.test))
    images = unit_pixels(found.test.fetch(torch.arange(count)))
    return Inputs(found.name, images, found.test.labels[:count], found.classes)


def _from_folder(path: Path) -> Network:
    from orthogonium.training.run_folder import RunFolder

    return _from_file(RunFolder(path).find_result())


def _from_file(path: Path) -> Network:
    from orthogonium.training import load_checkpoint  # imports lightning, which pretrained models do without

    found = load_checkpoint(path)
    recipe = found.recipe
    shape = found.image_shape or describe_model(recipe.model).image_shape
    facts = {"training": f"{found.seconds:.0f} s", "parameters": _count(found.model)}
    if not found.finished:
        facts["note"] = "training was not finished"
    name = f"{recipe.model} on {recipe.data}"
    return Network(name, found.model, shape, recipe.data, recipe.root, recipe.eps, recipe, found.history, facts)


def _from_saved(path: Path) -> Network:
    model = load(path)
    origin = origin_of(model)
    assert origin is not None
    facts = {"weights": str(path), "parameters": _count(model)}
    return Network(f"{origin.name} in {path}", model, origin.image_shape, None, None, RADII, {}, [], facts)


def _from_weights(name: str) -> Network:
    record = describe_pretrained(name)
    model = create_model(name, pretrained=True).eval()
    facts = {"weights": f"pretrained, {name}", "parameters": _count(model)}
    eps = radii(list(record.certified_accuracy)) or RADII
    return Network(
        f"{name} on {record.data}", model, record.image_shape, record.data, None, eps, dict(record.recipe), [], facts
    )


def _count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
