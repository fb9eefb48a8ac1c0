"""The exact operator of any linear module, from its impulse responses.

Nothing is assumed about padding, stride, groups or algorithm: each unit impulse is sent through the module, and the
output is a column. This is exact, and the reference for everything else here; it costs one forward pass per input
number and a dense SVD.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from orthogonium.errors import ParameterError, ShapeError
from orthogonium.spectral import definition
from orthogonium.spectral.geometry import Convolution

Map = Callable[[Tensor], Tensor] | nn.Module | Convolution
_CHUNK = 2**22  # numbers sent through the module at a time


def as_function(
    fn: Map, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> tuple[Callable[[Tensor], Tensor], torch.dtype, torch.device]:
    """A callable on batches, with the dtype and device of its parameters; float64 for a `Convolution`."""
    if isinstance(fn, Convolution):
        return (lambda x: definition.apply(fn, x)), dtype or torch.float64, torch.device(device or fn.weight.device)
    if not callable(fn):
        raise ParameterError(f"A module or a function is needed, got {type(fn).__name__}.")
    held = itertools.chain(fn.parameters(), fn.buffers()) if isinstance(fn, nn.Module) else iter(())
    first = next((t for t in held if t.is_floating_point()), None)
    own_dtype = torch.get_default_dtype() if first is None else first.dtype
    own_device = torch.device("cpu") if first is None else first.device
    return fn, dtype or own_dtype, torch.device(device or own_device)


@torch.no_grad()
def operator_matrix(
    fn: Map,
    input_shape: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """The matrix A with fn(x) = A x + fn(0), for a linear or affine `fn`.

    Args:
        fn: a module, function or `Convolution` that treats the samples of a batch independently.
        input_shape: shape of one sample, without the batch dimension.
        dtype: dtype of the impulses; by default that of the module (torch's default for a function, float64 for a
            `Convolution`).
        device: device of the impulses; likewise.

    Returns:
        A matrix (outputs, inputs), in the dtype that `fn` returns.

    >>> from orthogonium.spectral import operator_matrix
    >>> operator_matrix(torch.nn.AvgPool1d(2), (1, 4))
    tensor([[0.5000, 0.5000, 0.0000, 0.0000],
            [0.0000, 0.0000, 0.5000, 0.5000]])
    """
    call, dtype, device = as_function(fn, dtype, device)
    shape = tuple(input_shape)
    inputs = math.prod(shape)
    origin = call(torch.zeros(1, *shape, dtype=dtype, device=device))
    if origin.shape[0] != 1:
        raise ShapeError(
            f"One sample of shape {shape} must give one sample, got {tuple(origin.shape)}: keep the batch."
        )
    columns = []
    for index in torch.arange(inputs, device=device).split(max(1, _CHUNK // max(inputs, origin.numel(), 1))):
        impulses = torch.zeros(len(index), inputs, dtype=dtype, device=device)
        impulses[torch.arange(len(index), device=device), index] = 1
        columns.append((call(impulses.reshape(-1, *shape)) - origin).flatten(1))
    return torch.cat(columns).T


def operator_singular_values(
    fn: Map,
    input_shape: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """All min(inputs, outputs) singular values of a linear or affine map, largest first: SVD of `operator_matrix`.

    >>> from orthogonium.spectral import operator_singular_values
    >>> pool = torch.nn.AvgPool1d(2)
    >>> [round(s, 4) for s in operator_singular_values(pool, (1, 4)).tolist()]
    [0.7071, 0.7071]
    """
    return torch.linalg.svdvals(operator_matrix(fn, input_shape, dtype=dtype, device=device).double())
