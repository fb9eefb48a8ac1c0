"""The `orthogonium` command. Needs the extra `[train]`."""

from __future__ import annotations

import sys

from orthogonium.errors import lacking


def main() -> None:
    """Run the command with the arguments of the process, and leave with its exit code."""
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ModuleNotFoundError as error:
        print(f"orthogonium: {lacking(f'the command needs {error.name}')}", file=sys.stderr)
        sys.exit(2)
    from orthogonium.cli.app import run

    sys.exit(run())
