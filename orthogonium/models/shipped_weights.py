"""Trained weights that come with the library: `weights/NAME.safetensors`, and `NAME.json` beside it to describe them.

A file holds the state dict, and so the raw parameters of constrained layers, from which their weights are built: a
model with trained weights can be trained further.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from orthogonium.errors import ParameterError, ShapeError
from orthogonium.models.origin import as_data, build
from orthogonium.models.registry import REGISTRY, find
from orthogonium.models.weight_files import check_fit, read_state, write_state

FOLDER = Path(__file__).parent / "weights"


@dataclass(frozen=True)
class Pretrained:
    """What trained weights are for, and what was measured with them.

    Attributes:
        name: what `create_model(name, pretrained=True)` takes.
        model: name of the architecture, one of `list_models()`.
        image_shape: (channels, height, width).
        n_classes: number of logits.
        options: options with which the model was made.
        data: name of the data set.
        accuracy: fraction of correct predictions on its test images.
        certified_accuracy: certified accuracy on them, by l2 radius.
        command: what trained it.
        limits: what it is not for, and what its certificates do not say.
        recipe: how it was trained.
    """

    name: str
    model: str
    image_shape: tuple[int, int, int]
    n_classes: int
    options: Mapping[str, Any]
    data: str
    accuracy: float
    certified_accuracy: Mapping[str, float]
    command: str
    limits: str
    recipe: Mapping[str, Any] = field(default_factory=dict)

    def build(self, n_classes: int | None = None) -> nn.Module:
        """The model that these weights are for, with random ones, possibly for another number of classes."""
        return build(self.model, self.image_shape, self.n_classes if n_classes is None else n_classes, self.options)

    def differences(self, image_shape: Sequence[int] | None, n_classes: int | None, options: Mapping[str, Any]) -> str:
        """How these weights differ from what the caller asks for; empty if they fit."""
        defaults = find(self.model).defaults(self.image_shape)
        own = {"image_shape": self.image_shape, "n_classes": self.n_classes, **defaults, **self.options}
        asked = {"image_shape": image_shape, "n_classes": n_classes}
        given = {**{k: v for k, v in asked.items() if v is not None}, **options}
        return ", ".join(
            f"{k}={own.get(k)!r}, not {v!r}" for k, v in given.items() if as_data(own.get(k)) != as_data(v)
        )


def list_pretrained() -> dict[str, Pretrained]:
    """All trained weights by name."""
    return {path.stem: _read_metadata(path) for path in sorted(FOLDER.glob("*.json"))}


def _read_metadata(path: Path) -> Pretrained:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ParameterError(f"{path} is not JSON: {error}.") from error
    required = {f.name for f in fields(Pretrained)} - {"name", "recipe"}
    if not isinstance(found, dict) or not required <= found.keys() <= required | {"name", "recipe"}:
        raise ParameterError(f"{path} must have the entries {', '.join(sorted(required))} and may have recipe.")
    return Pretrained(**{**found, "name": path.stem, "image_shape": tuple(found["image_shape"])})


def choose(
    name: str, image_shape: Sequence[int] | None, n_classes: int | None, options: Mapping[str, Any]
) -> Pretrained:
    """The weights of this name, or those of the model of this name that fit what is asked for."""
    known = list_pretrained()
    listing = "; ".join(f"{key} ({p.model} on {p.data})" for key, p in known.items()) or "none"
    if name in known:
        candidates = [known[name]]
    else:
        if name not in REGISTRY:
            models = ", ".join(sorted(REGISTRY))
            raise ParameterError(
                f"There is no model {name!r}, nor weights of this name. Trained: {listing}. Models: {models}."
            )
        candidates = [p for p in known.values() if p.model == name]
    if not candidates:
        raise ParameterError(f"There are no trained weights for model {name!r}. Trained: {listing}.")
    fitting = [p for p in candidates if not p.differences(image_shape, n_classes, options)]
    if not fitting:  # a new head can be had for any number of classes
        fitting = [p for p in candidates if not p.differences(image_shape, None, options)]
    if not fitting:
        reasons = "; ".join(f"{p.name} has {p.differences(image_shape, None, options)}" for p in candidates)
        raise ParameterError(f"No trained weights fit what was asked for: {reasons}. Leave these arguments out.")
    if len(fitting) > 1:
        raise ParameterError(f"Several weights fit: name one of {', '.join(p.name for p in fitting)}.")
    return fitting[0]


def load(found: Pretrained, n_classes: int | None = None) -> nn.Module:
    """The model with its trained weights, in eval mode; for another number of classes with a new head."""
    model = found.build(n_classes)
    state = read_state(FOLDER / f"{found.name}.safetensors")
    own = model.state_dict()
    if n_classes not in (None, found.n_classes):
        state = {**state, **{k: own[k] for k in _head_entries(found, own, state)}}
    check_fit(state, own, found.name, found.model)
    model.load_state_dict(state)
    return model.eval()


def _head_entries(found: Pretrained, own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> list[str]:
    """The entries of the module whose sizes depend on the number of classes."""
    differing = [k for k in own if k in state and state[k].shape != own[k].shape]
    heads = {k.partition(".parametrizations.")[0].removesuffix(".bias").removesuffix(".weight") for k in differing}
    if len(heads) != 1:
        raise ShapeError(
            f"The weights {found.name!r} have no single head for another number of classes: {', '.join(sorted(heads))} "
            "depend on it."
        )
    (head,) = heads
    return [k for k in own if k.startswith(f"{head}.")]


def save(model: nn.Module, found: Pretrained, folder: Path) -> Path:
    """Write the weights and their description; the model must be what `found` says."""
    if str(model) != str(found.build()):
        raise ShapeError(f"The model is not {found.model!r} with options {dict(found.options)}: its layers differ.")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{found.name}.safetensors"
    write_state(model.state_dict(), path)
    metadata = {k: v for k, v in asdict(found).items() if k != "name"}
    path.with_suffix(".json").write_text(json.dumps(metadata, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
