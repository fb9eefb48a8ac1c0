"""A constructor with some of its arguments already chosen, to be handed to model factories and `OrthoParams`."""

from collections.abc import Callable
from typing import Any


class ClassParam:
    """Partial application that a reader can print: `ClassParam(nn.Conv2d, bias=False)(3, 8, 3)`.

    Arguments given at the call come after the stored positional ones and win over stored keywords.
    """

    def __init__(self, fct: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self.fct = fct
        self.args = args
        self.kwargs = kwargs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the stored function."""
        return self.fct(*self.args, *args, **{**self.kwargs, **kwargs})

    def __repr__(self) -> str:
        name = getattr(self.fct, "__name__", repr(self.fct))
        arguments = [repr(a) for a in self.args] + [f"{k}={v!r}" for k, v in self.kwargs.items()]
        return f"ClassParam({', '.join([name, *arguments])})"
