"""Images in a folder per class, laid out like ImageNet: `train/CLASS/….jpg` and `val/CLASS/….jpg`, read when needed.

JPEG and PNG files are decoded by torchvision if it can be imported, all others and all failures by Pillow.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from orthogonium.data.crop_windows import window_box
from orthogonium.data.files import required_root
from orthogonium.data.image_data import ImageData, ImageSource
from orthogonium.errors import DataError, ParameterError, lacking

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp")
_NATIVE = (".jpg", ".jpeg", ".png")
_CONTENTS = "a folder with train/CLASS/image files and val/CLASS/image files"


class FolderImages(ImageSource):
    """Colour images in files, each cut to a square and scaled to `size`×`size` pixels when it is fetched.

    Args:
        paths: image files.
        labels: (n,), int64.
        size: side of the fetched images, in pixels.
    """

    def __init__(self, paths: Sequence[str], labels: Tensor, size: int) -> None:
        if len(paths) != len(labels):
            raise DataError(f"FolderImages needs a label for each file: got {len(paths)} and {len(labels)}.")
        if size < 1:
            raise ParameterError(f"FolderImages needs an image size ≥ 1: got {size}.")
        # one array: worker processes that count references to a million strings would copy them all
        self.paths = np.asarray(paths, dtype=np.str_)
        self.labels = labels
        self.size = size

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        return 3, self.size, self.size

    def fetch(self, indices: Tensor, windows: Tensor | None = None) -> Tensor:
        """The images (b, 3, size, size) at `indices` (b,), uint8.

        Without `windows` (b, 4), it is the largest centered square of each image; with them, that part of each image.
        """
        rows: list[Tensor | None] = [None] * len(indices) if windows is None else list(windows)
        return torch.stack([self._read(self.paths[i], row) for i, row in zip(indices.tolist(), rows, strict=True)])

    def subset(self, indices: Tensor) -> FolderImages:
        """The files at `indices`."""
        return FolderImages(self.paths[indices.numpy()].tolist(), self.labels[indices], self.size)

    def _read(self, path: str, window: Tensor | None) -> Tensor:
        image = decode(path)
        height, width = image.shape[1:]
        if window is None:
            h = w = min(height, width)
            top, left = (height - h) // 2, (width - w) // 2
        else:
            top, left, h, w = (int(side) for side in window_box(window, height, width).round())
            h, w = max(h, 1), max(w, 1)
            top, left = min(top, height - h), min(left, width - w)
        part = image[None, :, top : top + h, left : left + w]
        if (h, w) != (self.size, self.size):
            part = F.interpolate(part, (self.size, self.size), mode="bilinear", antialias=True)
        return part[0].contiguous()


def load_image_folder(root: Path | None = None, image_size: int = 224) -> ImageData:
    """The images below `root`, not read yet; classes are the folders of `train`, sorted by name."""
    root = required_root(root, "image-folder", _CONTENTS)
    held_out = root / "val" if (root / "val").is_dir() else root / "test"
    for folder in (root / "train", held_out):
        if not folder.is_dir():
            raise DataError(f"image-folder: {root} has no folder {folder.name}. root= must be {_CONTENTS}.")
    classes = tuple(sorted(entry.name for entry in (root / "train").iterdir() if entry.is_dir()))
    return ImageData(
        _scan(root / "train", classes, image_size), _scan(held_out, classes, image_size), classes, "image-folder"
    )


def _scan(folder: Path, classes: tuple[str, ...], size: int) -> FolderImages:
    if unknown := sorted({entry.name for entry in folder.iterdir() if entry.is_dir()} - set(classes)):
        raise DataError(f"image-folder: {folder} has classes that are not in train: {', '.join(unknown[:5])}.")
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = [
            os.path.join(place, file)
            for place, _, files in os.walk(folder / name)
            for file in files
            if file.lower().endswith(SUFFIXES)
        ]
        paths += sorted(found)
        labels += [label] * len(found)
    if not paths:
        raise DataError(
            f"image-folder: {folder} has no image files ({', '.join(SUFFIXES)}). root= must be {_CONTENTS}."
        )
    return FolderImages(paths, torch.tensor(labels, dtype=torch.int64), size)


def decode(path: str) -> Tensor:
    """The colour image (3, h, w) in a file, uint8."""
    native = _torchvision_decoder()
    if native is not None and path.lower().endswith(_NATIVE):
        try:
            return native(path)
        except RuntimeError:  # its codecs know fewer variants than Pillow's, which also says what is wrong
            pass
    return _decode_with_pillow(path)


@cache
def _torchvision_decoder() -> Callable[[str], Tensor] | None:
    """The decoder of torchvision, or None if there is no working one."""
    try:
        from torchvision.io import ImageReadMode, decode_image, read_file
    except (ImportError, RuntimeError, OSError, AttributeError):
        # absent; or built for another torch: operators missing, a library that does not load, names that moved
        return None
    return lambda path: decode_image(read_file(path), ImageReadMode.RGB)


def _decode_with_pillow(path: str) -> Tensor:
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise lacking("Reading image files needs Pillow") from error
    try:
        with Image.open(path) as image:
            return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        size = f"{os.path.getsize(path):,} bytes" if os.path.exists(path) else "the file is gone"
        raise DataError(f"{path} is no image or cut short ({error}; {size}). Replace or remove it.") from error
