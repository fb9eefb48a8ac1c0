"""Random orthogonal matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from orthogonium.linalg.triangular import qr


def random_orthogonal(
    shape: tuple[int, ...],  # (..., rows, columns)
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Matrices drawn uniformly (Haar measure) among those with all singular values 1.

    >>> w = random_orthogonal((2, 3, 5))
    >>> torch.testing.assert_close(w @ w.mT, torch.eye(3).expand(2, 3, 3))
    """
    dtype = dtype or torch.get_default_dtype()
    # Drawn and made orthogonal in float32 or better, on the device of the generator if there is one.
    source = device if generator is None else generator.device
    w = torch.empty(shape, device=source, dtype=torch.promote_types(dtype, torch.float32))
    if w.numel() and not w.is_meta:
        w = qr(w.normal_(generator=generator))
    return w.to(device=device, dtype=dtype).contiguous()
