"""`orthogonium models` and `orthogonium methods`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from orthogonium.cli.shared import AsJson, percent, print_json, print_table


def models(
    name: Annotated[str | None, typer.Argument(help="Show one model with its options.", metavar="[NAME]")] = None,
    as_json: AsJson = False,
) -> None:
    """List the architectures, and those that come trained.

    Example: [bold]orthogonium models aocnet_tiny[/bold]
    """
    from orthogonium.models import describe_model, describe_pretrained, list_models

    trained = [describe_pretrained(weights) for weights in list_models(pretrained=True)]
    entries = [describe_model(each) for each in ([name] if name else list_models())]
    trained = [weights for weights in trained if name in (None, weights.model)]
    if as_json:
        print_json({"models": [_as_json(entry) for entry in entries], "pretrained": [asdict(each) for each in trained]})
        return
    if name is None:
        rows = [(entry.name, "×".join(map(str, entry.image_shape)), entry.summary) for entry in entries]
        print_table("Models", ["name", "images", "summary"], rows)
    else:
        (entry,) = entries
        print(f"{entry.name}: {entry.summary}\n\n{entry.provenance}\n")
        options = [(key, repr(value)) for key, value in entry.options.items()]
        print_table("Options (--model-option NAME=VALUE)", ["name", "default"], options)
    if trained:
        certified = [", ".join(f"{e}: {percent(a)}" for e, a in each.certified_accuracy.items()) for each in trained]
        weights = zip(trained, certified, strict=True)
        found = [(each.name, each.model, each.data, percent(each.accuracy), radii) for each, radii in weights]
        print_table("Pretrained", ["name", "model", "data", "accuracy", "certified at l2 radius"], found)


def _as_json(entry: Any) -> dict[str, Any]:
    return {
        "name": entry.name,
        "summary": entry.summary,
        "provenance": entry.provenance,
        "image_shape": list(entry.image_shape),
        "options": {key: value if _is_plain(value) else repr(value) for key, value in entry.options.items()},
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def methods(as_json: AsJson = False) -> None:
    """List the ways to constrain a layer: what each promises, supports and costs."""
    from orthogonium.methods.table import METHODS

    promises = {"orthogonal": "orthogonal", "lipschitz": "1-Lipschitz"}
    if as_json:
        fields = (
            "name",
            "paper",
            "guarantee",
            "padding",
            "cost",
            "stride",
            "dilation",
            "groups",
            "square",
            "activated",
        )
        print_json([{field: getattr(method, field) for field in fields} for method in METHODS.values()])
        return
    rows = [(m.name, promises[m.guarantee], m.padding, m.cost, m.paper) for m in METHODS.values()]
    print_table("Methods (--method NAME)", ["name", "guarantee", "padding", "cost of a 3×3 kernel", "paper"], rows)
