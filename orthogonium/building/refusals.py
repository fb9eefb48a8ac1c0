"""What must not happen while weights are built once, because it would silently go wrong.

Note [Watched]
Inside a block, raw parameters are not part of the graph of a loss, so torch would call them unused (and with
`allow_unused=True` return None), and they have no gradient yet, so an optimizer would skip them, `zero_grad` would not
clear what has been added up on the weights, and `GradScaler.unscale_` would leave it scaled. None of that can be seen
from the graph. So while blocks are open, `torch.autograd.grad` and `torch.autograd.backward` check their `inputs`,
`zero_grad` and `unscale_` check their parameters, and optimizers are checked after each step.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from orthogonium.errors import DerivativeError

_lock = threading.Lock()
_watched: list[dict[int, list[Tensor]]] = []  # for each open block, ids of raw parameters: the weights built of them
_undo: list[Callable[[], object]] = []


def _weights_of(inputs: Iterable[Any]) -> list[Tensor]:
    """The weights that are built from the watched ones among these tensors."""
    nodes = [getattr(t, "node", t) for t in inputs]  # of a `GradientEdge`
    ids = {id(getattr(node, "variable", node)) for node in nodes}
    return [weight for block in _watched for i in ids & block.keys() for weight in block[i]]


def _check_inputs(
    outputs: Any, grads: Any, retain_graph: Any, create_graph: Any, inputs: Any, *_: Any, **__: Any
) -> None:
    if _weights_of(inputs):
        raise DerivativeError(
            "torch.autograd was asked for derivatives with respect to raw parameters of weights that are built once: "
            "these get their gradients when the block of build_once ends. Take these derivatives outside of the block, "
            "where each call builds anew."
        )


def _parameters_of(optimizer: Optimizer) -> Iterator[Tensor]:
    return (p for group in optimizer.param_groups for p in group["params"])


def _check_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if _weights_of(_parameters_of(optimizer)):
        raise DerivativeError(
            f"{type(optimizer).__name__}.step() inside build_once: raw parameters get their gradients when the "
            "block ends, so that this step passed over them. Step (and clip, unscale and zero gradients) after the "
            "block."
        )


def _check_zero_grad(parameters: Iterable[Tensor]) -> None:
    if any(weight.grad is not None for weight in _weights_of(parameters)):
        raise DerivativeError(
            "zero_grad() inside build_once after a backward pass: gradients have been added up on the weights, "
            "which it does not reach. Zero gradients before the first backward pass of the block, or after the block."
        )


def _check_unscale(optimizer: Optimizer) -> None:
    if _weights_of(_parameters_of(optimizer)):
        raise DerivativeError(
            "GradScaler.unscale_() inside build_once: raw parameters get their gradients, still scaled, when the "
            "block ends. Unscale after the block."
        )


def _checked(method: Callable[..., Any], check: Callable[..., None]) -> Callable[..., Any]:
    """A method whose arguments are checked before it runs."""

    @functools.wraps(method)
    def run(*args: Any, **kwargs: Any) -> Any:
        check(*args, **kwargs)
        return method(*args, **kwargs)

    return run


def _start_watching() -> list[Callable[[], object]]:
    autograd: Any = torch.autograd
    wrapped: list[tuple[Any, str, Callable[..., Any]]] = [
        # Called by `grad` and `backward`, which may have been looked up before (`from torch.autograd import grad`).
        (autograd, "_engine_run_backward", _checked(autograd._engine_run_backward, _check_inputs)),
        (
            Optimizer,
            "zero_grad",
            _checked(Optimizer.zero_grad, lambda o, *_, **__: _check_zero_grad(_parameters_of(o))),
        ),
        (nn.Module, "zero_grad", _checked(nn.Module.zero_grad, lambda m, *_, **__: _check_zero_grad(m.parameters()))),
        (GradScaler, "unscale_", _checked(GradScaler.unscale_, lambda _, optimizer: _check_unscale(optimizer))),
    ]
    undo: list[Callable[[], object]] = [register_optimizer_step_post_hook(_check_step).remove]
    for where, name, function in wrapped:
        undo.append(functools.partial(setattr, where, name, getattr(where, name)))
        setattr(where, name, function)
    return undo


@contextmanager
def watch(built: Iterable[tuple[Tensor, Tensor]]) -> Iterator[None]:
    """Refuse what Note [Watched] lists, for raw parameters, each paired with the weight that is built from it."""
    own: dict[int, list[Tensor]] = {}
    for raw, weight in built:
        own.setdefault(id(raw), []).append(weight)
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
