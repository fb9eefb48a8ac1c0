"""How activations address channels: any rank, any axis, sizes checked, values per channel broadcast along the axis."""

from __future__ import annotations

import torch
from torch import Tensor

from orthogonium.errors import ParameterError, ShapeError
from orthogonium.layers.guarantee import Guarantee

# Kinks are broken towards one side (never `maximum` or `abs`, whose derivatives at a tie are averaged or 0),
# so the Jacobian that autograd applies is orthogonal at *every* input, even at the zeros and ties of padded images.
ISOMETRY = Guarantee("orthogonal", note="of the Jacobian at every input")


def positive_axis(x: Tensor, axis: int, layer: str) -> int:
    """`axis` counted from the front, after checking that it exists."""
    if not -x.dim() <= axis < x.dim():
        raise ShapeError(
            f"{layer}: axis {axis} does not exist in an input of shape {tuple(x.shape)}. "
            f"Use an axis between {-x.dim()} and {x.dim() - 1}."
        )
    return axis % x.dim()


def halves(x: Tensor, axis: int, layer: str) -> tuple[Tensor, Tensor, int]:
    """First half and second half along `axis`, and that axis counted from the front."""
    axis = positive_axis(x, axis, layer)
    if x.shape[axis] % 2:
        raise ShapeError(
            f"{layer} pairs the two halves of axis {axis}, so its size must be even: got {x.shape[axis]} "
            f"(input of shape {tuple(x.shape)}). Use an even number of channels."
        )
    first, second = x.split(x.shape[axis] // 2, dim=axis)
    return first, second, axis


def check_channels(channels: int, layer: str, *, even: bool) -> None:
    """Check the number of channels a trainable activation is built for."""
    if channels < 1 or (even and channels % 2):
        rule = "a positive even number of channels" if even else "at least one channel"
        raise ParameterError(f"{layer} needs {rule}: got channels={channels}.")


def along(values: Tensor, x: Tensor, axis: int, layer: str, channels_per_value: int = 1) -> Tensor:
    """`values` (one per entry of `axis`), shaped to broadcast against `x`, in the precision to compute in.

    That precision is never below float32: the cosine and sine of an angle in bfloat16 are off the unit circle by 1e-3.
    """
    axis = positive_axis(x, axis, layer)
    if x.shape[axis] != values.numel():
        raise ShapeError(
            f"{layer} was built for {values.numel() * channels_per_value} channels, the input has "
            f"{x.shape[axis] * channels_per_value} on axis {axis}. Build it with the channels of its input, or choose "
            "another axis."
        )
    dtype = torch.promote_types(torch.promote_types(values.dtype, x.dtype), torch.float32)
    return values.to(dtype).reshape([-1 if i == axis else 1 for i in range(x.dim())])
