"""Where and how the algorithms run: in float32 or better, and reading values only where that is possible and free."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from orthogonium.errors import ExportError, NumericalWarning, ShapeError, warn
from orthogonium.linalg.products import held, products_are_rounded

P = ParamSpec("P")
Result = TypeVar("Result", Tensor, tuple[Tensor, ...])


def full_precision(function: Callable[P, Result], of_arguments: bool = True) -> Callable[P, Result]:
    """Run `function` in float32 or better: outside autocast, half-precision tensors as float32, full products.

    Gives back the dtype of the first tensor. Note [Products] of `products.py`. With `of_arguments=False` derivatives
    with respect to other tensors than its arguments are to be right, too: then nothing is held.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> Result:
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
        evaluate = held(function) if holds else function
        return _to(evaluate(*wider_args, **wider_kwargs), first.dtype)

    return run


def _widen(x: Any, wide: torch.dtype) -> Any:
    narrow = isinstance(x, Tensor) and x.is_floating_point() and x.dtype.itemsize < wide.itemsize
    return x.to(wide) if narrow else x


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
    """Whether values can be read: not in compilers and transforms, nor of meta, fake, dual or batched tensors.

    Torch has no public name by which the tensors of `is_grads_batched=True` can be told from others.
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


def float64_is_cheap(x: Tensor) -> bool:
    """Whether `x` is in float32 where float64 takes twice the time, not 64 times: on CPUs.

    However orthogonal a result is in float32, it is off from the exact one by its condition number times eps, and so
    are gradients. Float64 makes them exact to float32.
    """
    return x.dtype == torch.float32 and x.device.type == "cpu"


def waits(x: Tensor) -> bool:
    """Whether reading values of `x` makes the host wait for a device, and breaks the capture of its work."""
    return x.device.type != "cpu"


def check_matrix(w: Tensor, name: str) -> None:
    """Reject what is not a (batch of) floating point matrix."""
    if w.dim() < 2 or not w.is_floating_point():
        raise ShapeError(
            f"{name} works on floating point matrices (..., rows, columns), got {tuple(w.shape)} of {w.dtype}. "
            "Reshape or cast the tensor first."
        )


def exports_to_onnx() -> bool:
    """Whether a model is being exported to ONNX, which has no Fourier transforms of images and no factorizations."""
    return torch.onnx.is_in_onnx_export()


# Asked for while a compiler traces; see `products_are_rounded`.
exports_to_onnx._dynamo_marked_constant = True  # type: ignore[attr-defined]


def refuse_onnx(name: str) -> None:
    """ONNX has sums and products, but no factorization of matrices."""
    if exports_to_onnx():
        raise ExportError(
            f"{name}: ONNX has no operator for this constraint, which would be computed at every call. Export a copy "
            "with plain weights: `orthogonium.layers.freeze(model)`."
        )


def check_shape(weight_shape: tuple[int, ...], name: str) -> tuple[int, ...]:
    """A `weight_shape` as a tuple of at least two sizes."""
    shape = tuple(weight_shape)
    if len(shape) < 2:
        raise ShapeError(f"{name}: weight_shape must be (..., rows, columns), got {shape}.")
    return shape


def may_look(w: Tensor) -> bool:
    """Whether values of `w` can be read, without waiting for a device."""
    return has_values(w) and not waits(w)


def warn_if_deficient(w: Tensor, name: str, tolerance: float | None = None) -> Tensor:
    """Warn when `w`, meant to have min(rows, columns) singular values equal to 1, has lost directions.

    Each lost direction takes 1 from the squared Frobenius norm; by default more than rounding is reported. Accelerators
    are not waited for: there, audits and certificates find what is lost.
    """
    if may_look(w) and w.numel():
        rank = min(w.shape[-2:])
        squared = torch.linalg.vector_norm(w.detach(), dim=-1).square().sum(-1)  # row by row: exact to rounding
        deficit = (rank - squared).abs().max().item()
        if not deficit <= (64 * torch.finfo(w.dtype).eps * (rank + 8) if tolerance is None else tolerance):
            warn_of_deficiency(name, deficit, rank)
    return w


def warn_of_deficiency(name: str, deficit: float, rank: int) -> None:
    """Say that a matrix could not be made orthogonal."""
    warn(
        f"{name}: the input is rank-deficient or too ill-conditioned, so the result is not orthogonal: its "
        f"squared Frobenius norm is off by {deficit:.2g} from {rank}. Use full rank, or the QR, "
        "Cayley or exponential method, which are defined for every matrix.",
        NumericalWarning,
    )


def magnitude(w: Tensor) -> Tensor:  # (..., rows, columns) → (..., 1, 1)
    """The largest absolute entry of each matrix; 1 where all are zero."""
    largest = w.abs().amax((-2, -1), keepdim=True)
    return torch.where(largest > 0, largest, 1.0)


def scale_to_unit(w: Tensor) -> Tensor:
    """Divide by the largest absolute entry (a constant for the gradient), so that squares neither overflow nor vanish.

    Only for functions that do not depend on the scale of `w`. Zero stays zero.
    """
    return w / magnitude(w.detach()) if w.numel() else w
