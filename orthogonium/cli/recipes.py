"""The recipe that a command line describes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from orthogonium.training import Recipe


def read_recipe(path: Path) -> Recipe:
    """The recipe in a file. Errors are about its fields, which are not options of a command."""
    from orthogonium.errors import ParameterError
    from orthogonium.training import Recipe

    try:
        return Recipe.from_json(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{path} is not a recipe: it is not text ({error.reason}).") from error
    except ParameterError as error:
        raise typer.BadParameter(f"{path} is not a recipe: {error}") from error


def compose(
    preset: str | None,
    recipe_file: Path | None,
    continued: Path | None,
    given: dict[str, Any],
    chosen: dict[str, dict[str, Any]],
) -> Recipe:
    """The recipe: a preset, a file or that of the run to be continued, and on top of it what was given.

    Options of a model, loss or optimizer are added to those of the base if it has the same one, else they replace them.
    """
    from orthogonium.errors import ParameterError
    from orthogonium.training import PRESETS, Recipe

    if preset is not None and recipe_file is not None:
        raise ParameterError("--preset and --recipe exclude each other: a recipe has one beginning.")
    if preset is not None and preset not in PRESETS:
        raise ParameterError(f"There is no preset {preset!r}: choose one of {', '.join(PRESETS)}.")
    own = None if continued is None else continued / "recipe.json"
    if recipe_file is None and preset is None and own is not None and own.is_file():
        recipe_file = own
    if recipe_file is None and preset is None and own is not None and "model" not in given:
        raise ParameterError(
            f"There is no run in {continued} to resume. To begin one there, say what: --preset, --recipe or --model."
        )
    if recipe_file is not None:
        base = read_recipe(recipe_file)
    else:
        base = PRESETS[preset] if preset is not None else Recipe()
    for field, values in chosen.items():
        owner = field.removesuffix("_options")
        same = owner not in given or given[owner] == getattr(base, owner)
        kept = getattr(base, field) if same else {}
        given[field] = {**kept, **values}
    return base.replace(**given)
