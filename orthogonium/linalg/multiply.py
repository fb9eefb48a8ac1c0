"""Products of matrices, by oneDNN on processors that MKL does not use to the full.

Note [Half a processor]
Torch multiplies matrices by MKL, which uses AVX-512 on processors of Intel only. On those of AMD whose vector units are
that wide (family 26 on), half of each unit stays idle. OneDNN, by which torch convolves, uses all of it: 512×512
matrices are multiplied at 480 instead of 220 Gflop/s (two cores), kernels of 512 channels are built in 0.6 of the time.
Torch's compiler calls it by an operator with a private name; a 1×1 convolution, which is public, copies matrices into
other layouts and reaches 290 to 440. The operator obeys the precision of `mkldnn.matmul`: Note [Products] of
`products.py`. On other processors, this module does what torch does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from orthogonium.linalg.evaluation import HandWritten, evaluate

_FEWEST = 6 * 2**20  # products of numbers: with fewer, MKL is as fast
_THINNEST = 8  # the same of rows and columns
_FIRST_WIDE_FAMILY = 26


def amd_family(description: str) -> int:
    """The family of an AMD processor, as Linux describes it; 0 for any other."""
    found = dict(re.findall(r"^(vendor_id|cpu family)\s*: (\w+)$", description, re.MULTILINE))
    return int(found.get("cpu family", 0)) if found.get("vendor_id") == "AuthenticAMD" else 0


def _is_half_idle() -> bool:
    """Whether MKL leaves half of this processor idle, and oneDNN does not. Note [Half a processor]."""
    libraries = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    if not libraries or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    processor = Path("/proc/cpuinfo")
    return processor.is_file() and amd_family(processor.read_text()) >= _FIRST_WIDE_FAMILY


_HALF_IDLE = _is_half_idle()


def multiply(a: Tensor, b: Tensor) -> Tensor:  # (..., m, k), (..., k, n) → (..., m, n)
    """`AB`."""
    if not _pays(a, b):
        return torch.bmm(a, b) if a.dim() == 3 else a @ b
    if a.dim() == 3 and len(a) == 1:  # as a matrix, whose product need not be copied into a batch
        return evaluate(Product, a[0], b[0])[None]
    return evaluate(Product, a, b)


def add_product(x: Tensor, a: Tensor, b: Tensor, alpha: float = 1.0) -> Tensor:  # of batches; x is broadcast
    """`X + αAB`."""
    return torch.add(x, multiply(a, b), alpha=alpha) if _pays(a, b) else torch.baddbmm(x, a, b, alpha=alpha)


def _pays(a: Tensor, b: Tensor) -> bool:
    if not _HALF_IDLE or torch.compiler.is_compiling() or a.numel() * b.shape[-1] < _FEWEST:  # most are small
        return False
    m, k, n = *a.shape[-2:], b.shape[-1]
    large = min(m, k, n) >= _THINNEST and m * k * n >= _FEWEST
    alike = a.dtype == b.dtype == torch.float32 and a.dim() <= 3 and a.shape[:-2] == b.shape[:-2]
    return large and alike and a.device.type == "cpu"


class Product(HandWritten):
    """(A, B) → AB by oneDNN, in float32."""

    @staticmethod
    def compute(a: Tensor, b: Tensor) -> tuple[Tensor, list[Tensor]]:
        """One matrix after the other, each by all threads."""
        return _by_onednn(a, b) if a.dim() == 2 else torch.stack([*map(_by_onednn, a, b)]), []

    @staticmethod
    def adjoint(
        inputs: Sequence[Any], saved: list[Tensor], wants: Sequence[bool], grad: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """`GBᵀ` and `AᵀG`."""
        a, b = inputs
        return multiply(grad, b.mT) if wants[0] else None, multiply(a.mT, grad) if wants[1] else None

    @classmethod
    def plain(cls, a: Tensor, b: Tensor) -> Tensor:
        """By MKL."""
        return a @ b


def _by_onednn(a: Tensor, b: Tensor) -> Tensor:  # (m, k), (k, n) → (m, n)
    # In other layouts, such as columns of a wider matrix, oneDNN takes hundreds of times as long, or refuses.
    weight = b.mT if b.is_contiguous() else b.mT.contiguous()
    return torch.ops.mkldnn._linear_pointwise(a, weight, None, "none", [], "")
