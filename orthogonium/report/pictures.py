"""Images as PNG inside the page."""

from __future__ import annotations

import base64
import struct
import zlib

import torch
from torch import Tensor

from orthogonium.errors import ShapeError


def is_picture(x: Tensor) -> bool:
    """Whether it can be shown as an image: (1 or 3, height, width)."""
    return x.dim() == 3 and x.shape[0] in (1, 3)


def png(image: Tensor) -> bytes:
    """A PNG file of an image (1 or 3, height, width), uint8, or floats in [0, 1].

    >>> from orthogonium.report.pictures import png
    >>> png(torch.zeros(1, 2, 2))[1:4]
    b'PNG'
    """
    if not is_picture(image):
        raise ShapeError(f"A picture has shape (1 or 3, height, width): got {tuple(image.shape)}.")
    if image.is_floating_point():
        image = (image.detach().clamp(0, 1) * 255).round().to(torch.uint8)
    channels, height, width = image.shape
    rows = image.permute(1, 2, 0).reshape(height, width * channels).cpu()
    raw = b"".join(b"\0" + bytes(row.tolist()) for row in rows)  # filter 0 before every row
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def data_uri(image: Tensor) -> str:
    """The picture as a data URI."""
    return "data:image/png;base64," + base64.b64encode(png(image)).decode("ascii")


def stretched(change: Tensor) -> Tensor:
    """A perturbation as an image: grey where nothing changes, black or white at the largest change.

    >>> from orthogonium.report.pictures import stretched
    >>> stretched(torch.tensor([-0.02, 0.0, 0.01]))
    tensor([0.0000, 0.5000, 0.7500])
    """
    largest = change.abs().amax()
    return torch.full_like(change, 0.5) if largest == 0 else 0.5 + change / (2 * largest)
