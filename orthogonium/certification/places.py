"""Which module of a model is running."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from orthogonium.layers.parametrization import Constraint


class Places:
    """Which module is running, found by hooks on all modules that run before and after their own."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.names: dict[int, str] = {}
        for name, module in model.named_modules(remove_duplicate=False):
            self.names.setdefault(id(module), name)
        self.running: list[nn.Module] = []
        self.failed = ""  # the innermost module that raised

    @property
    def place(self) -> str:
        """Name of the module that is running."""
        return self.names[id(self.running[-1])] or "(model)" if self.running else "(model)"

    @contextmanager
    def followed(
        self, entered: Callable[..., None] | None = None, left: Callable[..., None] | None = None
    ) -> Iterator[None]:
        """Context for a run of the model; `left(module, args, output)` is called before a module is left."""

        def enter(module: nn.Module, args: Any) -> None:
            self.running.append(module)
            if entered is not None:
                entered()

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            if output is None:
                self.failed = self.failed or self.place
            elif left is not None:
                left(module, args, output)
            self.running.pop()

        hooks = []
        for module in self.model.modules():
            if not isinstance(module, (torch.jit.ScriptModule, Constraint, parametrize.ParametrizationList)):
                hooks.append(module.register_forward_pre_hook(enter, prepend=True))
                hooks.append(module.register_forward_hook(leave, always_call=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def as_written() -> AbstractContextManager[Any]:
    """Context in which code compiled by `torch.compile` runs as it was written."""
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance
