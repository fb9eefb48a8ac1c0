"""Files of the repository as pages of the site: one whose metadata say `repository_file: CHANGELOG.md` shows it.

Their links are meant for readers of the repository. Those to pages of the site lead there, all others to the
repository; figures are copied. Other pages name tables of `benchmarks/README.md` that they show:
`<!-- benchmark network -->`.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://github.com/deel-ai/orthogonium/blob/main/"
_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")


def linked(text: str, place: str, shown: dict[str, str]) -> str:
    """The text of the file at `place`, with links as the site has them; `shown` are pages for files outside of docs."""

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(place), found[1]))
        if target.startswith("docs/") and target.endswith(".md"):
            return f"]({target.removeprefix('docs/')}{found[2] or ''})"
        return f"]({shown.get(target, REPOSITORY + target)}{found[2] or ''})"

    return _LINK.sub(link, text)


FIGURES = {f"benchmarks/figures/{path.name}": path for path in (ROOT / "benchmarks" / "figures").glob("*.svg")}
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "benchmarks/README.md": "benchmarks.md"}
SHOWN = PAGES | {place: place for place in FIGURES}


def with_benchmarks(text: str) -> str:
    """Each line `<!-- benchmark NAME -->` gives its place to the table of this name in `benchmarks/README.md`."""
    measured = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")

    def table(found: re.Match[str]) -> str:
        name = found[1]
        start, end = f"<!-- table {name} -->", f"<!-- end {name} -->"
        if measured.count(start) != 1 or measured.count(end) != 1:
            raise ValueError(f"benchmarks/README.md has no table {name!r}.")
        return measured.partition(start)[2].partition(end)[0].strip()

    return re.sub(r"<!-- benchmark (\S+) -->", table, text)


def on_files(files: Any, config: Any) -> Any:
    """The figures of `benchmarks/README.md`, at the same place of the site."""
    from mkdocs.structure.files import File

    for place, path in FIGURES.items():
        files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The file instead of the page, tables instead of their names."""
    place = page.meta.get("repository_file")
    return linked((ROOT / place).read_text(encoding="utf-8"), place, SHOWN) if place else with_benchmarks(markdown)
