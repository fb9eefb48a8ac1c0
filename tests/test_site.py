"""The site shows what the library has: every public name is on a page of the reference, under its own name."""

import importlib.util
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import orthogonium

DOCS = Path(__file__).parents[1] / "docs"
PUBLIC = ["orthogonium"] + [f"orthogonium.{found.name}" for found in pkgutil.iter_modules(orthogonium.__path__)]


def _object(path):
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _paths():
    return [path for page in DOCS.glob("reference/*.md") for path in re.findall(r"^::: (\S+)$", page.read_text(), re.M)]


@pytest.fixture(scope="module")
def entries():
    """Names and objects that the reference shows."""
    paths = _paths()
    assert len(paths) == len(set(paths)), "shown twice"
    return {(path.rpartition(".")[2], id(_object(path))) for path in paths}


@pytest.mark.parametrize("place", PUBLIC)
def test_every_public_name_is_on_a_page(place, entries):
    module = importlib.import_module(place)
    names = [name for name in getattr(module, "__all__", []) if not name.startswith("__")]
    missing = [name for name in names if (name, id(getattr(module, name))) not in entries]
    assert not missing, f"each needs a line `::: {place}.NAME` on its page of docs/reference: {missing}"


def test_every_error_is_on_a_page(entries):
    from orthogonium import errors

    own = [name for name, value in vars(errors).items() if isinstance(value, type)]
    assert own and not [name for name in own if (name, id(getattr(errors, name))) not in entries]


def test_no_entry_is_hidden_by_a_module_of_its_name():
    """mkdocstrings reads files: `orthogonium.layers.freeze` is a file, `….freeze.freeze` the function."""
    folder = Path(orthogonium.__file__).parents[1]
    assert not [path for path in _paths() if folder.joinpath(*path.split(".")).with_suffix(".py").exists()]


def test_the_reference_does_not_cite_notes_of_the_source():
    """Readers of the site do not have them."""

    def texts(shown):
        members = [value for name, value in vars(shown).items() if not name.startswith("_") and name != "forward"]
        for found in [shown, *(members if isinstance(shown, type) else [])]:
            yield inspect.getdoc(getattr(found, "__func__", found)) or ""

    shown = [(path, _object(path)) for path in _paths()]
    documented = [(path, entry) for path, entry in shown if isinstance(entry, type) or inspect.isfunction(entry)]
    assert not [path for path, entry in documented if any("Note [" in text for text in texts(entry))]


def _tool(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / "tools" / f"{name}.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def test_examples_of_docstrings_are_fenced():
    fenced = _tool("shown").fenced
    assert fenced("Adds.\n>>> 1 + 1\n2\n\nMore.") == "Adds.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nMore."
    assert fenced("a > b\n\n    >>> f(\n    ... )") == "a > b\n\n    ```pycon\n    >>> f(\n    ... )\n    ```"


def test_every_method_has_a_page_with_its_facts():
    tool = _tool("method_pages")
    assert {page.stem for page in DOCS.glob("methods/*.md")} == {method.name for method in tool.BUILT_IN}
    for path, text in tool.pages().items():
        assert "<!-- facts -->\n\n| " in text and path.read_text(encoding="utf-8") == text, f"{path}: run `make tables`"
    rows = tool.overview().splitlines()
    assert len(rows) == len(tool.BUILT_IN) + 2 and len({row.count("|") for row in rows}) == 1


def test_every_method_page_says_formula_guarantee_use_and_reference():
    for page in DOCS.glob("methods/*.md"):
        headings = re.findall(r"^## (.*)$", page.read_text(encoding="utf-8"), re.M)
        assert headings == ["Formula", "Guarantee", "When to use it", "Reference"], page


def test_every_page_is_in_the_navigation():
    navigation = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    pages = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
    assert not [page for page in pages if not re.search(rf"[ :]{re.escape(page)}$", navigation, re.M)]


def test_links_of_repository_files_lead_to_pages_or_to_the_repository():
    tool = _tool("repository_pages")
    text = "[a](../docs/gpu.md#why) [b](network.py) [c](https://x.org) [d](../CHANGELOG.md)"
    found = tool.linked(text, "benchmarks/README.md", tool.SHOWN)
    assert found == f"[a](gpu.md#why) [b]({tool.REPOSITORY}benchmarks/network.py) [c](https://x.org) [d](changelog.md)"


def test_tables_of_benchmarks_are_shown_by_name():
    tool = _tool("repository_pages")
    assert "| 64 → 64 |" in tool.with_benchmarks("<!-- benchmark kernel_build -->")
    with pytest.raises(ValueError, match="no table 'none'"):
        tool.with_benchmarks("<!-- benchmark none -->")


def test_cells_with_sentences_are_marked_and_long_code_may_break():
    cells = _tool("cells").cells
    assert cells("<td>1.5 ms</td>") == "<td>1.5 ms</td>"
    long = cells("<td>a <code>torch.nn.functional.conv2d</code> <code>a.b</code></td>")
    assert long == '<td class="long">a <code>torch.<wbr>nn.<wbr>functional.<wbr>conv2d</code> <code>a.b</code></td>'
