"""The card says what is measured and what was given, in a header and a table that stay whole."""

import json
import re

import orthogonium
from orthogonium.models import create_model
from orthogonium.saving import ModelCard


def written(tmp_path, card, **options):
    model = create_model("aocnet_tiny", (1, 8, 8), 5, **{"widths": (4,), "hidden": (), **options})
    return (orthogonium.save(model, tmp_path / "network", card) / "README.md").read_text(encoding="utf-8")


def header(text):
    lines = text.split("---\n")[1].splitlines()
    return {name: json.loads(value) for name, value in (line.split(": ", 1) for line in lines)}


def test_what_is_given_is_told(tmp_path):
    card = ModelCard(
        title="Digits",
        data="digits | with a bar",
        accuracy=0.98,
        certified_accuracy={"0.25": 0.92},
        recipe={"epochs": 3},
        command="orthogonium train --data digits",
        license="mit: with\na new line",
        notes="Some **notes**.",
    )
    text = written(tmp_path, card)
    assert header(text)["license"] == card.license and header(text)["library_name"] == "orthogonium"
    for part in ("# Digits", "digits \\| with a bar", "98.00%", "at radius 0.25 | 92.00%", card.command, card.notes):
        assert part in text
    assert json.loads(text.split("```json\n")[1].split("```")[0]) == {"epochs": 3}
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 3 for row in rows)


def test_the_bound_is_that_of_the_network(tmp_path):
    bound = float(re.search(r"at most ([\d.]+)", written(tmp_path, ModelCard(), std=0.25)).group(1))
    assert 4 <= bound < 4.001


def test_without_a_card_the_bound_is_not_measured(tmp_path):
    text = written(tmp_path, None)
    assert "Lipschitz constant" not in text and "license" not in header(text)
    assert '`{"widths": [4], "hidden": []}`' in text
