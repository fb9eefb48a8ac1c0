"""Everything that determines the final weights of a training run, as one value to print, save and compare.

Note [A flag is a field]
The options of `orthogonium train` are the fields of `Recipe`: `early_stop` is `--early-stop`, and the first sentence of
its line in the docstring is the help of the flag. So errors use the same names in Python and on the command line, and a
new flag is a new field. `--help` reads this file, which therefore imports torch only to check values.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_type_hints

from orthogonium.annotations import describe, fits
from orthogonium.errors import ParameterError
from orthogonium.recipes.schedules import check_radius_schedule, check_schedule

# our names → those of Lightning
PRECISIONS = {"32": "32-true", "bf16-mixed": "bf16-mixed", "16-mixed": "16-mixed", "64": "64-true"}

# fields as version 0.1 saved them
_NAMES_OF_0_1 = {"max_minutes": "minutes", "patience": "early_stop", "radii": "eps"}


def _as_json(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """A copy after a round trip through JSON (tuples become lists), so a saved recipe equals the original."""
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
    for name in ("epochs", "batch_size", "accumulate", "early_stop", "validate_every"):
        value = getattr(recipe, name)
        if value is not None and value < 1:
            raise ParameterError(f"{name}={value} must be at least 1.")
    if recipe.batch_size % recipe.accumulate:
        raise ParameterError(
            f"batch_size={recipe.batch_size}, the samples of one optimizer step, cannot be split into "
            f"accumulate={recipe.accumulate} equal parts."
        )


def _check_ranges(recipe: Recipe) -> None:
    for name, value in (("lr", recipe.lr), ("minutes", recipe.minutes), ("clip_norm", recipe.clip_norm)):
        if value is not None and not 0 < value < math.inf:
            raise ParameterError(f"{name}={value} must be positive and finite.")
    if not 0 <= recipe.weight_decay < math.inf:
        raise ParameterError(f"weight_decay={recipe.weight_decay} must be finite and at least 0.")
    if recipe.ema is not None and not 0 < recipe.ema < 1:
        raise ParameterError(f"ema={recipe.ema}, the weight of the past in the average of weights, must be in (0, 1).")
    if not 0 < recipe.extra_share < 1:
        raise ParameterError(f"extra_share={recipe.extra_share}, the share of a batch, must be in (0, 1).")
    if not 0 <= recipe.validation < 1:
        raise ParameterError(
            f"validation={recipe.validation}, the share of the training data held out, must be in [0, 1)."
        )
    if not recipe.eps or any(not 0 < e < math.inf for e in recipe.eps):
        raise ParameterError(f"eps={list(recipe.eps)} must be one or more finite l2 radii above 0.")
    if len({f"{e:.4g}" for e in recipe.eps}) < len(recipe.eps):  # tables and histories name them so
        raise ParameterError(f"eps={list(recipe.eps)} must differ in their first four digits, by which they are named.")
    if not 0 <= recipe.seed < 2**63:
        raise ParameterError(f"seed={recipe.seed} must be at least 0 and below 2⁶³.")
    if recipe.epochs is None and recipe.minutes is None:
        raise ParameterError("Training needs an end: give epochs=, minutes=, or both.")
    if recipe.early_stop is not None and recipe.validation == 0:
        raise ParameterError(
            f"early_stop={recipe.early_stop} with validation=0 would choose weights on the test data: hold out a "
            "share, such as validation=0.1."
        )


def _check_extra_images(recipe: Recipe) -> None:
    """Parts of a batch are mixed each by itself."""
    if recipe.extra is None or recipe.accumulate == 1:
        return
    part = recipe.batch_size // recipe.accumulate
    found, wanted = (round(recipe.extra_share * n) for n in (part, recipe.batch_size))
    if found * recipe.accumulate != wanted:
        raise ParameterError(
            f"extra_share={recipe.extra_share} of batch_size={recipe.batch_size} is {wanted} images, which "
            f"accumulate={recipe.accumulate} parts of {part} do not have in whole numbers: {found} in each are "
            f"{found * recipe.accumulate}. Choose extra_share={found / part:.6g}, or fewer parts."
        )


def _check_effect(recipe: Recipe) -> None:
    """Refuse values that another field leaves without effect."""
    for name, needs, present in (
        ("extra_share", "extra", recipe.extra is not None),
        ("lookahead_share", "lookahead", recipe.lookahead is not None),
        ("radius_warmup", "a radius_schedule other than constant", recipe.radius_schedule != "constant"),
        ("decay_biases", "weight_decay", recipe.weight_decay > 0),
    ):
        value = getattr(recipe, name)
        if not present and value != getattr(Recipe, name):
            raise ParameterError(f"{name}={value} has no effect without {needs}.")


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
        model: name of an architecture: see `orthogonium models`.
        model_options: an option of the model.
        data: one of digits, cifar10, mnist, fashion-mnist and image-folder.
        root: folder of the dataset; digits need none.
        extra: an .npz file of further images to train on, with arrays image and label, such as generated ones.
        extra_share: share of each batch that is taken from extra; an epoch stays a pass over the data.
        augment: augmentation of training images: none, shift, crop-flip, ….
        validation: share of the training data held out to validate on; 0 validates on the test data. That says how
            training goes but must not choose anything: early stopping needs a share.
        loss: one of offset-cross-entropy, tau-cross-entropy, cosine, cosine-vra, kr, hkr, soft-hkr, lse-hkr, emma,
            logit-annealing and certificate-regularized.
        loss_options: an option of the loss. The number of classes and the type of the last layer are known.
        radius_schedule: course of the radius or margin that the loss asks for: constant, linear or cosine. It is eps of
            emma and cosine-vra, offset of offset-cross-entropy and logit-annealing, min_margin of those with a hinge.
        radius_warmup: fraction of training over which that radius grows to its value.
        optimizer: one of sgd, nesterov, adam, adamw, nadam, radam, rmsprop and adagrad.
        optimizer_options: an option of the optimizer. Learning rate and weight decay are fields of their own.
        lr: peak learning rate.
        weight_decay: decay of matrices and kernels.
        decay_biases: decay vectors (biases, centering, scales) too.
        schedule: course of the rate: cosine, linear, one-cycle or constant.
        warmup: fraction of training over which the rate rises.
        epochs: passes over the training data at most.
        minutes: time of training at most, validation included. The schedule follows whichever of epochs and time is
            nearer to its end, so it always anneals completely.
        batch_size: samples of one optimizer step, over all processes and accumulated parts.
        accumulate: parts, one after the other, in which each process runs its share of a batch.
        clip_norm: largest norm of the gradient; larger ones are scaled down.
        lookahead: steps after which the weights return to slow ones, which follow them (Lookahead).
        lookahead_share: how far the slow weights follow, in (0, 1].
        ema: weight of the past in an exponential average of the weights. The average, with its statistics, is then what
            is validated and loaded; None keeps the weights themselves.
        precision: one of 32, bf16-mixed, 16-mixed and 64.
        seed: decides weights, order of samples and augmentation.
        early_stop: stop when this many validations in a row bring no better one, and keep the best.
        monitor: what "better" compares: accuracy, or certified accuracy at the first radius of eps.
        validate_every: epochs between validations. The last epoch is always validated.
        eps: radii to report certified accuracy at, in the l2 norm of pixels in [0, 1].

    >>> from orthogonium.training import Recipe
    >>> recipe = Recipe(loss="tau-cross-entropy", loss_options={"tau": 10.0}, epochs=2)
    >>> Recipe.from_json(recipe.to_json()) == recipe
    True
    """

    model: str = "aocnet_tiny"
    model_options: Mapping[str, Any] = field(default_factory=dict)
    data: str = "digits"
    root: str | None = None
    extra: str | None = None
    extra_share: float = 0.5
    augment: str = "none"
    validation: float = 0.0
    loss: str = "offset-cross-entropy"
    loss_options: Mapping[str, Any] = field(default_factory=dict)
    radius_schedule: str = "constant"
    radius_warmup: float = 0.5
    optimizer: str = "adam"
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    lr: float = 1e-3
    weight_decay: float = 0.0
    decay_biases: bool = False
    schedule: str = "cosine"
    warmup: float = 0.05
    epochs: int | None = 10
    minutes: float | None = None
    batch_size: int = 128
    accumulate: int = 1
    clip_norm: float | None = None
    lookahead: int | None = None
    lookahead_share: float = 0.5
    ema: float | None = None
    precision: Literal["32", "bf16-mixed", "16-mixed", "64"] = "32"
    seed: int = 0
    early_stop: int | None = None
    monitor: Literal["certified", "accuracy"] = "certified"
    validate_every: int = 1
    eps: tuple[float, ...] = (36 / 255, 72 / 255, 108 / 255, 1.0)

    def __post_init__(self) -> None:
        from orthogonium.recipes.lookahead import check_lookahead
        from orthogonium.recipes.objectives import create_loss, radius_option
        from orthogonium.recipes.optimizers import check_optimizer

        _check_types(self)
        for name in ("model_options", "loss_options", "optimizer_options"):
            object.__setattr__(self, name, _as_json(name, getattr(self, name)))
        object.__setattr__(self, "eps", tuple(self.eps))
        _check_counts(self)
        _check_ranges(self)
        _check_extra_images(self)
        _check_effect(self)
        _check_model_options(self)
        check_schedule(self.schedule, self.warmup)
        check_optimizer(self.optimizer, self.optimizer_options)
        check_lookahead(self.lookahead, self.lookahead_share)
        loss = create_loss(self.loss, self.loss_options, n_classes=self.loss_options.get("n_classes", 2))
        check_radius_schedule(self.radius_schedule, self.radius_warmup)
        if self.radius_schedule != "constant":
            option = radius_option(self.loss)  # there must be one
            if not getattr(loss, option):
                raise ParameterError(f"radius_schedule={self.radius_schedule!r} has no effect on {option}=0.")

    @property
    def keeps_best(self) -> bool:
        """Whether a run keeps its best epoch instead of its last."""
        return self.early_stop is not None

    def replace(self, **changes: Any) -> Recipe:
        """A copy with some fields changed; unknown ones are refused."""
        return Recipe.from_dict({**self.to_dict(), **changes})

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return {**dataclasses.asdict(self), "eps": list(self.eps)}

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
        except ValueError as error:  # also raised for a number too long to read
            raise ParameterError(f"A recipe is a JSON object: {error}.") from error
        if not isinstance(fields, dict):
            raise ParameterError(f"A recipe is a JSON object: got {type(fields).__name__}.")
        renamed = [name for name in fields if name in _NAMES_OF_0_1 and _NAMES_OF_0_1[name] not in fields]
        return cls.from_dict({_NAMES_OF_0_1[name] if name in renamed else name: fields[name] for name in fields})

    @classmethod
    def read(cls, path: Path) -> Recipe:
        """The recipe in a file."""
        try:
            return cls.from_json(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise ParameterError(f"{path} is not a recipe: it is not text ({error.reason}).") from error
        except ParameterError as error:
            raise ParameterError(f"{path} is not a recipe: {error}") from error
