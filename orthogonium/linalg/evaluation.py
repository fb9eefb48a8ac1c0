"""How a function of matrices is evaluated, whatever surrounds the call.

Algorithms are written for one case: matrices in float32 or float64, with values that can be read, and one backward
derivative. This file makes them correct in all other cases:

- Half precision, autocast and TF32 would round what should be orthogonal: `full_precision`.
- Compilers and transforms have no values, and reading values makes the host wait for accelerators: `has_values`,
  `may_look`.
- Arguments may be empty or not matrices at all, and ONNX has no factorizations: `of_matrices`.
- Derivatives of other kinds and orders may be needed: `evaluate`.

Note [Derivatives by hand]
A training step needs one backward derivative of real tensors: a `HandWritten` function then runs as one node of
the graph, and its adjoint uses values that the algorithm has saved. These are constants to autograd, so a
derivative of that derivative would silently lack terms. Hence everything else takes the plain operators of `plain`,
which torch differentiates: compilers, function transforms (`torch.func`), forward derivatives, batches of gradients
(`is_grads_batched`, `vectorize=True`), and, for second derivatives, the adjoint itself (`create_graph=True`).
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from orthogonium.errors import ExportError, ShapeError
from orthogonium.linalg.products import BY_LIBRARY, FULL, SETTINGS, held

P = ParamSpec("P")
Output = TypeVar("Output", Tensor, tuple[Tensor, ...])
Function = TypeVar("Function", bound=Callable[..., Any])


# ── what surrounds a call ──


def products_are_rounded() -> bool:
    """Whether torch may round the factors of float32 products. Note [Products] of `products.py`."""
    if BY_LIBRARY:
        return any(torch._C._get_fp32_precision_getter(*where) not in FULL for where in SETTINGS)
    return torch.get_float32_matmul_precision() != "highest"


def exports_to_onnx() -> bool:
    """Whether a model is being exported to ONNX, which has no Fourier transforms of images and no factorizations."""
    return torch.onnx.is_in_onnx_export()


# Compilers call these while they trace (and trace again when the CUDA setting changes). The mark is the one that
# `torch.compiler.assume_constant_result` sets, without importing the compiler.
products_are_rounded._dynamo_marked_constant = True  # type: ignore[attr-defined]
exports_to_onnx._dynamo_marked_constant = True  # type: ignore[attr-defined]


def autocasts(x: Tensor) -> bool:
    """Whether autocast is on for the device of `x`."""
    return x.device.type != "meta" and torch.is_autocast_enabled(x.device.type)


def has_values(*tensors: Tensor) -> bool:
    """Whether values can be read: not in compilers and transforms, nor from meta, fake, dual or batched tensors.

    Torch has no public way to recognize the tensors of `is_grads_batched=True`.
    """
    return (
        not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and torch._C._functorch.peek_interpreter_stack() is None
        and all(type(t) in (Tensor, torch.nn.Parameter) and not t.is_meta for t in tensors)
        and not any(torch._C._functorch.is_legacy_batchedtensor(t) or _is_dual(t) for t in tensors)
    )


def _is_dual(x: Tensor) -> bool:
    """Whether `x` carries a tangent of forward-mode differentiation, which no_grad does not turn off."""
    return forward_ad.unpack_dual(x).tangent is not None


def waits(x: Tensor) -> bool:
    """Whether reading values of `x` makes the host wait for a device, and breaks graph capture."""
    return x.device.type != "cpu"


def may_look(w: Tensor) -> bool:
    """Whether values of `w` can be read without waiting for a device."""
    return has_values(w) and not waits(w)


def float64_is_cheap(x: Tensor) -> bool:
    """Whether `x` is in float32 (or complex64) where float64 takes twice the time, not 64 times: on CPUs.

    However orthogonal a float32 result is, it differs from the exact one by its condition number times eps, and so do
    gradients. Float64 makes them exact to float32.
    """
    return x.dtype in (torch.float32, torch.complex64) and x.device.type == "cpu"


def has_hooks(part: torch.nn.Module) -> bool:
    """Whether hooks of the module itself may change what it does."""
    return bool(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks)


def replaces(part: torch.nn.Module, methods: frozenset[str]) -> bool:
    """Whether a module has attributes of its own in place of some of these methods of its class."""
    own = vars(part)
    if torch.compiler.is_compiling():  # that of torch 2.9 does not know `isdisjoint` of attributes
        return any(name in own for name in methods)
    return not methods.isdisjoint(own)


# ── precision ──


def full_precision(function: Callable[P, Output], of_arguments: bool = True) -> Callable[P, Output]:
    """Run `function` in float32 or better: outside autocast, half-precision tensors as float32, full products.

    The result has the dtype of the first tensor. Note [Products] of `products.py`. With `of_arguments=False`,
    derivatives with respect to tensors other than its arguments are correct, too: then nothing is held.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> Output:
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        first = tensors[0]
        rounded = products_are_rounded() and first.device.type != "mps"  # which rounds none, and has no float64
        holds = of_arguments and (rounded or autocasts(first)) and has_values(*tensors)
        wide = torch.float64 if rounded and not holds else torch.float32
        wider_args = [_widen(a, wide) for a in args]
        wider_kwargs = {name: _widen(a, wide) for name, a in kwargs.items()}
        if autocasts(first) and not holds:
            with torch.autocast(first.device.type, enabled=False):
                return _to(function(*wider_args, **wider_kwargs), first.dtype)
        run_held = held(function) if holds else function
        return _to(run_held(*wider_args, **wider_kwargs), first.dtype)

    return run


def _widen(x: Any, wide: torch.dtype) -> Any:
    if not isinstance(x, Tensor) or not (x.is_floating_point() or x.is_complex()):
        return x
    return x.to(torch.promote_types(x.dtype, wide))


def _to(result: Output, dtype: torch.dtype) -> Output:
    return result.to(dtype) if isinstance(result, Tensor) else tuple(t.to(dtype) for t in result)


def widened(x: Tensor) -> Tensor:
    """`x` in float32 or better, where half precision would lose what a layer promises."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def full_precision_backward(backward: Function) -> Function:
    """Run the `backward` of an autograd function outside autocast, wherever it is called from."""

    @functools.wraps(backward)
    def run(ctx: object, grad: Tensor | None, *others: object) -> object:
        if grad is None or not autocasts(grad):
            return backward(ctx, grad, *others)
        with torch.autocast(grad.device.type, enabled=False):
            return backward(ctx, grad, *others)

    return run  # type: ignore[return-value]


# ── arguments ──


def check_matrix(w: Tensor, name: str, or_complex: bool = False) -> None:
    """Reject anything but floating point matrices, or batches of them; complex ones only if asked for."""
    if w.dim() < 2 or not (w.is_floating_point() or (or_complex and w.is_complex())):
        raise ShapeError(
            f"{name} works on floating point matrices (..., rows, columns), got {tuple(w.shape)} of {w.dtype}. "
            "Reshape or cast the tensor first."
        )


def of_matrices(factorizes: bool, or_complex: bool = False) -> Callable[[Function], Function]:
    """Decorate a map from matrices `w`, real or also complex, to matrices of the same shape, with any options.

    It runs in full precision, rejects anything that is not a matrix, and returns empty matrices as they are. If it
    `factorizes`, it is refused in ONNX, which only has sums and products.
    """

    def decorate(function: Function) -> Function:
        name = function.__name__

        @full_precision
        @functools.wraps(function)
        def run(w: Tensor, *options: Any, **named: Any) -> Tensor:
            check_matrix(w, name, or_complex)
            if factorizes and exports_to_onnx():
                raise ExportError(
                    f"{name}: ONNX has no operator for this constraint, which would be computed at every call. Export "
                    "a copy with plain weights: `orthogonium.layers.freeze(model)`."
                )
            if w.numel():
                return function(w, *options, **named)
            signature(function).bind(w, *options, **named)  # the options must be correct all the same
            return w

        return run  # type: ignore[return-value]

    return decorate


# ── derivatives ──


class HandWritten(ABC):
    """A function from tensors (and constants) to one tensor. Never instantiated: `evaluate` calls subclasses."""

    @staticmethod
    @abstractmethod
    def compute(*inputs: Any) -> tuple[Tensor, Sequence[Tensor]]:
        """The value, and what the adjoint needs besides the inputs."""

    @staticmethod
    @abstractmethod
    def adjoint(
        inputs: Sequence[Any], saved: list[Tensor], wants: Sequence[bool], grad: Tensor
    ) -> Sequence[Tensor | None]:
        """The gradient of each input; None for constants, and if it is not wanted. May empty the list `saved`."""

    @classmethod
    def plain(cls, *inputs: Any) -> Tensor:
        """The value by operators that torch differentiates: by default those of `compute`."""
        return cls.compute(*inputs)[0]


def evaluate(function: type[HandWritten], *inputs: Any) -> Tensor:
    """The value, which can be differentiated in any way. Note [Derivatives by hand]."""
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
