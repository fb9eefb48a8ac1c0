"""`orthogonium models` and `orthogonium methods`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orthogonium.cli.arguments import AsJson
from orthogonium.cli.output import percent, print_json, print_table

if TYPE_CHECKING:
    from orthogonium.methods.table import Method


def models(
    name: Annotated[
        str | None, typer.Argument(help="Show one model with its options, or pretrained weights.", metavar="NAME")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the architectures, and those that come trained.

    Example: [bold]orthogonium models aocnet_tiny[/bold]
    """
    from orthogonium.models import describe_model, describe_pretrained, list_models

    trained = [describe_pretrained(weights) for weights in list_models(pretrained=True)]
    named = [weights for weights in trained if weights.name == name]
    trained = named or [weights for weights in trained if name in (None, weights.model)]
    chosen = named[0].options if named else {}
    entries = [describe_model(each) for each in ([named[0].model if named else name] if name else list_models())]
    if as_json:
        print_json({"models": [_as_json(entry) for entry in entries], "pretrained": [asdict(each) for each in trained]})
        return
    if name is None:
        rows = [(entry.name, "×".join(map(str, entry.image_shape)), entry.summary) for entry in entries]
        print_table("Models", ["name", "images", "summary"], rows)
    else:
        (entry,) = entries
        print(f"{entry.name}: {entry.summary}\n\n{entry.provenance}\n")
        if named:
            print_table(f"Options of {name}", ["name", "value"], _rows({**entry.options, **chosen}))
        else:
            print_table("Options (--model-option NAME=VALUE)", ["name", "default"], _rows(entry.options))
            if entry.large_options:
                print_table("Above 64×64 pixels", ["name", "default"], _rows(entry.large_options))
    if trained:
        certified = [", ".join(f"{e}: {percent(a)}" for e, a in each.certified_accuracy.items()) for each in trained]
        weights = zip(trained, certified, strict=True)
        found = [(each.name, each.model, each.data, percent(each.accuracy), radii) for each, radii in weights]
        print_table("Pretrained", ["name", "model", "data", "accuracy", "certified at l2 radius"], found)
    for each in named:
        print(f"Trained by `{each.command}`.\n{each.limits}")


def _rows(options: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(key, repr(tuple(value) if isinstance(value, list) else value)) for key, value in options.items()]


def _as_json(entry: Any) -> dict[str, Any]:
    return {
        "name": entry.name,
        "summary": entry.summary,
        "provenance": entry.provenance,
        "image_shape": list(entry.image_shape),
        "options": _plain(entry.options),
        "large_options": _plain(entry.large_options),
    }


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value if _is_plain(value) else repr(value) for key, value in options.items()}


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def methods(as_json: AsJson = False) -> None:
    """List the ways to constrain a layer: what each promises, supports and costs."""
    from orthogonium.methods.table import METHODS

    if as_json:
        print_json({"methods": [_method(entry) for entry in METHODS.values()]})
        return
    promises = {"orthogonal": "orthogonal", "lipschitz": "1-Lipschitz"}
    rows = [(m.name, promises[m.guarantee], m.padding, m.cost, m.paper) for m in METHODS.values()]
    print_table("Methods (--method NAME)", ["name", "guarantee", "padding", "cost of a 3×3 kernel", "paper"], rows)


def _method(entry: Method) -> dict[str, Any]:
    """What a method promises, costs and supports; dimensions are those in which it has a convolution."""
    plain = ("name", "guarantee", "padding", "cost", "paper", "stride", "dilation", "groups", "square", "activated")
    return {
        **{field: getattr(entry, field) for field in plain},
        "convolution_dimensions": list(entry.conv),
        "transposed_dimensions": list(entry.conv_transpose),
        "dense": entry.linear is not None,
    }
