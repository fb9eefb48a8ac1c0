"""What must not happen while weights are built once, and would go wrong in silence.

Note [Watched]
Inside of a block, raw parameters have no part in the graph of a loss, so that torch would call them unused (and with
`allow_unused=True` return None), and they have no gradient yet, so that an optimizer would pass over them. Neither can be
seen from the graph. So while blocks are open, `torch.autograd.grad` and `torch.autograd.backward` look at the inputs they
are asked for, and optimizers are looked at after each step.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from orthogonium.errors import DerivativeError

_lock = threading.Lock()
_watched: list[set[int]] = []  # ids of the raw parameters of each open block
_undo: list[Callable[[], object]] = []


def _is_watched(inputs: Iterable[Any]) -> bool:
    nodes = [getattr(t, "node", t) for t in inputs]  # of a `GradientEdge`
    ids = {id(getattr(node, "variable", node)) for node in nodes}
    return any(not ids.isdisjoint(block) for block in _watched)


def _refusing(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose argument `inputs` must hold no watched tensor."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        inputs = call.arguments.get("inputs")
        if isinstance(inputs, Iterator):  # such as `model.parameters()`, which can be read once
            call.arguments["inputs"] = inputs = tuple(inputs)
        if isinstance(inputs, Mapping):
            inputs = inputs.values()
        if inputs is not None and _is_watched((inputs,) if isinstance(inputs, (Tensor, GradientEdge)) else inputs):
            raise DerivativeError(
                f"torch.autograd.{function.__name__} was asked for derivatives with respect to raw parameters of weights "
                "that are built once: these get their gradients when the block of build_once ends. Differentiate with "
                "respect to `layer.weight` inside of the block, or leave it and build anew."
            )
        return function(*call.args, **call.kwargs)

    return run


def _check_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if _is_watched(p for group in optimizer.param_groups for p in group["params"]):
        raise DerivativeError(
            f"{type(optimizer).__name__}.step() inside of build_once: raw parameters get their gradients when the block "
            "ends, so that this step passed over them. Step (and clip, unscale and zero gradients) after the block."
        )


def _start_watching() -> list[Callable[[], object]]:
    autograd: Any = torch.autograd
    originals = {"grad": autograd.grad, "backward": autograd.backward}
    for name, function in originals.items():
        setattr(autograd, name, _refusing(function))
    hook = register_optimizer_step_post_hook(_check_step)
    return [*(functools.partial(setattr, autograd, *item) for item in originals.items()), hook.remove]


@contextmanager
def watch(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Refuse derivatives with respect to these raw parameters, and steps of their optimizers. Note [Watched]."""
    own = {id(t) for t in tensors}
    with _lock:
        if not _watched:
            _undo.extend(_start_watching())
        _watched.append(own)
    try:
        yield
    finally:
        with _lock:
            _watched[:] = [block for block in _watched if block is not own]
            if not _watched:
                while _undo:
                    _undo.pop()()
