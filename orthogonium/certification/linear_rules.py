"""Products with constant matrices and kernels, called as functions."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from orthogonium.certification.rule import NOT_FINITE, NoBound, Rule
from orthogonium.certification.tracking import Call, Tracked
from orthogonium.certification.values import Value
from orthogonium.errors import OrthogoniumError
from orthogonium.spectral import Convolution, convolution, spectrum

_CONV = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")


def _norm(layer: Convolution, input_shape: torch.Size) -> float:
    if not layer.weight.isfinite().all():
        raise NoBound(*NOT_FINITE)
    return spectrum(layer, input_shape, rtol=1e-3).upper_bound


def _constant(weight: object) -> Tensor:
    if not isinstance(weight, Tensor) or isinstance(weight, Tracked):
        raise NoBound("The product of two values is not Lipschitz.", "Use OrthoLinear, or a constant matrix.")
    return weight.detach()


def _single(size: Any) -> Any:
    """Torch takes a sequence of one number for all axes."""
    return size if isinstance(size, (int, str)) else (size[0] if len(size) == 1 else tuple(size))


def convolved(call: Call) -> Value:
    """Convolutions, transposed or not: certified by the geometry of the call."""
    transposed = "transpose" in call.name
    names = _TRANSPOSED if transposed else _CONV
    given = dict(zip(names, call.args, strict=False)) | call.kwargs
    x, weight = given.pop("input"), _constant(given.pop("weight"))
    given.pop("bias", None)
    dims = int(re.search(r"(\d)d", call.name).group(1))  # type: ignore[union-attr]
    if not isinstance(x, Tracked) or x.dim() != dims + 2:
        raise NoBound("It needs a batch of images and a constant kernel.", "Keep the batch in front.")
    sizes: dict[str, Any] = {
        k: v if isinstance(v, (int, str)) else (v[0] if len(v) == 1 else tuple(v)) for k, v in given.items()
    }
    try:
        return x.value.scaled(_norm(convolution(weight, transposed=transposed, **sizes), x.shape[1:]))
    except OrthogoniumError as error:
        raise NoBound(f"Its spectral norm is unknown: {error}", "Use nn.ConvNd.") from error


def dense(call: Call) -> Value:
    """`F.linear(x, W, b)` with a constant W."""
    x, weight = call.argument(0, "input"), _constant(call.argument(1, "weight"))
    if not isinstance(x, Tracked) or isinstance(call.argument(2, "bias"), Tracked):
        raise NoBound("It depends on several values.", "Use constants for all but the input.")
    if weight.dim() == 1:
        weight = weight[None]
    return x.value.scaled(_norm(convolution(weight), torch.Size([weight.shape[1]])))


def product(call: Call) -> Value:
    """`x @ W` or `W @ x` with a constant matrix W."""
    x, y = call.argument(0, "input"), call.argument(1, "other")
    x, y = (y, x) if call.name == "__rmatmul__" else (x, y)
    data, matrix = (x, _constant(y)) if isinstance(x, Tracked) else (y, _constant(x))
    if matrix.dim() > 2 or data.dim() < (2 if data is x else 3):
        raise NoBound("Only products of batches with one constant matrix are followed.", "Use a matrix of two axes.")
    matrix = matrix[None] if matrix.dim() == 1 else matrix
    return data.value.scaled(_norm(convolution(matrix), torch.Size([matrix.shape[1]])))


RULES: dict[str, Rule] = {
    **dict.fromkeys(["conv1d", "conv2d", "conv3d"], convolved),
    **dict.fromkeys(["conv_transpose1d", "conv_transpose2d", "conv_transpose3d"], convolved),
    "linear": dense,
    **dict.fromkeys(["matmul", "mm", "rmatmul"], product),
}
