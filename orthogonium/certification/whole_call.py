"""Functions of ours that are bounded by a theorem about all of their operations. Note [As a whole] of `walk.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from orthogonium.certification.rules.call import Call
from orthogonium.certification.steps import type_name
from orthogonium.certification.tracked import Tracked, plain

if TYPE_CHECKING:
    from orthogonium.certification.walk import Walk


class WholeCall:
    """A call of a function that is taken as a whole: what `rules.call.Call` is for operators."""

    def __init__(self, walk: Walk, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.walk, self.fn, self.args = walk, fn, args
        self.kwargs: dict[str, Any] = {}
        self.name = type_name(args[0]) if isinstance(args[0], nn.Module) else fn.__name__
        self.output: Tensor = fn(*plain(args))

    @property
    def first_output(self) -> Tensor:
        """The output."""
        return self.output

    @property
    def operands(self) -> list[Tracked]:
        """The arguments that depend on the input."""
        return [t for t in self.args if isinstance(t, Tracked) and not t.constant]

    together = Call.together
    merged = Call.merged
    check_places = Call.check_places
    rounded = Call.rounded
    broadcast = Call.broadcast


_SETTINGS = {"__init__", "extra_repr", "__repr__", "__doc__", "__module__", "__qualname__", "__annotations__"}
_SETTINGS |= {"__static_attributes__", "__firstlineno__", "__parameters__", "__orig_bases__"}


def untouched(module: nn.Module) -> bool:
    """Whether all methods of a layer are those of ours that its theorem is about."""
    kind = parametrize.type_before_parametrizations(module)
    if any(callable(value) and hasattr(kind, name) for name, value in vars(module).items()):
        return False
    for parent in kind.__mro__:
        if parent.__module__.startswith("orthogonium."):
            return all(
                not hasattr(parent, name)
                for child in kind.__mro__[: kind.__mro__.index(parent)]
                for name in set(vars(child)) - _SETTINGS
            )
    return False
