"""Images as PNG inside the page, and the choice of those worth a look."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from orthogonium.certification import Certificates
from orthogonium.errors import ShapeError


@dataclass(frozen=True)
class Sample:
    """An input, what it is, what the model says, and how far it may provably be moved (negative if wrong).

    Attributes:
        image: (channels, height, width), uint8, or floats in [0, 1].
        label: the true class.
        prediction: that of the model.
        radius: certified, l2.
        attacked: l2 norm of the smallest perturbation known to change the class, None if none was found.
    """

    image: Tensor
    label: str
    prediction: str
    radius: float
    attacked: float | None = None


@dataclass(frozen=True)
class Samples:
    """The most robust inputs, the least robust of the correct ones, and wrong ones."""

    most: tuple[Sample, ...]
    least: tuple[Sample, ...]
    wrong: tuple[Sample, ...]


def choose_samples(
    certificates: Certificates,
    images: Tensor,
    classes: Sequence[str] | None = None,
    *,
    distances: Tensor | None = None,
    count: int = 8,
) -> Samples:
    """The inputs worth a look: largest and smallest certified radii, and the surest mistakes.

    Args:
        certificates: of these images.
        images: (n, channels, height, width), in the order of the certificates.
        classes: names of the classes; their numbers by default.
        distances: (n,) norms of the perturbations an attack has found, ∞ where it found none.
        count: of each sort.
    """
    if len(images) != len(certificates.labels):
        raise ShapeError(f"{len(certificates.labels)} certificates need as many images: got {len(images)}.")
    names = [str(i) for i in range(int(certificates.labels.max()) + 1)] if classes is None else list(classes)
    radii = certificates.radii

    def sample(i: int) -> Sample:
        label, prediction = int(certificates.labels[i]), int(certificates.predictions[i])
        attacked = None if distances is None or not distances[i].isfinite() else float(distances[i])
        return Sample(images[i], _name(names, label), _name(names, prediction), float(radii[i]), attacked)

    order = torch.argsort(radii, descending=True)
    right = order[certificates.correct[order]].tolist()
    wrong = order[~certificates.correct[order]].flip(0).tolist()  # surest mistakes first
    most = right[:count]
    least = [i for i in right[::-1][:count] if i not in most]
    return Samples(tuple(map(sample, most)), tuple(map(sample, least)), tuple(map(sample, wrong[:count])))


def _name(names: Sequence[str], index: int) -> str:
    return names[index] if index < len(names) else str(index)


def png(image: Tensor) -> bytes:
    """A PNG file of an image (1 or 3, height, width), uint8, or floats in [0, 1].

    >>> from orthogonium.report.pictures import png
    >>> png(torch.zeros(1, 2, 2))[1:4]
    b'PNG'
    """
    if image.dim() != 3 or image.shape[0] not in (1, 3):
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
    """The picture as an address that contains it."""
    return "data:image/png;base64," + base64.b64encode(png(image)).decode("ascii")
