"""Arguments that go by two names."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from orthogonium.errors import ParameterError

Constructor = TypeVar("Constructor", bound=Callable[..., None])


def also_named(**names: str) -> Callable[[Constructor], Constructor]:
    """For constructors: `also_named(in_channels="cin")` accepts `in_channels=…` in the place of `cin=…`."""

    def decorate(init: Constructor) -> Constructor:
        @functools.wraps(init)
        def accept(self: object, *args: Any, **kwargs: Any) -> None:
            for other, name in names.items():
                if other in kwargs:
                    if name in kwargs:
                        raise ParameterError(
                            f"{type(self).__name__}: {name} and {other} are two names of one argument. Give one of "
                            "them."
                        )
                    kwargs[name] = kwargs.pop(other)
            init(self, *args, **kwargs)

        accept.other_names = names  # type: ignore[attr-defined]
        return accept  # type: ignore[return-value]

    return decorate


def argument_names(cls: Callable[..., object]) -> set[str]:
    """All names that the arguments of a class go by."""
    return {*inspect.signature(cls).parameters, *getattr(getattr(cls, "__init__", None), "other_names", ())}
