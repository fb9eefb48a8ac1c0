"""Weights that are kept in eval, and when they are reused.

Note [Eval cache]
The weight is rebuilt at each training step. In eval, where no gradient can flow, it is built once and kept, together
with what it was built from.

On CPUs that is a copy of the raw parameters, and the weight is served only while they still *equal* that copy.
Comparing contents costs a read of the raw parameters (far less than a build) and, unlike version counters, sees every
way of changing a tensor: optimizer steps, `load_state_dict`, `.to()`, edits through `.data`, EMA updates. No change of
the raw parameters goes unnoticed.

On accelerators a comparison would wait for the device at each call and prevent capture in a graph. There the weight is
served while the raw parameters are the same memory, of the same version. So the cache notices
- all operators that write to the parameters themselves: optimizer steps, `copy_`, EMA and SWA updates, `nn.init`;
- other memory: `.to()`, `.data = …`, `swap_tensors`, `load_state_dict(assign=True)`;
- `train()`, `eval()` and `load_state_dict`, which drop the weight, as does each call that needs gradients (the step
  that follows may write without a new version: shards that are gathered anew),
and does not notice
- operators that write to `parameter.data` or to other overlapping memory: `parameter.data.add_(1)`;
- writes below torch: replays of captured graphs that step the optimizer, custom kernels, collectives that preserve
  versions.
After such edits call `eval()` once; on every device, also after changing an option of a kernel or an orthogonalizer
(its number of steps), which the cache does not look at.
A graph that was captured in eval holds the weight from its capture.

The weight itself is not compared, only its version counter: do not edit a served weight through `.data`.
To avoid all checks in deployment, remove the parametrization.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

import torch
from torch import Tensor

from orthogonium.linalg.evaluation import waits

_memcmp = (ctypes.cdll.msvcrt if os.name == "nt" else ctypes.CDLL(None)).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def same_values(a: Tensor, b: Tensor) -> bool:
    """Whether two CPU tensors of the same shape and dtype are equal; bit by bit, where libc is fastest."""
    if not (a.is_contiguous() and b.is_contiguous()):
        return torch.equal(a, b)
    return _memcmp(a.data_ptr(), b.data_ptr(), a.nbytes) == 0


class Kept:
    """A weight, and what it was built from."""

    def __init__(self, raw: tuple[Tensor, ...], build: Callable[[tuple[Tensor, ...]], Tensor]) -> None:
        # Outside inference mode, so that the version counter of the weight exists.
        with torch.inference_mode(False), torch.no_grad():
            # Memory held here is not reused for other tensors: on accelerators equal addresses mean equal parameters.
            self.seen = tuple(p.detach() if waits(p) else p.detach().clone() for p in raw)
            self.weight = build(self.seen)
        self.version, self.raw_versions = self.weight._version, [q._version for q in self.seen]

    def is_current(self, raw: tuple[Tensor, ...]) -> bool:
        """Whether the weight is as it was built, from these raw parameters. Note [Eval cache]."""
        same = map(self._is_same, raw, self.seen, self.raw_versions)
        return self.weight._version == self.version and all(same)

    @staticmethod
    def _is_same(p: Tensor, q: Tensor, version: int) -> bool:
        if p.shape != q.shape or p.dtype != q.dtype or p.device != q.device:
            return False
        if waits(p):
            return p.data_ptr() == q.data_ptr() and p.stride() == q.stride() and p._version == version
        return same_values(p, q)
