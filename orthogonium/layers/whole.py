"""Functions that certificates treat as a whole, because their single operations give a weaker bound than the theorem.

`cat(max(a, b), min(a, b))` moves no two points apart, but max and min have the constant 1 each, and so √2 side by
side. So such functions are marked, and a tensor that is followed through a network (`Followed`, see
`orthogonium.certification`) may take the whole function instead of its operations. For any other tensor the mark does
nothing.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

Fn = TypeVar("Fn", bound=Callable[..., Any])


class Followed(Tensor):
    """A tensor that stands for all its possible values."""

    def take_whole(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """The result of `fn(*args)`, or NotImplemented to go through its operations."""
        return NotImplemented


def as_a_whole(fn: Fn) -> Fn:
    """Mark a function of tensors (or a `forward`) as one that is bounded as a whole."""
    signature = inspect.signature(fn)

    @functools.wraps(fn)
    def taken(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            args = signature.bind(*args, **kwargs).args
        for x in args:
            if isinstance(x, Followed):
                result = x.take_whole(taken, args)
                return fn(*args) if result is NotImplemented else result
        return fn(*args)

    return taken  # type: ignore[return-value]
