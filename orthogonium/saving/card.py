"""The card of a saved network: `README.md`, with the header that model hubs read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from orthogonium.certification import TraceError, UnboundedError, lipschitz_bound
from orthogonium.certification.render import at_most
from orthogonium.models import describe_model
from orthogonium.models.origin import as_data
from orthogonium.saving.config import Config


@dataclass(frozen=True)
class ModelCard:
    """What only the author of a network knows about it; all of it is optional.

    Attributes:
        title: the first line.
        data: what it was trained on.
        accuracy: fraction of correct predictions on test data.
        certified_accuracy: certified accuracy for each l2 radius.
        recipe: how it was trained, by name: `vars(recipe)` of a `Recipe`, or anything that JSON can hold.
        command: the command that trained it.
        license: license of the weights, by its SPDX name, e.g. "mit".
        notes: any further Markdown.
    """

    title: str | None = None
    data: str | None = None
    accuracy: float | None = None
    certified_accuracy: Mapping[str, float] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    command: str | None = None
    license: str | None = None
    notes: str | None = None


def card_text(model: nn.Module, config: Config, given: ModelCard | None) -> str:
    """The card of a network in eval mode, as Markdown; with the bound if a card is given."""
    card = given or ModelCard()
    entry = describe_model(config.model)
    header = {
        "library_name": "orthogonium",
        "pipeline_tag": "image-classification",
        "tags": ["orthogonium", "1-lipschitz", "certified-robustness"],
        **({} if card.license is None else {"license": card.license}),
    }
    options = {k: v for k, v in config.options.items() if v != as_data(entry.defaults(config.image_shape).get(k))}
    count = sum(p.numel() for p in model.parameters())
    facts = {
        "Architecture": f"`{config.model}`: {entry.summary} {entry.provenance}",
        "Options": f"`{json.dumps(options)}`" if options else "the defaults",
        "Inputs": f"images {config.image_shape} (channels, height, width), pixels in [0, 1]",
        "Outputs": f"{config.n_classes} logits",
        "Parameters": f"{count:,} in {config.dtype}",
        "Lipschitz constant (l2)": None if given is None else _bound(model, config),
        "Trained on": card.data,
        "Accuracy": None if card.accuracy is None else f"{card.accuracy:.2%}",
        **{f"Certified accuracy at radius {r}": f"{value:.2%}" for r, value in card.certified_accuracy.items()},
        "License of the weights": card.license,
    }
    lines = [
        "---",
        *(f"{name}: {json.dumps(value)}" for name, value in header.items()),  # JSON is YAML
        "---",
        "",
        f"# {card.title or config.model}",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {_cell(value)} |" for name, value in facts.items() if value is not None),
        "",
        "```python",
        "import orthogonium",
        "",
        'model = orthogonium.load("FOLDER")  # this folder',
        'model = orthogonium.saving.from_pretrained("OWNER/NAME")  # or a repository of the Hugging Face Hub',
        "```",
        *([] if card.notes is None else ["", card.notes]),
        *([] if card.command is None else ["", "Trained by", "", "```sh", card.command, "```"]),
        *([] if not card.recipe else ["", "Recipe:", "", "```json", json.dumps(dict(card.recipe), indent=2), "```"]),
        "",
        f"Written by orthogonium {config.version}.",
    ]
    return "\n".join(lines) + "\n"


def _bound(model: nn.Module, config: Config) -> str:
    try:
        return f"at most {at_most(lipschitz_bound(model, config.image_shape).value)}, by `orthogonium.lipschitz_bound`"
    except (UnboundedError, TraceError) as error:
        return f"not known: {error}"


def _cell(text: str) -> str:
    """Text that does not break a table."""
    return " ".join(text.split()).replace("|", "\\|")
