"""Where and how the algorithms run: in float32 or better, and with a look at the values only where there are values."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from orthogonium.errors import NumericalWarning, ShapeError

_HALF = (torch.float16, torch.bfloat16)
# Whether a graph for all batch sizes may be asked for; older versions of torch only know of compilers in general.
is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
P = ParamSpec("P")
Result = TypeVar("Result", Tensor, tuple[Tensor, ...])


def full_precision(function: Callable[P, Result]) -> Callable[P, Result]:
    """Run `function` outside autocast, half-precision tensors as float32; give back the dtype of the first one."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> Result:
        first = next(a for a in args if isinstance(a, Tensor))
        if first.dtype in _HALF:
            args = tuple(a.float() if isinstance(a, Tensor) and a.dtype in _HALF else a for a in args)  # type: ignore[assignment]
        if autocasts(first):
            with torch.autocast(first.device.type, enabled=False):
                return _to(function(*args, **kwargs), first.dtype)
        return _to(function(*args, **kwargs), first.dtype)

    return run


def autocasts(x: Tensor) -> bool:
    """Whether autocast is on where `x` is."""
    return x.device.type != "meta" and torch.is_autocast_enabled(x.device.type)


Backward = TypeVar("Backward", bound=Callable[..., object])


def full_precision_backward(backward: Backward) -> Backward:
    """Run the `backward` of an autograd function outside autocast, wherever it is called from."""

    @functools.wraps(backward)
    def run(ctx: object, grad: Tensor | None, *others: object) -> object:
        if grad is None or not autocasts(grad):
            return backward(ctx, grad, *others)
        with torch.autocast(grad.device.type, enabled=False):
            return backward(ctx, grad, *others)

    return run  # type: ignore[return-value]


def _to(result: Result, dtype: torch.dtype) -> Result:
    return result.to(dtype) if isinstance(result, Tensor) else tuple(t.to(dtype) for t in result)


def has_values(*tensors: Tensor) -> bool:
    """Whether tensors are values to look at and no more: not so in compilers and transforms, nor if meta, fake or dual."""
    return (
        not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and torch._C._functorch.peek_interpreter_stack() is None
        and all(type(t) in (Tensor, torch.nn.Parameter) and not t.is_meta and not _is_dual(t) for t in tensors)
    )


def _is_dual(x: Tensor) -> bool:
    """Whether `x` carries a tangent of forward-mode differentiation, which no_grad does not turn off."""
    return forward_ad.unpack_dual(x).tangent is not None


def check_matrix(w: Tensor, name: str) -> None:
    """Reject what is not a (batch of) floating point matrix."""
    if w.dim() < 2 or not w.is_floating_point():
        raise ShapeError(
            f"{name} works on floating point matrices (..., rows, columns), got {tuple(w.shape)} of {w.dtype}. "
            "Reshape or cast the tensor first."
        )


def check_shape(weight_shape: tuple[int, ...], name: str) -> tuple[int, ...]:
    """A `weight_shape` as a tuple of at least two sizes."""
    shape = tuple(weight_shape)
    if len(shape) < 2:
        raise ShapeError(f"{name}: weight_shape must be (..., rows, columns), got {shape}.")
    return shape


def warn_if_deficient(w: Tensor, name: str, tolerance: float | None = None) -> Tensor:
    """Warn when `w`, meant to have min(rows, columns) singular values equal to 1, has lost directions.

    Each lost direction takes 1 from the squared Frobenius norm; by default more than rounding is reported. To spare
    accelerators a synchronization per training step, they are looked at only where no gradient is wanted.
    """
    if has_values(w) and w.numel() and (w.device.type == "cpu" or not torch.is_grad_enabled()):
        rank = min(w.shape[-2:])
        squared = torch.linalg.vector_norm(w.detach(), dim=-1).square().sum(-1)  # row by row: exact to rounding
        deficit = (rank - squared).abs().max().item()
        if not deficit <= (64 * torch.finfo(w.dtype).eps * (rank + 8) if tolerance is None else tolerance):
            warnings.warn(
                f"{name}: the input is rank-deficient or too ill-conditioned, so the result is not orthogonal: its "
                f"squared Frobenius norm is off by {deficit:.2g} from {rank}. Use full rank, or the QR, "
                "Cayley or exponential method, which are defined for every matrix.",
                NumericalWarning,
                stacklevel=4,
            )
    return w


def magnitude(w: Tensor) -> Tensor:  # (..., rows, columns) → (..., 1, 1)
    """The largest absolute entry of each matrix; 1 where all are zero."""
    largest = w.abs().amax((-2, -1), keepdim=True)
    return torch.where(largest > 0, largest, 1.0)


def scale_to_unit(w: Tensor) -> Tensor:
    """Divide by the largest absolute entry (a constant for the gradient), so that squares neither overflow nor vanish.

    Only for functions that do not depend on the scale of `w`. Zero stays zero.
    """
    return w / magnitude(w.detach()) if w.numel() else w
