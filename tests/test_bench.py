"""`make bench`: every table has its place in the README, and what it replaces is that alone."""

import importlib
from unittest import mock

import pytest

bench = importlib.import_module("benchmarks.__main__")


@pytest.mark.parametrize("name", bench.TABLES)
def test_every_table_has_its_place(name):
    text = bench.README.read_text(encoding="utf-8")
    changed = bench.marked(text, name, r"| \1 new |")
    assert r"| \1 new |" in changed and changed.count("<!--") == text.count("<!--")
    others = [other for other in bench.TABLES if other != name]
    for other in others:
        assert bench.marked(changed, other, "") == bench.marked(bench.marked(text, other, ""), name, r"| \1 new |")


def test_a_table_without_a_place_is_told():
    with pytest.raises(SystemExit, match="has no place for the table 'nosuch'"):
        bench.marked(bench.README.read_text(encoding="utf-8"), "nosuch", "")


def test_every_path_can_be_switched_off():
    ablation = importlib.import_module("benchmarks.ablation")
    assert ablation.SWITCHES.keys() == {path for _, path, *_ in ablation.ROWS}
    for replaced, by in ablation.SWITCHES.values():
        with mock.patch(replaced, by):  # refuses what does not exist
            pass


def test_rows_in_which_we_are_behind_say_so():
    from benchmarks.side_by_side import beside

    assert beside(1.0, 4.2, "never shown") == "4.2×"
    assert beside(2.0, 1.0, "since it is exact") == "0.50×, behind: since it is exact"
    assert beside(1.0, 0.97, "since it is exact") == "0.97×, within the spread"


def test_variants_of_recipes_are_recipes():
    from benchmarks import recipe_search
    from orthogonium.models import create_model
    from orthogonium.training import PRESETS, Recipe

    folder = bench.README.parent
    lists = [(PRESETS[recipe_search.PRESET], recipe_search.VARIANTS)]
    lists.append((PRESETS[recipe_search.PRESET], (folder / "recipe_epochs.txt").read_text()))
    lists.append((Recipe.read(folder / "earlier_recipe.json"), (folder / "recipe_variants.txt").read_text()))
    for base, variants in lists:
        assert base.model_options["widths"] == [48, 96, 192]
        for variant in variants.strip().splitlines():
            recipe = Recipe.from_dict(recipe_search.changed(variant, base.to_dict()))
            assert recipe != base
            create_model(recipe.model, (3, 32, 32), 10, **recipe.model_options)


def test_figures_are_of_the_tables_and_shown():
    from benchmarks import plots

    text = bench.README.read_text(encoding="utf-8")
    for name in ("kernels", "network", "matrices"):
        bars = getattr(plots, name)()
        assert bars and all(value > 0 for ratios in bars.values() for value in ratios.values())
        figure = (plots.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
        assert f"(figures/{name}.svg)" in text and len(figure) < 100_000
        assert all(label in figure for label in bars), "run `python -m benchmarks.plots`"


def test_ratios_are_read_from_cells():
    from benchmarks.plots import ratio

    assert ratio("4.2×") == 4.2 and ratio("CAYLEY: 0.81×, behind: 2 products more") == 0.81
    with pytest.raises(ValueError, match="no ratio"):
        ratio("")


def test_tables_say_how_far_times_differed(capsys):
    from benchmarks.side_by_side import fastest, table

    assert fastest([1.0, 1.5, 1.2]) == 1.0 and fastest([2.0, 2.2]) == 2.0
    table(["a"], [[1]], "2 calls")
    assert "The slowest of 2 calls took up to 50% longer than the fastest." in capsys.readouterr().out
    table(["a"], [[1]])
    assert "longer" not in capsys.readouterr().out
