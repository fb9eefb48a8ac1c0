"""The same function in float64: what a module computes, free of the rounding of its own dtype."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pickle import PickleError

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from orthogonium.spectral.operator import Map, as_function
from orthogonium.spectral.rounding import double

# How far a dtype may be from float64, relative to inputs and outputs: half precision rounds every intermediate value,
# and reduced-precision products of accelerators (TF32) keep ten bits of float32.
_AGREEMENT = {torch.float64: 1e-8, torch.float32: 1e-2, torch.float16: 5e-2, torch.bfloat16: 0.1}


def exact_twin(fn: Map, input_shape: Sequence[int], *, seed: int = 0) -> Callable[[Tensor], Tensor] | None:
    """A function on float64 batches that computes what `fn` does; None if there is none.

    The twin of a module is a copy in float64 whose weights are the numbers of the module: parametrizations are
    evaluated in the module's dtype and removed. A function is its own twin if it accepts float64. A copy that fails, or
    whose values differ from those of `fn` by more than the rounding of its dtype, is no twin.

    >>> from orthogonium.spectral import exact_twin
    >>> layer = torch.nn.Linear(3, 2, dtype=torch.bfloat16)
    >>> exact_twin(layer, (3,))(torch.zeros(1, 3, dtype=torch.float64)).dtype
    torch.float64
    """
    call, dtype, device = as_function(fn)
    if dtype == torch.float64 and not isinstance(fn, nn.Module):
        return call
    x = torch.randn(2, *input_shape, generator=torch.Generator().manual_seed(seed))
    x = torch.cat([x, torch.zeros_like(x[:1])]).to(device, dtype)
    with torch.no_grad():
        own = call(x)
        try:
            twin = _plain_copy(fn).double() if isinstance(fn, nn.Module) else call
            wide = twin(x.double())
        except (RuntimeError, TypeError, ValueError, PickleError):
            return None  # casts inside, tensors that are no parameters, parts that cannot be copied
    if wide.dtype != torch.float64 or wide.shape != own.shape:
        return None
    error = torch.linalg.vector_norm((double(own) - wide).flatten())
    size = torch.linalg.vector_norm(wide.flatten()) + torch.linalg.vector_norm(x.double().flatten())
    return twin if bool(error <= _AGREEMENT.get(dtype, 0.0) * size) else None


def _plain_copy(module: nn.Module) -> nn.Module:
    """A copy whose weights are parameters."""
    plain = copy.deepcopy(module)
    for part in list(plain.modules()):
        if parametrize.is_parametrized(part):
            # A copy shares the class that holds the parametrized properties; removing them there would break the
            # original.
            own = {k: v for k, v in vars(type(part)).items() if k not in ("__dict__", "__weakref__")}
            part.__class__ = type(type(part).__name__, type(part).__bases__, own)
            for name in list(part.parametrizations):  # type: ignore[arg-type]
                parametrize.remove_parametrizations(part, name)
    return plain
