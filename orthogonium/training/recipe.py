"""Everything that decides the weights a training run ends in, as one value that can be printed, saved and compared."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_type_hints

from orthogonium.errors import ParameterError
from orthogonium.models.annotations import describe, fits
from orthogonium.training.objectives import create_loss
from orthogonium.training.optimizers import check_optimizer
from orthogonium.training.schedules import check_schedule

# our names → those of Lightning
PRECISIONS = {"32": "32-true", "bf16-mixed": "bf16-mixed", "16-mixed": "16-mixed", "64": "64-true"}


def _as_json(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """A copy as JSON gives it back (tuples become lists), so that a saved recipe equals the one it was saved from."""
    try:
        return dict(json.loads(json.dumps(dict(options))))
    except (TypeError, ValueError) as error:
        raise ParameterError(f"{name} are names with numbers, strings and lists, as JSON has them: {error}.") from error


def _check_types(recipe: Recipe) -> None:
    for name, hint in get_type_hints(Recipe).items():
        value = getattr(recipe, name)
        if not fits(value, hint):
            raise ParameterError(f"{name}={value!r} must be {describe(hint)}.")


def _check_counts(recipe: Recipe) -> None:
    for name in ("epochs", "batch_size", "accumulate", "patience", "validate_every"):
        value = getattr(recipe, name)
        if value is not None and value < 1:
            raise ParameterError(f"{name}={value} must be at least 1.")
    if recipe.batch_size % recipe.accumulate:
        raise ParameterError(
            f"batch_size={recipe.batch_size}, the samples of one optimizer step, cannot be split into "
            f"accumulate={recipe.accumulate} equal parts."
        )


def _check_ranges(recipe: Recipe) -> None:
    for name, value in (("lr", recipe.lr), ("max_minutes", recipe.max_minutes), ("clip_norm", recipe.clip_norm)):
        if value is not None and not 0 < value < math.inf:
            raise ParameterError(f"{name}={value} must be positive and finite.")
    if not 0 <= recipe.weight_decay < math.inf:
        raise ParameterError(f"weight_decay={recipe.weight_decay} must be finite and at least 0.")
    if recipe.ema is not None and not 0 < recipe.ema < 1:
        raise ParameterError(f"ema={recipe.ema}, the weight of the past in the average of weights, must be in (0, 1).")
    if not 0 <= recipe.validation < 1:
        raise ParameterError(
            f"validation={recipe.validation}, the share of the training data held out, must be in [0, 1)."
        )
    if not recipe.radii or any(not 0 < r < math.inf for r in recipe.radii):
        raise ParameterError(f"radii={list(recipe.radii)} must be one or more finite l2 radii above 0.")
    if not 0 <= recipe.seed < 2**63:
        raise ParameterError(f"seed={recipe.seed} must be at least 0 and below 2⁶³.")
    if recipe.epochs is None and recipe.max_minutes is None:
        raise ParameterError("Training needs an end: give epochs=, max_minutes=, or both.")
    if recipe.patience is not None and recipe.validation == 0:
        raise ParameterError(
            f"patience={recipe.patience} with validation=0 would choose weights on the test data: hold out a share, such "
            "as validation=0.1."
        )


def _check_model_options(recipe: Recipe) -> None:
    given = sorted({"name", "image_shape", "n_classes"} & recipe.model_options.keys())
    if given:
        raise ParameterError(
            f"{', '.join(given)} is no option of a model: its name is model=, shape and classes are those of the data."
        )


@dataclass(frozen=True)
class Recipe:
    """What to train, on what, and how. Two runs of one recipe on one machine end in the same weights.

    Where and on how many devices to run is not part of it: these are arguments of `fit`.

    Args:
        model: name of an architecture, see `orthogonium.models.list_models`.
        model_options: its options.
        data: name of a dataset, see `orthogonium.data.load_dataset`.
        root: the folder of the dataset, for those that are not bundled.
        augment: augmentation of training images.
        validation: share of the training data held out to validate on; 0 validates on the test data, which then says
            how training goes but must not choose anything: early stopping needs a share.
        loss: name of a loss, see `LOSSES`.
        loss_options: its options; the number of classes and the type of the last layer are known.
        optimizer: name of an optimizer, see `OPTIMIZERS`.
        optimizer_options: its options beside learning rate and weight decay.
        lr: peak learning rate.
        weight_decay: decay of matrices and kernels.
        decay_biases: whether vectors (biases, centering, scales) are decayed too.
        schedule: "cosine", "linear", "one-cycle" or "constant", set at each optimizer step.
        warmup: fraction of training over which the rate rises.
        epochs: passes over the training data at most.
        max_minutes: minutes of training at most, validation included. The schedule follows whichever of epochs and time
            is nearer to its end, so it always anneals completely.
        batch_size: samples of one optimizer step, over all processes and accumulated parts.
        accumulate: parts, one after the other, in which each process runs its share of them.
        clip_norm: largest norm of the gradient; larger ones are scaled down.
        ema: weight of the past in an exponential average of weights and statistics, which is then what is validated and
            loaded; None keeps the weights themselves.
        precision: "32", "bf16-mixed", "16-mixed" or "64".
        seed: of weights, order of samples and augmentation.
        patience: stop when this many validations in a row bring no better one.
        monitor: what "better" compares: accuracy, or certified accuracy at the first of `radii`.
        validate_every: epochs between validations; the last epoch is always validated.
        radii: l2 radii, in units of pixels in [0, 1], to report certified accuracy at.

    >>> from orthogonium.training import Recipe
    >>> recipe = Recipe(loss="tau-cross-entropy", loss_options={"tau": 10.0}, epochs=2)
    >>> Recipe.from_json(recipe.to_json()) == recipe
    True
    """

    model: str = "aocnet_tiny"
    model_options: Mapping[str, Any] = field(default_factory=dict)
    data: str = "digits"
    root: str | None = None
    augment: str = "none"
    validation: float = 0.0
    loss: str = "offset-cross-entropy"
    loss_options: Mapping[str, Any] = field(default_factory=dict)
    optimizer: str = "adam"
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    lr: float = 1e-3
    weight_decay: float = 0.0
    decay_biases: bool = False
    schedule: str = "cosine"
    warmup: float = 0.05
    epochs: int | None = 10
    max_minutes: float | None = None
    batch_size: int = 128
    accumulate: int = 1
    clip_norm: float | None = None
    ema: float | None = None
    precision: Literal["32", "bf16-mixed", "16-mixed", "64"] = "32"
    seed: int = 0
    patience: int | None = None
    monitor: Literal["certified", "accuracy"] = "certified"
    validate_every: int = 1
    radii: tuple[float, ...] = (36 / 255, 72 / 255, 108 / 255, 1.0)

    def __post_init__(self) -> None:
        _check_types(self)
        for name in ("model_options", "loss_options", "optimizer_options"):
            object.__setattr__(self, name, _as_json(name, getattr(self, name)))
        object.__setattr__(self, "radii", tuple(self.radii))
        _check_counts(self)
        _check_ranges(self)
        _check_model_options(self)
        check_schedule(self.schedule, self.warmup)
        check_optimizer(self.optimizer, self.optimizer_options)
        create_loss(self.loss, self.loss_options, n_classes=self.loss_options.get("n_classes", 2))

    def replace(self, **changes: Any) -> Recipe:
        """A copy with some fields changed; unknown ones are refused."""
        return Recipe.from_dict({**self.to_dict(), **changes})

    def to_dict(self) -> dict[str, Any]:
        """The fields, as values that JSON knows."""
        return {**dataclasses.asdict(self), "radii": list(self.radii)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Recipe:
        """The recipe with these fields, and the defaults for others."""
        names = [f.name for f in dataclasses.fields(cls)]
        unknown = sorted(fields.keys() - set(names))
        if unknown:
            raise ParameterError(f"A recipe has no field {', '.join(unknown)}. Its fields are {', '.join(names)}.")
        return cls(**fields)

    def to_json(self) -> str:
        """The fields as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        """The recipe that `to_json` wrote."""
        try:
            fields = json.loads(text)
        except ValueError as error:  # also of a number too long to read
            raise ParameterError(f"A recipe is a JSON object: {error}.") from error
        if not isinstance(fields, dict):
            raise ParameterError(f"A recipe is a JSON object: got {type(fields).__name__}.")
        return cls.from_dict(fields)
