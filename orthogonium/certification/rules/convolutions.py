"""Convolutions with constant kernels.

Note [Circular images] A convolution does not know that its image was wrapped around; the sources do. If they repeat
along an axis with a period N, the image lies on a circle of N pixels, however it was padded, and its windows are
windows of the circle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from orthogonium.certification.rules.call import Call, Effect, NoBound, constant_of, is_value
from orthogonium.certification.rules.measured import (
    PRODUCT,
    layer_step,
    measured,
    norm_of_sample,
    product_rounding,
    square,
)
from orthogonium.certification.sources import form_of, whole_base
from orthogonium.certification.tracked import Tracked
from orthogonium.certification.values import Form
from orthogonium.spectral import Spectrum

_SMALL = 1536  # most inputs or outputs of a map that is measured entry by entry


def convolved(call: Call) -> Effect:
    """A convolution, transposed or not, with a constant kernel."""
    x, weight, bias = call["input"], call["weight"], call["bias"]
    if not is_value(x) or is_value(weight) or is_value(bias):
        raise NoBound(*PRODUCT)
    weight = constant_of(weight)
    dims, groups, transposed = weight.dim() - 2, call["groups"], call["transposed"]
    owner = call.together(x, range(1, x.dim()))
    owner = None if owner is None else owner.expand(call.output.shape)
    geometry: dict[str, Any] = {n: _sizes(call[n], dims) for n in ("stride", "padding", "dilation")}
    sizes = tuple(x.shape[1:])
    form, found = None, None
    if transposed:
        geometry |= {"transposed": True, "output_padding": _sizes(call["output_padding"], dims)}
    elif x.whole is None and not any(geometry["padding"]):
        form, found = _gathered(call, x, weight, groups, geometry)
    if form is None:
        form = x.form()
        found = measured(call, weight, sizes, groups=groups, **geometry)
    assert found is not None
    own = weight.unflatten(0, (groups, -1)).flatten(2)
    terms = own.shape[1] if transposed else own.shape[2]
    absolute = _kernel_absolute(weight, groups)
    terms *= math.prod(weight.shape[2:]) if transposed else 1
    added = 0.0
    if bias is not None:
        added = norm_of_sample(call, constant_of(bias).reshape(-1, *[1] * dims))
    local = product_rounding(call, terms, found.upper_bound, absolute, added, conv=True)
    step = layer_step(call, found, (torch.nn.modules.conv._ConvNd,), weight.shape)
    origin = Transposed(weight, groups, geometry, form, tuple(x.shape[2:])) if transposed else None
    return Effect((form.scaled(square(found.upper_bound)),), owner, local, origin, step)


class Transposed:
    """The result of a transposed convolution: the origin of a base, for when its margins are folded back."""

    def __init__(
        self, weight: Tensor, groups: int, geometry: dict[str, Any], form: Form, inputs: tuple[int, ...]
    ) -> None:
        self.weight, self.groups, self.geometry, self.form, self.inputs = (
            weight.detach().clone(),
            groups,
            geometry,
            form,
            inputs,
        )


def _sizes(given: Sequence[int], dims: int) -> tuple[int, ...]:
    return tuple(given) * dims if len(given) == 1 else tuple(given)


def _kernel_absolute(weight: Tensor, groups: int) -> float:
    """Upper bound of the norm of the convolution with the absolute values of a kernel."""
    a = weight.detach().double().abs().unflatten(0, (groups, -1)).flatten(3)
    return float((a.sum((2, 3)).amax() * a.sum((1, 3)).amax()).sqrt()) * (1 + 1e-12) if a.numel() else 0.0


def _gathered(call: Call, x: Tracked, weight: Tensor, groups: int, geometry: dict[str, Any]) -> Any:
    """Form and spectrum of a convolution of an assembled image: wrapped around, mirrored, extended."""
    codes = x.codes
    extent = [d * (k - 1) + 1 for k, d in zip(weight.shape[2:], geometry["dilation"], strict=True)]
    circles = [_period(codes, axis) for axis in range(2, codes.dim())]
    steps = list(zip(codes.shape[2:], circles, extent, geometry["stride"], strict=True))
    # Each window occurs at most once: leaving windows out can only lower the norm.
    if all(
        (n != size or e == 1) and n % s == 0 and (size - e) // s + 1 <= n // s for size, n, e, s in steps
    ) and circles != list(codes.shape[2:]):
        image = codes
        for axis, n in enumerate(circles, 2):
            image = image.narrow(axis, 0, n)
        base = whole_base(image, call.walk.bases)
        if base is not None or _once(image):
            circular = geometry | {"padding": "same", "padding_mode": "circular"}
            form = form_of(image, call.walk.bases) if base is None else Form({base: 1.0})
            return form, measured(call, weight, tuple(image.shape[1:]), groups=groups, **circular)
    return _by_entries(call, x, weight, groups, geometry)


def _period(codes: Tensor, axis: int) -> int:
    """The smallest period of the sources along an axis, or the size of the axis if there is none."""
    size = codes.shape[axis]
    for n in range(1, size):
        if torch.equal(codes.narrow(axis, n, size - n), codes.narrow(axis, 0, size - n)):
            return n
    return size


def _once(codes: Tensor) -> bool:
    """Whether no entry of a base occurs twice."""
    stored = codes[codes > 0]
    return len(stored.unique()) == len(stored)


def _by_entries(call: Call, x: Tracked, weight: Tensor, groups: int, geometry: dict[str, Any]) -> Any:
    """The matrix from the entries of bases to the outputs of a sample, if it is small and the same for all samples."""
    codes = x.codes
    used = codes[0].unique()
    used = used[used > 0]
    outputs = call.output[0].numel()
    if (
        len(used) > _SMALL
        or outputs > _SMALL
        or len(used) * codes[0].numel() > 2**23
        or not bool(weight.isfinite().all())
    ):
        return None, None
    shift = codes - codes[:1]
    alike = all(
        bool(((codes[b] > 0) == (codes[0] > 0)).all()) and len(shift[b][codes[0] > 0].unique()) <= 1
        for b in range(len(codes))
    )
    if not alike:
        return None, None
    impulses = (codes[0][None] == used.reshape(-1, *[1] * codes[0].dim())).double()
    conv = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[weight.dim() - 2]
    kernel = weight.detach().double().cpu()
    matrix = conv(impulses, kernel, None, geometry["stride"], 0, geometry["dilation"], groups).flatten(1)
    values = torch.linalg.svdvals(matrix)
    rounding = float(values[0]) * 1e-13 * max(matrix.shape)
    least = float(values[-1])
    rank = float(values.square().sum() / values[0].square()) if float(values[0]) else 0.0
    found = Spectrum(least, float(values[0]), rank, "exact", "SVD of the operator on its sources", rounding)
    first = codes.clone()
    # Each source counts once: the copies are inside the matrix.
    flat = first.reshape(len(first), -1)
    kept = torch.zeros_like(flat)
    for b, row in enumerate(flat):
        own = row.unique()
        kept[b, : len(own)] = own
    return form_of(kept, call.walk.bases), found


aten = torch.ops.aten
RULES: dict[Any, Any] = dict.fromkeys(
    [aten.convolution.default, aten._convolution.default, aten._convolution.deprecated],  # the latter by jit.trace
    convolved,
)
