"""`build_together`: each call of a model builds its equal weights in one batch, before it begins.

Note [Recomputation]
Activation checkpoints run parts of a call once more, in the backward pass. Non-reentrant torch checkpoints compare what
is saved for derivatives the second time with the first, so they must find the same weights again; reentrant ones first
ran without gradients, and now need weights with a graph of their own, which they get by building as usual.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor, nn

from orthogonium.building.builds import Supply, batches, build, go_along_axes, state, unsupplied
from orthogonium.layers.parametrization import Source
from orthogonium.linalg.evaluation import has_values


class _Weight(Supply):
    """A weight for one call of a model."""

    def __init__(self, source: Source, weight: Tensor, along_axes: bool) -> None:
        super().__init__(source, weight, along_axes)
        self.states = [state(p) for p in self.raw]
        self.has_graph = False  # whether it was used in one

    def __call__(self, raw: tuple[Tensor, ...]) -> Tensor | None:
        if torch.compiler.is_compiling():
            return None  # parts that are compiled build as usual
        if not self.is_of(raw) or [state(p) for p in raw] != self.states or self.constraint.lipschitz != self.lipschitz:
            return None
        if self.has_other_values():
            return None
        if torch.is_grad_enabled() and not self.weight.requires_grad and any(p.requires_grad for p in raw):
            return None  # the call began without gradients: this weight has no graph
        if self.is_open:
            self.has_graph |= torch.is_grad_enabled()
            return self.weight
        is_recomputed = self.has_graph and torch._C._current_graph_task_id() != -1  # Note [Recomputation]
        return self.weight if is_recomputed else None


class BuildTogether:
    """The hooks of `build_together` on a model."""

    def __init__(self, model: nn.Module) -> None:
        self._calls = threading.local()
        self._hooks = (
            model.register_forward_pre_hook(self._begin),
            model.register_forward_hook(self._end, always_call=True),
        )

    def remove(self) -> None:
        """Let the layers build their weights themselves again."""
        for hook in self._hooks:
            hook.remove()
        self._close(self._stack)  # if a call is under way, its end will not be heard of

    def _begin(self, model: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        # Torch says nothing of the end of a call that was interrupted (KeyboardInterrupt): its weights are not for this
        # one. A call inside of a call also builds its own.
        self._close(self._stack)
        supplies: list[Supply] = []
        self._stack.append(supplies)
        weights = [(c, raw) for c, raw in unsupplied(model) if has_values(*raw) and not c.keeps(raw)]
        weights = [weights[i] for places in batches(weights) if len(places) > 1 for i in places]
        along_axes = [go_along_axes(source) for source in weights]
        for source, weight, axes in zip(weights, build(weights, along_axes), along_axes, strict=True):
            supplies.append(_Weight(source, weight, axes))
            source[0].supply = supplies[-1]

    def _end(self, model: nn.Module, args: Any, output: Any) -> None:
        if not torch.compiler.is_compiling() and self._stack:
            self._close([self._stack.pop()])

    @property
    def _stack(self) -> list[list[Supply]]:
        """The weights of the calls that are under way in this thread."""
        return self._calls.__dict__.setdefault("stack", [])

    @staticmethod
    def _close(calls: list[list[Supply]]) -> None:
        for supplies in calls:
            for supply in supplies:
                supply.is_open = False
            supplies.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {"_hooks": self._hooks}  # copies of the model have calls of their own

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _calls=threading.local())


def build_together(model: nn.Module) -> BuildTogether:
    """Let each call of the model build its constrained weights of equal geometry in one batch.

    Small kernels cost more in operators than in arithmetic: 32 kernels of 16 channels are built ten times as fast
    together as one by one. Nothing else changes: each call builds anew, as the layers would, and gives the same
    gradients up to rounding. Weights that gain nothing (with more than 131,072 raw numbers on a CPU) and compiled
    models build as usual. `build_once` forms its own batches.

    Args:
        model: the module whose calls build weights together, usually the whole network.

    Returns:
        A handle; `handle.remove()` undoes it.

    >>> from torch import nn
    >>> from orthogonium import build_together
    >>> from orthogonium.layers import OrthoLinear
    >>> model = nn.Sequential(*[OrthoLinear(4, 4) for _ in range(8)])
    >>> handle = build_together(model)
    >>> model(torch.randn(2, 4)).shape
    torch.Size([2, 4])
    >>> handle.remove()
    """
    return BuildTogether(model)
