"""Functions whose first derivative is written by hand, and all of whose derivatives are right.

Note [Derivatives by hand]
A training step asks for one derivative, backwards, of real tensors: a `HandWritten` function then runs as one node of
the graph, and its adjoint uses what the algorithm left behind. Such values are constants to autograd, so that a
derivative of that derivative would lack terms, in silence. Hence everything else takes the plain operators of `plain`,
which torch differentiates: compilers, transforms of functions (`torch.func`), forward derivatives, batches of gradients
(`is_grads_batched`, `vectorize=True`), and the adjoint itself when it is to be differentiated once more
(`create_graph=True`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from orthogonium.linalg.precision import full_precision_backward, has_values


class HandWritten(ABC):
    """A function of tensors (and constants) to one tensor. Never instantiated: subclasses are called by `evaluate`."""

    @staticmethod
    @abstractmethod
    def compute(*inputs: Any) -> tuple[Tensor, Sequence[Tensor]]:
        """The value, and what the adjoint needs beside the inputs."""

    @staticmethod
    @abstractmethod
    def adjoint(
        inputs: Sequence[Any], saved: list[Tensor], wants: Sequence[bool], grad: Tensor
    ) -> Sequence[Tensor | None]:
        """The gradient of each input; None for constants, and where it is not wanted. May use up `saved`."""

    @classmethod
    def plain(cls, *inputs: Any) -> Tensor:
        """The value by operators that torch differentiates: by default those of `compute`."""
        return cls.compute(*inputs)[0]


def evaluate(function: type[HandWritten], *inputs: Any) -> Tensor:
    """The value, to be differentiated in any way. Note [Derivatives by hand]."""
    tensors = [t for t in inputs if isinstance(t, Tensor)]
    if not has_values(*tensors):
        return function.plain(*inputs)
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return _Node.apply(function, *inputs)
    return function.compute(*inputs)[0]


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: type[HandWritten], *inputs: Any) -> Tensor:
        value, saved = function.compute(*inputs)
        tensors = [t for t in inputs if isinstance(t, Tensor)]
        ctx.function, ctx.count = function, len(tensors)
        ctx.constants = [None if isinstance(t, Tensor) else t for t in inputs]
        ctx.is_tensor = [isinstance(t, Tensor) for t in inputs]
        ctx.save_for_backward(*tensors, *saved)
        return value

    @staticmethod
    @full_precision_backward
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        wants = ctx.needs_input_grad[1:]
        tensors = list(ctx.saved_tensors)  # unpacked once: activation checkpoints allow no more
        tensors, saved = tensors[: ctx.count], tensors[ctx.count :]
        differentiable = torch.is_grad_enabled()
        if not differentiable and has_values(grad):
            return None, *ctx.function.adjoint(_merge(ctx, tensors), saved, wants, grad)
        with torch.enable_grad():
            # Views are new nodes of the graph: derivatives stop at them, not at what the inputs were computed from.
            inputs = _merge(ctx, [t.view_as(t) for t in tensors])
            wanted = [t for t, wants_it in zip(inputs, wants, strict=True) if wants_it]
            value = ctx.function.plain(*inputs)
        found = iter(torch.autograd.grad(value, wanted, grad, create_graph=differentiable))
        return None, *(next(found) if wants_it else None for wants_it in wants)


def _merge(ctx: Any, tensors: Sequence[Tensor]) -> list[Any]:
    """The inputs in their order."""
    rest = iter(tensors)
    return [next(rest) if t else c for t, c in zip(ctx.is_tensor, ctx.constants, strict=True)]
