"""`python docs/tools/method_pages.py` writes what `METHODS` knows into the pages of methods, `overview` and `choosing`.

Facts stand between `<!-- facts -->` and `<!-- end of facts -->`. The rest is written by hand; its line "In short: …" is
the last column of the table.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from orthogonium.layers.lipschitz import layer_class
from orthogonium.methods import Method
from orthogonium.methods.table import BUILT_IN

DOCS = Path(__file__).parents[1]
_SHORT = re.compile(r"^In short: (.*)\.$", re.MULTILINE)


def page_of(method: Method) -> Path:
    """The page of a method."""
    return DOCS / "methods" / f"{method.name}.md"


def geometry(method: Method) -> str:
    """What its convolutions take, in words."""
    named = {"stride": method.stride, "dilation": method.dilation, "groups": method.groups}
    has = [name for name, there in named.items() if there]
    has += ["transposed"] if method.conv_transpose else []
    has += ["as many outputs as inputs"] if method.square else ["channel change"]
    return ", ".join(has)


def exactness(method: Method) -> str:
    """What is promised, in a word or two."""
    return "orthogonal" if method.guarantee == "orthogonal" else "1-Lipschitz"


def facts(method: Method) -> str:
    """A table of what the library knows about a method."""
    layers = list(dict.fromkeys(layer_class(layer).__name__ for layer in method.layers))
    rows = [
        ("guarantee", exactness(method)),
        ("padding", method.padding),
        ("geometry", geometry(method)),
        ("activation", "inside the layer" if method.activated else "yours, after the layer"),
        ("cost of a 3×3 kernel of c channels", f"{method.cost}"),
        ("layers", ", ".join(f"`{name}`" for name in layers)),
        ("paper", method.paper),
    ]
    return table(("", ""), rows)


def choice() -> str:
    """The table of all methods: exactness, padding, geometry, cost, when."""
    rows = []
    for m in BUILT_IN:
        found = _SHORT.search(page_of(m).read_text(encoding="utf-8"))
        assert found, f"{page_of(m)} has no line 'In short: ….'"
        exact = exactness(m) + (", activation inside" if m.activated else "")
        rows.append((f"[`{m.name}`](methods/{m.name}.md)", exact, m.padding, geometry(m), m.cost, found[1]))
    return table(("method", "exactness", "holds with", "geometry", "cost (3×3)", "when"), rows)


def overview() -> str:
    """What each method supports; "activation" marks layers that contain theirs."""
    header = "method paper guarantee padding stride dilation groups transposed 1-D 3-D dense activation".split()
    rows = []
    for m in BUILT_IN:
        marks = (m.stride, m.dilation, m.groups, m.conv_transpose, 1 in m.conv, 3 in m.conv, m.linear, m.activated)
        rows.append([f"`{m.name}`", m.paper, exactness(m), m.padding, *("✓" if x else "" for x in marks), m.cost])
    return table([*header, "cost (3×3)"], rows)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *rows])


def written(text: str, table: str) -> str:
    """The text with the table in its place."""
    return re.sub(
        r"(?<=<!-- facts -->\n).*?(?=<!-- end of facts -->)", lambda _: f"\n{table}\n\n", text, flags=re.DOTALL
    )


def pages() -> dict[Path, str]:
    """All pages as they should be."""
    tables = {page_of(m): facts(m) for m in BUILT_IN}
    tables |= {DOCS / "choosing.md": choice(), DOCS / "overview.md": overview()}
    return {path: written(path.read_text(encoding="utf-8"), table) for path, table in tables.items()}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
