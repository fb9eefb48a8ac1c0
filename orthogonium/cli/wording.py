"""Errors of the library in the words of a command.

The library writes its arguments as `name=value`; who types commands knows them as `--name value`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# argument of the library → parameter of the command, where they differ
RENAMED = {
    "max_minutes": "minutes",
    "patience": "early_stop",
    "radii": "eps",
    "model_options": "model_option",
    "loss_options": "loss_option",
    "optimizer_options": "optimizer_option",
    "out_dir": "out",
    "num_workers": "workers",
    "num_nodes": "nodes",
}
_ARGUMENT = re.compile(r"""(?<![\w/.-])([a-z_]+)=('[^']*'|"[^"]*"|\[[^]]*\]|[\w./+-]*\w)?""")


def in_options(message: str, flags: Mapping[str, str], switches: frozenset[str] = frozenset()) -> str:
    """The message with `name=value` as the option of a command.

    Args:
        message: of an error of the library.
        flags: parameter of the command → its flag.
        switches: parameters that take no value.

    >>> from orthogonium.cli.wording import in_options
    >>> in_options("patience=2 needs other=3 and root= beside.", {"early_stop": "--early-stop", "root": "--root"})
    '--early-stop 2 needs other=3 and --root beside.'
    """

    def replace(found: re.Match[str]) -> str:
        name = RENAMED.get(found[1], found[1])
        if name not in flags:
            return found[0]
        value = (found[2] or "").strip("'\"")
        if not value or name in switches:
            return flags[name]
        return f"{flags[name]} {'0' if value == 'None' else value}"  # 0 turns a limit off

    return _ARGUMENT.sub(replace, message)
