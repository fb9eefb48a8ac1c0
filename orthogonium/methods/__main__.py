"""`python -m orthogonium.methods` prints the table of methods; with names of files, writes that of our own into them.

It stands between the lines `<!-- methods -->` and `<!-- end of methods -->`.
"""

import re
import sys
from pathlib import Path

from orthogonium.methods.table import BUILT_IN, METHODS, markdown_table


def written_into(text: str) -> str:
    """The text with the table in its place."""
    start, end = "<!-- methods -->\n", "<!-- end of methods -->"
    return re.sub(f"(?<={start}).*?(?={end})", lambda _: f"\n{markdown_table(BUILT_IN)}\n", text, flags=re.DOTALL)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(written_into(Path(name).read_text(encoding="utf-8")), encoding="utf-8")
    if not sys.argv[1:]:
        print(markdown_table(METHODS.values()), end="")
