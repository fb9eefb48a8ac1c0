"""The same computation in another precision: what a model gives in float64, whatever dtypes its code names.

A `Precise` tensor says that it has the dtype it would have had, and computes in another one: casts change what it
says and not its digits, parameters are converted where they are read. So the code of the model runs as it is written.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map, tree_map_only

_FLOATING = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class Precise(Tensor):
    """A tensor with the digits of `inner`."""

    digits: Tensor

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: Tensor, dtype: torch.dtype) -> Precise:
        """A tensor that says it has this dtype."""
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

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run `func` on the digits, and on mere shapes for the dtypes."""
        kwargs = kwargs or {}
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        dtype = next(t.digits.dtype for t in leaves if isinstance(t, Precise))
        dynamic = torch.Tag.dynamic_output_shape in func.tags  # then values decide, and meta tensors have none
        meta = tree_map_only(Tensor, _shape_only, (args, kwargs))
        said = None if func in _NUMBERS or dynamic else func(*meta[0], **_on_meta(meta[1]))

        written = {
            id(value) for a, value in _named(func, args, kwargs) if a.alias_info is not None and a.alias_info.is_write
        }

        def digits(x: Any) -> Any:
            if id(x) in written and not isinstance(x, Precise):
                return x  # a tensor from outside, which keeps its dtype
            if isinstance(x, Precise):
                return x.digits
            if isinstance(x, Tensor) and x.dtype in _FLOATING:
                return x.to(dtype)
            return dtype if isinstance(x, torch.dtype) and x in _FLOATING else x

        output = func(*tree_map(digits, args), **tree_map(digits, kwargs))
        if func in _NUMBERS:
            return output
        if dynamic:
            own = next(t.dtype for t in leaves if isinstance(t, Precise))
            return tree_map_only(Tensor, lambda t: Precise(t, own) if t.dtype == dtype else t, output)
        same = {id(t.digits): t for t in leaves if isinstance(t, Precise)}
        kinds = iter(t.dtype for t in torch.utils._pytree.tree_leaves(said) if isinstance(t, Tensor))

        def wrapped(t: Tensor) -> Tensor:
            kind = next(kinds)
            if id(t) in same:
                return same[id(t)]
            return Precise(t, kind) if t.dtype == dtype else t

        return tree_map_only(Tensor, wrapped, output)


_NUMBERS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default, torch.ops.aten.is_nonzero.default}


def _shape_only(x: Tensor) -> Tensor:
    meta = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
    return meta


def _on_meta(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {k: torch.device("meta") if isinstance(v, torch.device) else v for k, v in kwargs.items()}


def _named(func: Any, args: Any, kwargs: Any) -> list[tuple[Any, Any]]:
    """Arguments of the schema with their values."""
    schema = func._schema.arguments
    return [*zip(schema, args, strict=False), *((a, kwargs[a.name]) for a in schema if a.name in kwargs)]


class _NewTensors(TorchDispatchMode):
    """Tensors that the model makes meanwhile have the other precision, too: values may be written into them."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run `func`."""
        output = func(*args, **(kwargs or {}))
        given = torch.utils._pytree.tree_leaves((args, kwargs))
        if any(isinstance(t, Tensor) for t in given) or not isinstance(output, Tensor) or output.dtype not in _FLOATING:
            return output
        return Precise(output.to(self.dtype), output.dtype)


def in_precision(model: nn.Module, x: Tensor, dtype: torch.dtype) -> Tensor:
    """`model(x)` as computed in `dtype`, with the same parameters."""
    with torch.no_grad(), _NewTensors(dtype):
        output = model(Precise(x.to(dtype), x.dtype))
    return output.digits if isinstance(output, Precise) else output
