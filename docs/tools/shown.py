"""What mkdocstrings shows of our code: examples as blocks of code, and functions that are made by functions.

Our docstrings end in `>>>` lines without a heading, which Markdown would take for nested quotations. Before one is
parsed, each run of them, up to the next blank line, is put into a fence.

Layers by the name of their method (`LipschitzConv2d = _convolution(2, …)`) are functions whose source shows neither
arguments nor docstring: these are read from the function itself.
"""

import inspect
import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^(?P<indent>[ ]*)>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


def fenced(text: str) -> str:
    """The text with its examples in fences, each a paragraph of its own."""

    def fence(found: re.Match[str]) -> str:
        indent = found["indent"]
        before = "" if found.start() == 0 or text[: found.start()].endswith("\n\n") else "\n"
        return f"{before}{indent}```pycon\n{found[0]}\n{indent}```"

    return _EXAMPLE.sub(fence, text)


_KINDS = {kind: griffe.ParameterKind(kind.description) for kind in inspect._ParameterKind}


def as_function(name: str, function: Any) -> griffe.Function:
    """A function that no `def` of this name has made."""
    parameters = [
        griffe.Parameter(
            p.name,
            annotation=str(p.annotation),
            kind=_KINDS[p.kind],
            default=None if p.default is p.empty else repr(p.default),
        )
        for p in inspect.signature(function).parameters.values()
    ]
    returns = str(inspect.signature(function).return_annotation)
    return griffe.Function(name, parameters=griffe.Parameters(*parameters), returns=returns)


class Shown(griffe.Extension):
    """Puts the examples of every docstring into fences, and shows made functions as functions."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring before mkdocstrings parses it."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)

    def on_module_members(self, *, mod: griffe.Module, **_: Any) -> None:
        """Replace attributes that are functions."""
        for name, member in list(mod.members.items()):
            if name.startswith("_") or not isinstance(member, griffe.Attribute):
                continue
            if not isinstance(member.value, griffe.ExprCall):
                continue
            function = griffe.dynamic_import(f"{mod.path}.{name}")
            if inspect.isfunction(function):
                shown = as_function(name, function)
                shown.lineno, shown.endlineno = member.lineno, member.endlineno
                shown.docstring = griffe.Docstring(fenced(inspect.getdoc(function) or ""), parent=shown)
                mod.set_member(name, shown)
