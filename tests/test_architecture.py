"""The import arrows between packages only point one way."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "orthogonium"
EVERYWHERE = {"errors", "class_param", "annotations", "web_page"}
# package or module → packages it may import (itself always); the thin published paths sit beside what they serve
ALLOWED = {
    "errors": set(),
    "class_param": set(),
    "annotations": set(),
    "web_page": set(),
    "linalg": set(),
    "reparametrizers": {"linalg"},
    "kernels": {"linalg"},
    "methods": {"kernels", "linalg"},
    "spectral": set(),
    "legacy": set(),
    "layers": {"methods", "kernels", "linalg", "spectral"},
    "certification": {"spectral", "layers", "methods"},
    "losses": {"certification", "layers"},
    "metrics": {"certification"},
    "testing": {"attacks", "layers", "methods", "spectral", "certification"},
    "models": {"layers", "methods", "linalg"},
    "model_factory": {"models", "layers", "linalg"},
    "published": {"kernels", "spectral"},
    "data": set(),
    "recipes": {"losses"},
    "attacks": {"certification"},
    "report": {"attacks", "certification", "spectral"},
}
UNRESTRICTED = {"training", "cli", "__main__", "__init__"}


def imports(path: Path) -> set[str]:
    """Top-level parts of orthogonium that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("orthogonium"):
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("orthogonium.")}
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_import_arrows(path):
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if part in UNRESTRICTED:
        return
    assert part in ALLOWED, f"{part} has no line in the table of import arrows"
    assert imports(path) <= ALLOWED[part] | EVERYWHERE | {part}
