"""The application: its commands, and what becomes of errors.

Commands import what they need when they run, so `--help` does not wait for torch.

Note [One line]
What the user can fix (arguments, files, missing packages) is reported in one line on standard error, with exit code 2.
Anything else is a bug and keeps its traceback. Exit code 1 means that a certificate was broken, 130 that the command
was interrupted.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import Annotated, cast

import typer

from orthogonium import __version__
from orthogonium.cli import attacking, auditing, certifying, comparing, demo, exporting, listing, reporting, training
from orthogonium.errors import OrthogoniumError

app = typer.Typer(
    name="orthogonium",
    help="Train, certify, attack and export 1-Lipschitz networks. Begin with [bold]orthogonium demo[/bold].",
    epilog="CHECKPOINT is a file, the folder of a run, or the name of a pretrained model (`orthogonium models`).",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo)
app.command("train")(training.train)
app.command("compare")(comparing.compare)
app.command("certify")(certifying.certify)
app.command("audit")(auditing.audit)
app.command("attack")(attacking.attack)
app.command("report")(reporting.report)
app.command("export")(exporting.export)
app.command("models")(listing.models)
app.command("methods")(listing.methods)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"orthogonium {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


# of typer's own copy of click, or of click itself before typer had one
_USAGE_ERROR = cast(type[Exception], typer.BadParameter.__mro__[2])


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. Note [One line]."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    empty = _find_empty(arguments)
    if empty is not None:
        return _complain(f"{empty} is empty: give a value, or leave it out.")
    try:
        result = app(list(arguments), prog_name="orthogonium", standalone_mode=False)
        sys.stdout.flush()
    except _USAGE_ERROR as error:
        message = error.format_message()  # type: ignore[attr-defined]
        if not message:  # no command: the help was shown
            return 2
        return _complain(f"{message.rstrip('.')}. Try `{_path(error, arguments)} --help`.")
    except (OrthogoniumError, ModuleNotFoundError) as error:
        return _complain(str(error))
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    return result if isinstance(result, int) else 0


def _find_empty(arguments: Sequence[str]) -> str | None:
    """The argument without a value, as from a shell variable that is not set: it has no meaning for any command."""
    for before, argument in zip(("", *arguments), arguments, strict=False):
        if re.fullmatch(r"--[\w-]+=\s*", argument):
            return argument.partition("=")[0]
        if not argument.strip():
            return f"The value of {before}" if before.startswith("-") else "An argument"
    return None


def _called(arguments: Sequence[str]) -> str | None:
    """The name of the command."""
    return next((a for a in arguments if a in {command.name for command in app.registered_commands}), None)


def _path(error: BaseException, arguments: Sequence[str]) -> str:
    context = getattr(error, "ctx", None)
    return context.command_path if context is not None else f"orthogonium {_called(arguments)}"


def _complain(message: str) -> int:
    print(f"orthogonium: {' '.join(message.split())}", file=sys.stderr)
    return 2
