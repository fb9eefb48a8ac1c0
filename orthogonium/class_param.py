"""A constructor with some of its arguments already chosen, to be handed to model factories and `OrthoParams`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any


class ClassParam:
    """Partial application that prints readably and can be logged: `ClassParam(nn.Conv2d, bias=False)(3, 8, 3)`.

    Positional arguments of a call replace the first stored ones: `ClassParam(nn.LPPool2d, 2, 2)(1)` has norm 1 and
    kernel 2. Keywords of a call override stored ones. Without a constructor, every call returns an `nn.Identity`,
    whatever its arguments.

    >>> from torch import nn
    >>> conv = ClassParam(nn.Conv2d, 3, 8, bias=False)
    >>> str(conv)
    'Conv2d(3,8,bias=False)'
    >>> conv(4, kernel_size=1)
    Conv2d(4, 8, kernel_size=(1, 1), stride=(1, 1), bias=False)
    >>> conv.get_config(flatten=True)
    {'fct': 'Conv2d', 'args_0': '3', 'args_1': '8', 'bias': 'False'}
    """

    def __init__(self, fct: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> None:
        self.fct = fct
        self.args = args
        self.kwargs = kwargs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function with the stored arguments and the given ones."""
        if self.fct is None:
            from torch import nn  # here, so `orthogonium --help` need not wait for torch

            return nn.Identity()
        return self.fct(*args, *self.args[len(args) :], **{**self.kwargs, **kwargs})

    def get_config(self, flatten: bool = False) -> dict[str, Any]:
        """Name of the function and its stored arguments, as strings: grouped, or flat for a log."""
        positional = {f"args_{i}": value for i, value in enumerate(self.args)}
        if flatten:
            return flatten_config({"fct": _name(self.fct), **positional, **self.kwargs})
        return {"fct": _name(self.fct), "args": _describe(positional), "kwargs": _describe(self.kwargs)}

    def __str__(self) -> str:
        arguments = [str(value) for value in self.args] + [f"{key}={value}" for key, value in self.kwargs.items()]
        return f"{_name(self.fct)}({','.join(arguments)})"

    def __repr__(self) -> str:
        arguments = [repr(a) for a in self.args] + [f"{k}={v!r}" for k, v in self.kwargs.items()]
        return f"ClassParam({', '.join([_name(self.fct), *arguments])})"


def flatten_config(nested_config: Any, prepend_key: Sequence[str] = ()) -> dict[str, str]:
    """Flatten nested mappings, lists and `ClassParam`s into strings: keys are paths, list entries are `args_0`, ….

    >>> flatten_config({"lr": 0.1, "conv": {"kernel": [3, 3]}})
    {'lr': '0.1', 'conv/kernel/args_0': '3', 'conv/kernel/args_1': '3'}
    """
    nested = _describe(nested_config)
    if isinstance(nested, list):
        nested = {f"args_{i}": value for i, value in enumerate(nested)}
    if not isinstance(nested, dict):
        return {"/".join(prepend_key): nested}
    return {k: v for key, value in nested.items() for k, v in flatten_config(value, [*prepend_key, str(key)]).items()}


def _name(fct: Callable[..., Any] | None) -> str:
    return "Identity" if fct is None else getattr(fct, "__name__", None) or repr(fct)


def _describe(value: Any) -> Any:
    """Values as strings, within the same lists and mappings."""
    if isinstance(value, ClassParam):
        return value.get_config(flatten=True)
    if isinstance(value, Mapping):
        return {key: _describe(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_describe(entry) for entry in value]
    return getattr(value, "__name__", None) or str(value)
