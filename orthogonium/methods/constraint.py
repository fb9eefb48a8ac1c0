"""The parametrization every constrained layer shares: raw parameters in, weight out, built once in eval.

Note [Eval cache]
The weight is rebuilt at each training step. Without gradients it is built once and kept, together with what it came from.

On CPUs that is a copy of the raw parameters, and the weight is served only while they still *equal* that copy. Comparing
contents costs a read of the raw parameters (far less than a build) and, unlike version counters, sees every way of changing
a tensor: optimizer steps, `load_state_dict`, `.to()`, edits through `.data`, EMA updates. A stale weight cannot be served.

Accelerators would have to be waited for at each call, and their work could not be captured in a graph. There the weight is
served while the raw parameters are the same memory, of the same version. So it notices
- all operators that write to the parameters themselves: optimizer steps, `copy_`, EMA and SWA updates, `nn.init`;
- other memory: `.to()`, `.data = …`, `swap_tensors`, `load_state_dict(assign=True)`;
- `train()`, `eval()` and `load_state_dict`, which forget the weight, as each call that wants gradients does (the step that
  follows may write without a new version: shards that are gathered anew),
and does not notice
- operators that write to `parameter.data` or to other memory that overlaps: `parameter.data.add_(1)`;
- what writes below torch: replays of captured graphs that step the optimizer, kernels of your own, collectives that
  preserve versions.
After such edits call `eval()` once. A graph that was captured in eval holds the weight of its capture.

The weight itself is not compared, only its version counter: what was served is not to be edited through `.data`.
Deployment that wants no check at all removes the parametrization.

Note [Precision]
Constraints are numerical algorithms: they run in float32 or better, whatever the storage dtype, autocast and the settings
of float32 products say (Note [Products] of `linalg/products.py`).
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from orthogonium.errors import ConstraintError
from orthogonium.linalg.precision import full_precision, has_values, waits

_memcmp = (ctypes.cdll.msvcrt if os.name == "nt" else ctypes.CDLL(None)).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def _same_values(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one shape and dtype on the CPU are equal; bit by bit, where libc is fastest."""
    if not (a.is_contiguous() and b.is_contiguous()):
        return torch.equal(a, b)
    return _memcmp(a.data_ptr(), b.data_ptr(), a.nbytes) == 0


class _Source:
    """What a raw parameter was when a weight was built from it. Note [Eval cache]."""

    def __init__(self, parameter: Tensor) -> None:
        self.waits = waits(parameter)
        # The same memory is not given to others while it is referred to here.
        self.seen = parameter.detach() if self.waits else parameter.detach().clone()
        self.version = parameter._version if self.waits else 0

    def is_current(self, p: Tensor) -> bool:
        q = self.seen
        if p.shape != q.shape or p.dtype != q.dtype or p.device != q.device:
            return False
        if self.waits:
            return p.data_ptr() == q.data_ptr() and p.stride() == q.stride() and p._version == self.version
        return _same_values(p, q)


def standard_strides(x: Tensor) -> Tensor:
    """Axes of size 1 may have any stride and still count as contiguous; torch 2.13 then convolves out of bounds."""
    standard = [math.prod(x.shape[i + 1 :]) for i in range(x.dim())]
    return x if list(x.stride()) == standard else x.clone(memory_format=torch.contiguous_format)


class Kept:
    """A weight, and what it was built from."""

    def __init__(self, raw: tuple[Tensor, ...], build: Callable[[tuple[Tensor, ...]], Tensor]) -> None:
        # Outside inference mode, so that the version counter of the weight exists.
        with torch.inference_mode(False), torch.no_grad():
            self.sources = tuple(map(_Source, raw))
            self.weight = build(tuple(source.seen for source in self.sources))
        self.version = self.weight._version

    def is_current(self, raw: tuple[Tensor, ...]) -> bool:
        """Whether the weight is as it was built, from these raw parameters."""
        return self.weight._version == self.version and all(
            source.is_current(p) for source, p in zip(self.sources, raw, strict=True)
        )


class Constraint(nn.Module):
    """Base of all parametrizations: subclasses give `build(*raw) -> weight`, a differentiable function."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: Kept | None = None
        self._initial: Tensor | tuple[Tensor, ...] | None = None

    def initial(self, device: torch.device | str | None, dtype: torch.dtype) -> Tensor | tuple[Tensor, ...]:
        """Random raw parameters to start from."""
        raise NotImplementedError

    def build(self, *raw: Tensor) -> Tensor:
        """The constrained weight of the raw parameters."""
        raise NotImplementedError

    def invert(self, weight: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Raw parameters that build `weight`, where the method has such a formula."""
        raise ConstraintError(
            f"{type(self).__name__} cannot recover its raw parameters from a weight. "
            "Load a state_dict, or remove the parametrization before assigning the weight."
        )

    def forward(self, *raw: Tensor) -> Tensor:
        """The constrained weight, from the cache when no gradient can flow (Note [Eval cache])."""
        kept = self.kept(raw)
        return self._evaluate(raw) if kept is None else kept.weight

    def kept(self, raw: tuple[Tensor, ...]) -> Kept | None:
        """The weight that is served without building it, unless gradients may flow or there are no values to compare."""
        differentiable = torch.is_grad_enabled() and any(p.requires_grad for p in raw)
        if self.training or differentiable:
            if self._kept is not None and waits(raw[0]):
                self._kept = None
            return None
        if not has_values(*raw) or any(p.is_inference() and waits(p) for p in raw):  # inference tensors have no version
            return None
        if self._kept is None or not self._kept.is_current(raw):
            kept = Kept(raw, self._evaluate)
            if not has_values(kept.weight):  # a mode made it fake
                return None
            self._kept = kept
        return self._kept

    def _evaluate(self, raw: tuple[Tensor, ...]) -> Tensor:
        """Note [Precision]."""
        return standard_strides(full_precision(self.build)(*raw))

    def separates(self, pixels: int) -> bool:
        """Whether `convolve` is cheaper than building the weight, for a batch of so many pixels."""
        return False

    def convolve(self, x: Tensor, pad: Callable[[Tensor, int], Tensor], *raw: Tensor) -> Tensor:
        """Convolve without the weight: `(n, g, in, *sizes)` → `(n, g, out, *sizes)`.

        `pad(x, axis)` adds the border of an axis, which is the third of the image that it is given.
        """
        raise NotImplementedError

    def right_inverse(self, weight: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Called by torch at registration (raw parameters are known then) and on `layer.weight = …`."""
        if self._initial is not None:
            raw, self._initial = self._initial, None
            return raw
        raw = self.invert(weight)
        rebuilt = self._evaluate(raw if isinstance(raw, tuple) else (raw,))
        tolerance = 1e-5 if weight.dtype.itemsize > 2 else 1e-2
        deviation = (rebuilt - weight).abs().max().item() if weight.numel() else 0.0
        if not deviation <= tolerance:
            raise ConstraintError(
                f"The assigned weight is outside the set of {type(self).__name__}: the nearest one it builds "
                f"differs by {deviation:.1e} (allowed {tolerance:.0e}). Project the weight first."
            )
        return raw

    def train(self, mode: bool = True) -> Constraint:
        """Forgets the kept weight: it is useless in training, and eval starts afresh."""
        self._kept = None
        super().train(mode)
        return self

    def _load_from_state_dict(self, *args: Any) -> None:
        self._kept = None
        super()._load_from_state_dict(*args)

    def _apply(self, *args: Any, **kwargs: Any) -> Constraint:
        self._kept = None  # and with it the memory it refers to
        return super()._apply(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}  # copies and pickles build their own


def constrain(layer: nn.Module, constraint: Constraint, raw: Tensor | tuple[Tensor, ...]) -> None:
    """Make `layer.weight` the output of `constraint`, with `raw` as its trainable parameters."""
    constraint._initial = raw
    parametrize.register_parametrization(layer, "weight", constraint, unsafe=True)
