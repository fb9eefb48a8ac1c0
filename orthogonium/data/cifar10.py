"""CIFAR-10: 60,000 colour images of 32×32 pixels in ten classes, from its binary or its python distribution.

A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009; https://www.cs.toronto.edu/~kriz/cifar.html.
Either is read from its folder or straight from its `.tar.gz`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from orthogonium.data.files import read_bytes, read_members, required_root
from orthogonium.data.image_data import ImageData, Images
from orthogonium.data.pickles import load_plain_pickle
from orthogonium.errors import DataError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PIXELS = 3 * 32 * 32
STANDARD_COUNT = 10_000  # images in each file as distributed
_CONTENTS = (
    "a folder with cifar-10-batches-bin or cifar-10-batches-py (or that folder itself), "
    "or a file cifar-10-binary.tar.gz or cifar-10-python.tar.gz"
)
_Batch = tuple[np.ndarray, np.ndarray]  # pixels (n, 3072) and labels (n,)


def load_cifar10(root: Path | None = None) -> ImageData:
    """CIFAR-10 from `root`: 5 files to train on and one to test on, all with the same number of images."""
    root = required_root(root, "cifar10", _CONTENTS)
    names, parse, place, files = _open(root)
    if missing := [name for name in names if name not in files]:
        raise DataError(
            f"cifar10: {place} lacks {', '.join(missing)} (found {len(files)} of {len(names)} files). Unpack it again."
        )
    batches = [parse(files[name], f"{place / name}") for name in names]
    counts = {name: len(labels) for name, (_, labels) in zip(names, batches, strict=True)}
    if len(set(counts.values())) > 1:
        raise DataError(
            f"cifar10: the files of {place} must all hold the same number of images ({STANDARD_COUNT:,} as "
            f"distributed): found {counts}. The short ones are cut; download them again."
        )
    return ImageData(_images(batches[:5]), _images(batches[5:]), CLASSES, "cifar10")


def _open(root: Path) -> tuple[list[str], Callable[[bytes, str], _Batch], Path, dict[str, bytes]]:
    """File names, their parser, where they are and what they hold, of the first distribution found at `root`."""
    binary = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    python = [name.removesuffix(".bin") for name in binary]
    if root.is_file():
        members = read_members(root, binary + python)
        names, parse = (binary, parse_binary) if any(name in members for name in binary) else (python, parse_python)
        return names, parse, root, members
    for folder in (root, root / "cifar-10-batches-bin", root / "cifar-10-batches-py"):
        for names, parse in ((binary, parse_binary), (python, parse_python)):
            if found := [name for name in names if (folder / name).is_file()]:
                return names, parse, folder, {name: read_bytes(folder / name) for name in found}
    for archive in (root / "cifar-10-binary.tar.gz", root / "cifar-10-python.tar.gz"):
        if archive.is_file():
            return _open(archive)
    raise DataError(f"cifar10: no CIFAR-10 files in {root}. root= must be {_CONTENTS}.")


def parse_binary(raw: bytes, path: str) -> _Batch:
    """Parse records of one label byte and 3072 pixel bytes (red, green, blue planes)."""
    if not raw or len(raw) % (1 + PIXELS):
        raise DataError(
            f"{path} is cut short or not CIFAR-10: expected records of {1 + PIXELS} bytes "
            f"({STANDARD_COUNT * (1 + PIXELS):,} bytes as distributed), found {len(raw):,} bytes. Download it again."
        )
    records = np.frombuffer(raw, dtype=np.uint8).reshape(-1, 1 + PIXELS)
    return records[:, 1:], _checked_labels(records[:, 0], path)


def parse_python(raw: bytes, path: str) -> _Batch:
    """Parse a pickled dict with `data` (n, 3072) and `labels` (n)."""
    table = load_plain_pickle(raw, path)
    if not isinstance(table, dict):
        raise DataError(f"{path} is not CIFAR-10: expected a pickled dict, found {type(table).__name__}.")
    pixels, labels = (table.get(key.encode(), table.get(key)) for key in ("data", "labels"))
    if not (
        isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.ndim == 2 and pixels.shape[1] == PIXELS
    ):
        found = f"{pixels.dtype} {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
        raise DataError(f"{path} is not CIFAR-10: expected data as uint8 (n, {PIXELS}), found {found}.")
    if not isinstance(labels, list) or len(labels) != len(pixels) or not all(type(label) is int for label in labels):
        raise DataError(f"{path} is not CIFAR-10: expected a list of {len(pixels)} integers as labels.")
    return pixels, _checked_labels(np.asarray(labels), path)


def _checked_labels(labels: np.ndarray, path: str) -> np.ndarray:
    if len(labels) and not (0 <= labels.min() and labels.max() < len(CLASSES)):
        raise DataError(
            f"{path} is damaged or not CIFAR-10: expected labels in 0 … {len(CLASSES) - 1}, "
            f"found {labels.min()} … {labels.max()}. Download it again."
        )
    return labels


def _images(batches: Sequence[_Batch]) -> Images:
    pixels = np.concatenate([pixels for pixels, _ in batches]).reshape(-1, 3, 32, 32)
    labels = np.concatenate([labels for _, labels in batches]).astype(np.int64)
    return Images(torch.from_numpy(pixels), torch.from_numpy(labels))
