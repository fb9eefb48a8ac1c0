"""What a wheel would carry, by the rules of pyproject.toml; `make release-check` builds and tries one."""

import fnmatch
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "orthogonium"


@pytest.fixture(scope="module")
def project():
    tomllib = pytest.importorskip("tomllib")
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def files():
    return [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def test_every_file_is_code_of_a_package_or_named_as_data(project):
    patterns = project["tool"]["setuptools"]["package-data"]["orthogonium"]
    data = [str(path.relative_to(PACKAGE)) for path in files() if path.suffix != ".py"]
    assert not [name for name in data if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
    assert all(fnmatch.filter(data, pattern) for pattern in patterns), "a pattern without a file"
    folders = {path.parent for path in files() if path.suffix == ".py"}
    assert not [folder for folder in folders if not (folder / "__init__.py").is_file()], "a folder that is no package"


def test_licence_readme_and_command_are_there(project):
    names = [*project["project"]["license-files"], project["project"]["readme"]]
    names += re.findall(r"[\w.-]+", (ROOT / "MANIFEST.in").read_text().splitlines()[0])[1:]
    assert all((ROOT / name).is_file() for name in names)
    module, _, function = project["project"]["scripts"]["orthogonium"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_advice_to_install_names_extras_that_exist_and_a_clone(project):
    """`pip install orthogonium[…]` brings the release that is on PyPI, which is older."""
    texts = [path for path in files() if path.suffix == ".py"] + [*ROOT.glob("docs/**/*.md"), ROOT / "README.md"]
    read = {path: path.read_text(encoding="utf-8") for path in texts}
    assert not [path for path, text in read.items() if re.search(r"install\s+\S*orthogonium\[", text)]
    extras = project["project"]["optional-dependencies"].keys()
    named = {
        name for text in read.values() for names in re.findall(r"'\.\[([\w,]+)\]'", text) for name in names.split(",")
    }
    assert {"train", "attack", "hub"} <= named <= extras
