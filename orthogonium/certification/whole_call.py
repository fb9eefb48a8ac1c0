"""Our functions that are bounded by a theorem about all of their operations. Note [As a whole] of `walk.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.utils import parametrize

from orthogonium.certification.rules.call import Call
from orthogonium.certification.steps import type_name
from orthogonium.certification.tracked import Tracked, plain
from orthogonium.layers.as_written import overridden

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
        """What rules for operators ask for, some of which have several outputs."""
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


def untouched(module: nn.Module) -> bool:
    """Whether all methods of a layer are our own, which its theorem is about. Note [As written]."""
    kind = parametrize.type_before_parametrizations(module)
    ours = next((parent for parent in kind.__mro__ if parent.__module__.startswith("orthogonium.")), None)
    return ours is not None and not overridden(module, ours)
