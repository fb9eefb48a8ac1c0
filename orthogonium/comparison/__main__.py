"""One run of a comparison, in a process of its own: `python -m orthogonium.comparison FOLDER`."""

import sys
from pathlib import Path

from orthogonium.comparison.contest import main

main(Path(sys.argv[1]))
