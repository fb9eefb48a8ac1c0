"""The recipe that a command line describes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orthogonium.training import Recipe


def compose(preset: str | None, recipe_file: Path | None, continued: Path | None, given: dict[str, Any]) -> Recipe:
    """The recipe: a preset, a file or that of the run to continue, overridden by the fields that were given."""
    from orthogonium.errors import ParameterError
    from orthogonium.training import PRESETS, Recipe
    from orthogonium.training.run_folder import RunFolder

    if preset is not None and recipe_file is not None:
        raise ParameterError("--preset and --recipe exclude each other: a recipe has one beginning.")
    if preset is not None and preset not in PRESETS:
        raise ParameterError(f"There is no preset {preset!r}: choose one of {', '.join(PRESETS)}.")
    base = Recipe()
    if recipe_file is not None:
        base = Recipe.read(recipe_file)
    elif preset is not None:
        base = PRESETS[preset]
    elif continued is not None:
        own = RunFolder(continued).recipe()
        if own is None and "model" not in given:
            raise ParameterError(
                f"There is no run in {continued} to resume. To begin one there, say what: --preset, --recipe or "
                "--model."
            )
        base = own or base
    return vary(base, given)


def vary(base: Recipe, given: dict[str, Any]) -> Recipe:
    """The recipe with other values of the fields that were given.

    Options of a model, loss or optimizer are added to those of the base if it has the same one, else they replace them.
    """
    changes = dict(given)
    for owner in ("model", "loss", "optimizer"):
        field = f"{owner}_options"
        same = owner not in given or given[owner] == getattr(base, owner)
        changes[field] = {**(getattr(base, field) if same else {}), **given.get(field, {})}
    return base.replace(**changes)
