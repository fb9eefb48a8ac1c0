import re
from pathlib import Path

import orthogonium

ROOT = Path(__file__).parents[1]


def test_the_version_is_the_newest_release_of_the_changelog():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d$", changelog, re.MULTILINE)
    numbers = [tuple(map(int, release.split("."))) for release in releases]
    assert releases[0] == orthogonium.__version__ and numbers == sorted(numbers, reverse=True) and len(numbers) > 1


def test_the_version_is_stated_once():
    """In `orthogonium/__init__.py`, which the build reads."""
    for file in ("pyproject.toml", "CITATION.cff"):
        assert not re.search(r'^version\s*[:=]\s*"?\d', (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
