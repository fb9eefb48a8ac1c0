"""MNIST and Fashion-MNIST from their idx files, plain or gzipped: 70,000 grey images of 28×28 pixels in ten classes.

Y. LeCun, C. Cortes, C. Burges, The MNIST database of handwritten digits, 1998.
H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST, arXiv:1708.07747, 2017.

An idx file is a big-endian header (0, 0, type 8 for uint8, number of axes; the size of each axis) and then the bytes.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import torch

from orthogonium.data.files import read_bytes, required_root
from orthogonium.data.image_data import ImageData, Images
from orthogonium.errors import DataError

CLOTHES = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
_FOLDERS = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}  # as torchvision names them


def load_mnist(root: Path | None = None) -> ImageData:
    """Handwritten digits from the four idx files at `root`."""
    return _load("mnist", tuple(map(str, range(10))), root)


def load_fashion_mnist(root: Path | None = None) -> ImageData:
    """Articles of clothing from the four idx files at `root`."""
    return _load("fashion-mnist", CLOTHES, root)


def _load(name: str, classes: tuple[str, ...], root: Path | None) -> ImageData:
    folder = required_root(root, name, "the folder with train-images-idx3-ubyte and its three companions (or .gz)")
    for inner in (folder / _FOLDERS[name] / "raw", folder / "raw"):
        if inner.is_dir():
            folder = inner
            break
    return ImageData(_part(folder, "train"), _part(folder, "t10k"), classes, name)


def _part(folder: Path, stem: str) -> Images:
    image_path, label_path = _find(folder, f"{stem}-images", 3), _find(folder, f"{stem}-labels", 1)
    pixels, labels = read_idx(image_path, axes=3), read_idx(label_path, axes=1)
    if len(pixels) != len(labels):
        raise DataError(
            f"{image_path} has {len(pixels):,} images, but {label_path} has {len(labels):,} labels. "
            "They belong to different datasets; download both again."
        )
    return Images(torch.from_numpy(pixels).unsqueeze(1), torch.from_numpy(labels.astype(np.int64)))


def _find(folder: Path, stem: str, axes: int) -> Path:
    names = [f"{stem}{mark}idx{axes}-ubyte{gz}" for mark in "-." for gz in ("", ".gz")]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise DataError(
        f"{folder} has no {names[0]} (nor {', '.join(names[1:])}). Set root= to the folder of the idx files."
    )


def read_idx(path: Path, axes: int) -> np.ndarray:
    """The uint8 array of an idx file with that many axes."""
    raw = read_bytes(path)
    header = 4 * (1 + axes)
    if raw[:4] != bytes([0, 0, 8, axes]) or len(raw) < header:
        raise DataError(
            f"{path} is no idx file of bytes with {axes} axes: it must start with 00 00 08 {axes:02x} and a header of "
            f"{header} bytes, found {raw[:4].hex(' ') or 'nothing'} and {len(raw):,} bytes. Download it again."
        )
    shape = struct.unpack(f">{axes}I", raw[4:header])
    expected = header + math.prod(shape)
    if len(raw) != expected:
        raise DataError(
            f"{path} is cut short or damaged: expected {expected:,} bytes for {'×'.join(map(str, shape))}, "
            f"found {len(raw):,}. Download it again."
        )
    return np.frombuffer(raw, dtype=np.uint8, offset=header).reshape(shape).copy()
