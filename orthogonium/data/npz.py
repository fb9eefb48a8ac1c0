"""Additional training images from an `.npz` file: arrays `image` (n, height, width, 3), uint8, and `label` (n,).

This is how generated images come in the literature: Wang, Pang, Du, Lin, Liu, Yan (2023), "Better diffusion models
further improve adversarial training". A million of them take 3 GB: an array that was saved without compression
(`numpy.savez`) stays on disk and is memory-mapped; a compressed one (`numpy.savez_compressed`) is read.
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orthogonium.data.crop_windows import resample_windows
from orthogonium.data.image_data import ImageSource, unit_pixels
from orthogonium.errors import DataError

_CONTENTS = "an .npz file with arrays image (n, height, width, channels) of uint8 and label (n,) of whole numbers"
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, …, lengths of the name and of the extra field after it


class ArrayImages(ImageSource):
    """Images in an array with channels last, in memory or mapped from a file.

    Args:
        images: (n, h, w, c), uint8.
        labels: (n,), int64.
    """

    def __init__(self, images: NDArray[np.uint8], labels: Tensor) -> None:
        self.images = images
        self.labels = labels

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        height, width, channels = self.images.shape[1:]
        return channels, height, width

    def fetch(self, indices: Tensor, windows: Tensor | None = None) -> Tensor:
        """The images (b, c, h, w) at `indices` (b,), uint8; `windows` (b, 4) of them in float32."""
        images = torch.from_numpy(self.images[indices.numpy()]).permute(0, 3, 1, 2)
        return images if windows is None else resample_windows(unit_pixels(images), windows)

    def subset(self, indices: Tensor) -> ArrayImages:
        """A copy of the images at `indices`."""
        return ArrayImages(self.images[indices.numpy()], self.labels[indices])


def load_npz(path: str | os.PathLike[str], image_shape: tuple[int, int, int], n_classes: int) -> ArrayImages:
    """The images of an `.npz` file, checked to have this shape and labels below `n_classes`.

    Args:
        path: the file; nothing in it is executed.
        image_shape: channels, height and width that images must have.
        n_classes: number of classes.

    Raises:
        DataError: the file is missing, cut short or not in this format, or its images do not fit.
    """
    file = Path(os.path.expanduser(path))
    if not file.is_file():
        raise DataError(f"There is no file {file}. Extra images are {_CONTENTS}.")
    try:
        with zipfile.ZipFile(file) as archive:
            missing = [name for name in ("image", "label") if f"{name}.npy" not in archive.namelist()]
            if missing:
                found = ", ".join(n.removesuffix(".npy") for n in archive.namelist()) or "nothing"
                raise DataError(f"{file} has no array {' and '.join(missing)}: it has {found}. It must be {_CONTENTS}.")
            images, labels = _array(file, archive, "image.npy"), _array(file, archive, "label.npy")
    except DataError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, struct.error) as error:
        raise DataError(
            f"{file} is cut short or not {_CONTENTS} ({error}; {file.stat().st_size:,} bytes). Download it again."
        ) from error
    return _checked(file, images, labels, image_shape, n_classes)


def _array(file: Path, archive: zipfile.ZipFile, name: str) -> NDArray[np.generic]:
    """An array of the archive, memory-mapped if its bytes are stored as they are."""
    member = archive.getinfo(name)
    with archive.open(member) as stream:
        shape, fortran, dtype = _npy_header(stream)
        if dtype.hasobject:
            raise ValueError(f"{name} holds Python objects, not numbers")
        if member.compress_type != zipfile.ZIP_STORED or fortran:
            stream.seek(0)
            return np.lib.format.read_array(stream, allow_pickle=False)
        header = stream.tell()
    with file.open("rb") as raw:
        raw.seek(member.header_offset)
        signature, name_length, extra_length = _LOCAL_HEADER.unpack(raw.read(_LOCAL_HEADER.size))
    if signature != b"PK\x03\x04":
        raise zipfile.BadZipFile(f"{name} does not start where the archive says")
    start = member.header_offset + _LOCAL_HEADER.size + name_length + extra_length
    if member.file_size - header < dtype.itemsize * int(np.prod(shape, dtype=np.int64)):
        raise ValueError(f"{name} has fewer bytes than its shape {shape} needs")
    # "c": a write would change the copy of this process only, and torch takes the array without a warning
    return np.memmap(file, dtype, "c", start + header, shape)


def _npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Shape, order and type of the array that follows."""
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(stream)


def _checked(
    file: Path,
    images: NDArray[np.generic],
    labels: NDArray[np.generic],
    image_shape: tuple[int, int, int],
    n_classes: int,
) -> ArrayImages:
    channels, height, width = image_shape
    if images.shape[1:] != (height, width, channels) or images.dtype != np.uint8:
        raise DataError(
            f"{file}: extra images must be uint8 and of the shape of the others, (n, {height}, {width}, {channels}): "
            f"got {images.dtype} {images.shape}."
        )
    if labels.shape != images.shape[:1] or not np.issubdtype(labels.dtype, np.integer) or not len(labels):
        raise DataError(
            f"{file}: there must be a whole number as label for each of {len(images)} images, at least one: got "
            f"{labels.dtype} {labels.shape}."
        )
    if labels.min() < 0 or labels.max() >= n_classes:
        raise DataError(
            f"{file}: labels must lie in 0 … {n_classes - 1} for {n_classes} classes: got {labels.min()} … "
            f"{labels.max()}."
        )
    return ArrayImages(images, torch.from_numpy(labels.astype(np.int64)))  # type: ignore[arg-type]
