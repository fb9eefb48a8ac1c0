"""Arguments that go by two names."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from orthogonium.errors import ParameterError

Constructor = TypeVar("Constructor", bound=Callable[..., None])


def also_named(**names: str) -> Callable[[Constructor], Constructor]:
    """For constructors: `also_named(in_channels="cin")` accepts `in_channels=…` in place of `cin=…`."""

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
    """All names that the arguments of a class go by, including those of its bases where `**kwargs` are passed on."""
    names: set[str] = set(getattr(getattr(cls, "__init__", None), "other_names", ()))
    makers = (
        [vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base)] if isinstance(cls, type) else [cls]
    )
    for make in makers:
        parameters = inspect.signature(make).parameters.values()
        names.update(p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return names - {"self"}
