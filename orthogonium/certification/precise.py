"""The same computation in another precision: what a model computes in float64, whatever dtypes its code names.

A `Precise` tensor reports the dtype it would have had, but computes in another one: casts change the dtype it reports
and not its digits, and parameters are converted when they are read. So the model's code runs as written.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from orthogonium.certification.float64_convolution import convolution
from orthogonium.certification.tracked import replaced, tensors_in
from orthogonium.layers.activations.axes import halves
from orthogonium.layers.activations.sorting import max_min
from orthogonium.layers.conv.frequencies import convolve_frequencies
from orthogonium.layers.whole import Followed

_FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class Precise(Followed):
    """A tensor with the digits of `inner`."""

    digits: Tensor

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: Tensor, dtype: torch.dtype) -> Precise:
        """A tensor that reports this dtype."""
        self = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=dtype,
            device=inner.device,
        )
        self.digits = inner
        return self

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Precise({self.digits!r}, as {self.dtype})"

    def take_whole(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Functions that are computed in another way, or in types without digits to report.

        MaxMin runs without masks and copies, which only serve gradients and take most of its time; Fourier transforms
        use complex numbers inside.
        """
        if fn is convolve_frequencies:
            kernel = args[1].digits if isinstance(args[1], Precise) else args[1].to(self.digits.dtype)
            return Precise(fn(self.digits, kernel, *args[2:]), torch.promote_types(self.dtype, torch.float32))
        if fn is not max_min:
            return NotImplemented
        out = torch.empty_like(self.digits)
        axis = args[1] if len(args) > 1 else 1
        (a, b, _), (larger, smaller, _) = (halves(x, axis, "MaxMin") for x in (self.digits, out))
        torch.maximum(a, b, out=larger)
        torch.minimum(a, b, out=smaller)
        return Precise(out, self.dtype)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run `func` on the digits, and on shapes alone to find the dtypes."""
        kwargs = kwargs or {}
        tensors = list(tensors_in((args, kwargs)))
        dtype = next(t.digits.dtype for t in tensors if isinstance(t, Precise))
        kinds = _dtypes_said(func, args, kwargs, tensors)
        written = {
            id(value) for a, value in _named(func, args, kwargs) if a.alias_info is not None and a.alias_info.is_write
        }

        def of_tensor(t: Tensor) -> Tensor:
            if isinstance(t, Precise):
                return t.digits
            outside = id(t) in written  # it keeps its dtype
            return t.to(dtype) if t.dtype in _FLOATING and not outside else t

        def digits(x: Any) -> Any:
            if isinstance(x, torch.dtype):
                return dtype if x in _FLOATING else x
            return replaced(x, of_tensor)

        if torch.Tag.inplace_view in func.tags:
            with no_dispatch():  # the shape that torch knows of the object itself
                func(*args, **kwargs)
        run = convolution if func is torch.ops.aten.convolution.default else func
        output = run(*map(digits, args), **{name: digits(x) for name, x in kwargs.items()})
        same = {id(t.digits): t for t in tensors if isinstance(t, Precise)}

        def wrapped(t: Tensor) -> Tensor:
            kind = next(kinds)
            if id(t) in same:
                return same[id(t)]
            return Precise(t, kind) if t.dtype == dtype else t

        return output if func in _NUMBERS else replaced(output, wrapped)


def _dtypes_said(func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> Iterator[torch.dtype]:
    """Dtypes that the floating results would have if the arguments had the dtypes they report."""
    floating = {t.dtype for t in tensors if t.dtype in _FLOATING}
    named = any(isinstance(x, torch.dtype) for x in (*args, *kwargs.values()))
    dynamic = torch.Tag.dynamic_output_shape in func.tags  # values decide the shape, and meta tensors have none
    if (len(floating) == 1 and not named) or dynamic or func in _NUMBERS:
        return itertools.repeat(floating.pop())
    meta_args, meta_kwargs = replaced((args, kwargs), _shape_only)
    return (t.dtype for t in tensors_in(func(*meta_args, **_on_meta(meta_kwargs))))


_NUMBERS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default, torch.ops.aten.is_nonzero.default}


def _shape_only(x: Tensor) -> Tensor:
    meta = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
    return meta


def _on_meta(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {k: torch.device("meta") if isinstance(v, torch.device) else v for k, v in kwargs.items()}


def _named(func: Any, args: Any, kwargs: Any) -> list[tuple[Any, Any]]:
    """Arguments of the schema, paired with their values."""
    schema = func._schema.arguments
    return [*zip(schema, args, strict=False), *((a, kwargs[a.name]) for a in schema if a.name in kwargs)]


class _NewTensors(TorchDispatchMode):
    """Gives tensors created by the model the other precision too, since values may be written into them."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run `func`; what it makes from no tensor, such as zeros, gets both precisions."""
        output = func(*args, **(kwargs or {}))
        if (
            any(True for _ in tensors_in((args, kwargs)))
            or not isinstance(output, Tensor)
            or output.dtype not in _FLOATING
        ):
            return output
        return Precise(output.to(self.dtype), output.dtype)


def in_precision(model: nn.Module, x: Tensor, dtype: torch.dtype) -> Tensor:
    """`model(x)` as computed in `dtype`, with the same parameters."""
    with torch.no_grad(), _NewTensors(dtype):
        output = model(Precise(x.to(dtype), x.dtype))
    return output.digits if isinstance(output, Precise) else output
