"""Sees to it that nothing reads a value behind the back of the walk.

Note [Unseen operations]
Functions compiled by `torch.jit.script`, `torch.vmap`, `torch.tensor(x)`, `x.as_subclass(Tensor)` and the like do not pass
through `__torch_function__`: what they return would count as a constant, and the bound would be too small. But every
operator passes through torch's dispatcher. There, an operator on the memory of a tracked tensor that is not part of a
call which the walk has taken over (these run with torch functions switched off) is such a case.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from orthogonium.certification.failures import TraceError
from orthogonium.certification.tracking import Tracked, tensors


class Watch(TorchDispatchMode):
    """Raises `TraceError` on operators the walk does not see. Note [Unseen operations]."""

    def __init__(self, walker: Any) -> None:
        super().__init__()
        self.walker = walker

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run `func`, if it may."""
        kwargs = kwargs or {}
        if torch._C._is_torch_function_enabled() and any(self._holds_value(t) for t in tensors((args, kwargs))):
            self.walker.lost = TraceError(
                f"{self.walker.place} computes {func} with a value of the model in a way that cannot be followed: by "
                "torch.jit, torch.vmap, torch.tensor(x) or a tensor type of its own. Call torch functions on x itself."
            )
            raise self.walker.lost
        return func(*args, **kwargs)

    def _holds_value(self, t: Tensor) -> bool:
        return isinstance(t, Tracked) or memory_of(t) in self.walker.memory


def memory_of(t: Tensor) -> int | None:
    """Address of the memory of a tensor, None where there is none."""
    if t.layout is not torch.strided or t.device.type == "meta":
        return None
    try:
        with torch._C.DisableTorchFunctionSubclass():
            return t.untyped_storage().data_ptr() or None
    except RuntimeError:  # a wrapper of torch.func
        return None


def unwatched() -> AbstractContextManager[Any]:
    """While the walk itself computes: thousands of small operators, which need no look."""
    return _disable_current_modes()


@contextmanager
def watched(walker: Any) -> Iterator[None]:
    """While a model is walked: watched, and with what `torch.compile` made running as it was written."""
    stance = getattr(torch.compiler, "set_stance", None)  # since torch 2.6
    with nullcontext() if stance is None else stance("force_eager"), Watch(walker):
        yield
