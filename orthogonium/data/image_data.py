"""Labelled images, in memory or read on demand, under one interface."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from orthogonium.data.crop_windows import resample_windows
from orthogonium.errors import DataError, ParameterError

_DIGESTED = 256  # images of a source that reads them from files


def _sha256(*tensors: Tensor) -> str:
    digest = hashlib.sha256()
    for t in tensors:
        digest.update(repr((t.dtype, tuple(t.shape))).encode())
        digest.update(t.cpu().contiguous().numpy().data)
    return digest.hexdigest()


class ImageSource(ABC):
    """Labelled images of one shape that can be fetched in batches of indices."""

    labels: Tensor  # (n,), int64

    def __len__(self) -> int:
        return len(self.labels)

    @property
    @abstractmethod
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""

    @abstractmethod
    def fetch(self, indices: Tensor, windows: Tensor | None = None) -> Tensor:
        """The images (b, c, h, w) at `indices` (b,): uint8 in 0 … 255 or float32 in [0, 1].

        Given `windows` (b, 4) (see `orthogonium.data.crop_windows`), only that part of each, scaled to `image_shape`.
        """

    @abstractmethod
    def subset(self, indices: Tensor) -> ImageSource:
        """The images at `indices`, in that order."""

    def digest(self) -> str:
        """A digest of all labels and of some images, evenly spread: those in files take time to read."""
        index = torch.linspace(0, len(self) - 1, min(_DIGESTED, len(self))).round().long()
        return _sha256(self.labels, self.fetch(index))


@dataclass(frozen=True, eq=False)
class Images(ImageSource):
    """Images in memory, fetched by indexing one tensor.

    Args:
        pixels: (n, c, h, w), uint8 in 0 … 255 or float32 in [0, 1].
        labels: (n,), int64.

    >>> from orthogonium.data import Images
    >>> images = Images(torch.zeros(5, 3, 8, 8, dtype=torch.uint8), torch.arange(5))
    >>> len(images), images.image_shape, images.fetch(torch.tensor([0, 3])).shape
    (5, (3, 8, 8), torch.Size([2, 3, 8, 8]))
    """

    pixels: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.pixels.dim() != 4 or self.labels.shape != self.pixels.shape[:1] or self.labels.dtype != torch.int64:
            raise DataError(
                "Images needs pixels (n, c, h, w) and int64 labels (n,): got pixels "
                f"{tuple(self.pixels.shape)} and {self.labels.dtype} labels {tuple(self.labels.shape)}."
            )
        if self.pixels.dtype not in (torch.uint8, torch.float32):
            raise DataError(
                f"Images needs uint8 or float32 pixels: got {self.pixels.dtype}. Convert them with "
                "`.to(torch.float32)`."
            )
        if self.pixels.is_floating_point() and self.pixels.numel():
            low, high = (bound.item() for bound in self.pixels.aminmax())
            if not (low >= 0 and high <= 1):  # NaN fails as well
                raise DataError(
                    f"Images needs float pixels in [0, 1]: got {low:.4g} … {high:.4g}. "
                    "Scale them; a normalization belongs into the model, where its factor enters the Lipschitz "
                    "constant."
                )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        channels, height, width = self.pixels.shape[1:]
        return channels, height, width

    def fetch(self, indices: Tensor, windows: Tensor | None = None) -> Tensor:
        """The images (b, c, h, w) at `indices` (b,), in the dtype of `pixels`; `windows` (b, 4) of them in float32."""
        images = self.pixels.index_select(0, indices.to(self.pixels.device))
        return images if windows is None else resample_windows(unit_pixels(images), windows.to(images.device))

    def subset(self, indices: Tensor) -> Images:
        """A copy of the images at `indices`."""
        return Images(self.pixels[indices], self.labels[indices])

    def digest(self) -> str:
        """A digest of all labels and all images."""
        return _sha256(self.labels, self.pixels)


@dataclass(frozen=True, eq=False)
class ImageData:
    """A dataset of labelled images, split into a part to train on and a part to test on.

    Args:
        train: images to train on.
        test: images held out.
        classes: name of each label.
        name: name of the dataset.
    """

    train: ImageSource
    test: ImageSource
    classes: tuple[str, ...]
    name: str

    def __post_init__(self) -> None:
        if self.train.image_shape != self.test.image_shape:
            raise DataError(
                f"{self.name}: images to train on have shape {self.train.image_shape}, to test on "
                f"{self.test.image_shape}."
            )
        for part, source in (("train", self.train), ("test", self.test)):
            if not len(source):
                raise DataError(f"{self.name}: the {part} part has no images.")
            low, high = (bound.item() for bound in source.labels.aminmax())
            if low < 0 or high >= len(self.classes):
                raise DataError(
                    f"{self.name}: labels of the {part} part must lie in 0 … {len(self.classes) - 1} "
                    f"for {len(self.classes)} classes: got {low} … {high}."
                )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        return self.train.image_shape


def unit_pixels(images: Tensor) -> Tensor:
    """Pixels as float32 in [0, 1]: uint8 is divided by 255, float32 stays as it is."""
    return images.to(torch.float32).div_(255) if images.dtype == torch.uint8 else images


def stratified_split(labels: Tensor, fraction: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Indices to keep and indices to hold out, where each class gives `fraction` of its samples (rounded).

    A sample is held out if a hash of (seed, index) is among the smallest of its class. The hash (splitmix64) is
    plain arithmetic, so the split is the same with every version of every library.

    Args:
        labels: (n,), int64.
        fraction: between 0 and 1, exclusively.
        seed: determines the split.

    Returns:
        Two sorted index vectors.

    >>> from orthogonium.data import stratified_split
    >>> keep, hold = stratified_split(torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]), 0.25)
    >>> len(keep), len(hold)
    (6, 2)
    """
    if not 0 < fraction < 1:
        raise ParameterError(f"stratified_split needs a fraction between 0 and 1: got {fraction}.")
    if seed < 0:
        raise ParameterError(f"stratified_split needs a seed ≥ 0: got {seed}.")
    label = labels.cpu().numpy()
    order = np.lexsort((_splitmix64(seed, len(label)), label))  # by class, then by hash
    classes, first, counts = np.unique(label[order], return_index=True, return_counts=True)
    held_out = np.floor(counts * fraction + 0.5).astype(np.int64)
    if (held_out == counts).any() or not held_out.sum():
        raise ParameterError(
            f"stratified_split: holding out {fraction} of classes of {counts.min()} … {counts.max()} samples leaves "
            "nothing of a class, or holds out nothing. Choose another fraction."
        )
    rank = np.arange(len(label)) - np.repeat(first, counts)  # position inside its class
    hold = rank < np.repeat(held_out, counts)
    return torch.from_numpy(np.sort(order[~hold])), torch.from_numpy(np.sort(order[hold]))


def _splitmix64(seed: int, count: int) -> np.ndarray:
    """Hashes of 0 … count − 1: the `count` first numbers of the generator splitmix64 (Steele, Lea, Flood 2014)."""
    z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
