"""Products of float32 matrices in float32, whatever torch is allowed to do with them.

Note [Products]
`torch.set_float32_matmul_precision("high")`, `allow_tf32` and `fp32_precision` let hardware round the factors of a
product to 10 bits (TF32) or 7 bits (bfloat16). A matrix that was orthogonal to 1e-7 is then orthogonal to 1e-3. So the
arithmetic of constraints turns these settings off and restores them, even after an exception:

- In eager mode, forward and backward each hold the settings while they run (`held`).
- Code that is compiled, traced or transformed (`torch.func`) runs later, or inside something that cannot be held:
  there, while a setting is on, it is computed in float64, which none of them affects. That takes twice the time on CPUs
  and data-centre GPUs, and longer on GPUs that are slow in float64; `freeze`, or the default setting, avoids it.

Autocast affects derivatives, too, if `backward` or `autograd.grad` is called inside it. What is built under autocast is
protected from it in its derivatives as well. What is built outside and differentiated inside is not, nor is what
`torch.func` differentiates inside: there, parts of a derivative are as exact as autocast makes them. Torch advises
against all of these: end autocast with the forward pass.

The settings are global; torch has none per thread. Threads that build at the same time share one hold, which ends
with the last of them; until then the products of all other threads are in full precision, too, and a setting made by
another thread may be undone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

# The settings that matter: a device only looks at its own library. Convolutions on accelerators are not part of
# constraints (`kernels/algebra.py`), so their setting, which allows TF32 by default, does not matter.
SETTINGS = (("cuda", "matmul"), ("mkldnn", "matmul"), ("mkldnn", "conv"))
FULL = ("ieee", "none")
Undo: TypeAlias = Callable[[], object]
BY_LIBRARY = hasattr(torch._C, "_get_fp32_precision_getter")  # else there is one setting for all


def _turn_off() -> list[Undo]:
    """Set full precision, and return what undoes it."""
    undo: list[Undo]
    if not BY_LIBRARY:
        undo = [partial(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())]
        torch.set_float32_matmul_precision("highest")
        return undo
    undo = []
    read, write = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter
    for library, operator in SETTINGS:
        found = read(library, operator)
        if found not in FULL:
            # A setting that merely follows that of its library must follow it again.
            own = "none" if read(library, "all") == found else found
            write(library, operator, "ieee")
            undo.append(partial(write, library, operator, own))
    return undo


_lock = threading.Lock()
_holders = 0
_undo: list[Undo] = []


@contextmanager
def full_products() -> Iterator[None]:
    """Hold products to full precision. Note [Products]."""
    global _holders, _undo
    with _lock:
        if _holders == 0:
            _undo = _turn_off()
        _holders += 1
    try:
        yield
    finally:
        with _lock:
            _holders -= 1
            if _holders == 0:
                for step in _undo:
                    step()


@contextmanager
def full_arithmetic(x: Tensor) -> Iterator[None]:
    """The same, with autocast off on the device of `x`; derivatives of constraints are taken in it."""
    device = x.device.type
    with full_products(), torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
        yield


def held(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with full products, outside autocast, and likewise its derivatives of every order.

    It returns a tensor or a tuple of tensors.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        arguments: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        tensors = {key: a for key, a in arguments.items() if isinstance(a, Tensor)}
        if not torch.is_grad_enabled() or not any(t.requires_grad for t in tensors.values()):
            with full_arithmetic(next(iter(tensors.values()))):
                return function(*args, **kwargs)
        is_tuple = False

        def of_tensors(*values: Tensor) -> tuple[Tensor, ...]:
            nonlocal is_tuple
            given = {**arguments, **dict(zip(tensors, values, strict=True))}
            result = function(*(given[i] for i in range(len(args))), **{name: given[name] for name in kwargs})
            is_tuple = isinstance(result, tuple)
            return result if is_tuple else (result,)

        results = _Held.apply(of_tensors, *tensors.values())
        return results if is_tuple else results[0]

    return run


class _Held(torch.autograd.Function):
    """`(function, *tensors)` → a tuple of tensors. It has its own graph, so its backward can be held, too."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., tuple[Tensor, ...]], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.function, ctx.wanted = function, ctx.needs_input_grad[1:]
        with full_arithmetic(tensors[0]), torch.enable_grad():
            inputs = [t.detach().requires_grad_(wants) for t, wants in zip(tensors, ctx.wanted, strict=True)]
            outputs = function(*inputs)
        ctx.graph = inputs, outputs
        ctx.save_for_backward(*tensors)
        return tuple(t.detach() for t in outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        if torch.is_grad_enabled():  # the derivative will be differentiated: a function of tensors and gradients
            derivative = partial(_derivative_of, ctx.function, ctx.wanted)
            found = iter(_Held.apply(derivative, *tensors, *grads))
        else:
            with full_arithmetic(tensors[0]):
                inputs, outputs = ctx.graph
                found = iter(_derivative(inputs, outputs, grads, ctx.wanted))
        return None, *(next(found) if wants else None for wants in ctx.wanted)


def _derivative_of(
    function: Callable[..., tuple[Tensor, ...]], wanted: Sequence[bool], *tensors_and_grads: Tensor
) -> tuple[Tensor, ...]:
    tensors, grads = tensors_and_grads[: len(wanted)], tensors_and_grads[len(wanted) :]
    return _derivative(tensors, function(*tensors), grads, wanted, create_graph=True)


def _derivative(
    tensors: Sequence[Tensor],
    outputs: Sequence[Tensor],
    grads: Sequence[Tensor],
    wanted: Sequence[bool],
    create_graph: bool = False,
) -> tuple[Tensor, ...]:
    """The gradients of the wanted tensors."""
    inputs = [t for t, wants in zip(tensors, wanted, strict=True) if wants]
    differentiable = [(y, g) for y, g in zip(outputs, grads, strict=True) if y.requires_grad]
    if not differentiable:
        return tuple(torch.zeros_like(t) for t in inputs)
    ys, gs = zip(*differentiable, strict=True)
    # Retained, as the surrounding graph may be.
    return torch.autograd.grad(
        ys, inputs, gs, retain_graph=True, create_graph=create_graph, allow_unused=True, materialize_grads=True
    )
