"""docs/architecture.md tells the truth: its table of packages is what the code imports, and its paths exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "orthogonium"
PLAN = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
EVERYWHERE = {"errors", "class_param", "annotations", "web_page"}


def names(text: str) -> list[str]:
    """What stands in backticks, outside of blocks of code."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))


# room → rooms it may import, in the order of the table
ROOMS = {
    name: set(names(allowed))
    for name, allowed in re.findall(r"^\| `(\w+)` \|.*\|([^|]*)\|$", PLAN.split("## Data flow")[0], re.MULTILINE)
}
PARTS = {p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()}


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Top-level parts of orthogonium that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively, which this test cannot read"
            modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            continue
        parts = [module.split(".") for module in modules if module and module.startswith("orthogonium.")]
        found |= {names[1] for names in parts if names[1] in PARTS}
    return found


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_import_arrows(path):
    part = room(path)
    if part in ("__init__", "__main__"):
        return
    allowed = set() if part in EVERYWHERE else ROOMS[part] | EVERYWHERE
    assert imports(path) <= allowed | {part}


def test_the_table_has_every_room_and_no_arrow_too_many():
    assert ROOMS.keys() == PARTS - EVERYWHERE - {"__init__", "__main__"}
    for part, allowed in ROOMS.items():
        used = set().union(*(imports(path) for path in FILES if room(path) == part))
        assert allowed <= used, f"{part} imports no {allowed - used}"


def test_arrows_point_upwards():
    order = list(ROOMS)
    for part, allowed in ROOMS.items():
        assert allowed <= set(order[: order.index(part)]), part


PATHS = sorted({name for name in names(PLAN) if re.fullmatch(r"[\w/]+(/|\.py|\.md)", name)})


@pytest.mark.parametrize("path", PATHS)
def test_paths_of_the_plan_exist(path):
    assert any((place / path).exists() for place in (PACKAGE, ROOT))


def test_the_plan_was_read():
    """That a table or a path which cannot be read is not passed over."""
    assert {"methods", "layers", "cli"} <= ROOMS.keys() and {"methods/table.py", "errors.py", "data/"} <= set(PATHS)


def test_contributing_names_every_package():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    packages = {part for part in ROOMS if (PACKAGE / part).is_dir()}
    assert packages <= set(names(text))
