"""Random augmentations of training images, drawn per sample and applied to a whole batch at once.

They act on images before the network sees them and keep pixels in [0, 1], so they affect no Lipschitz bound or
certificate. Drawing is separate from applying: a process draws for the whole global batch and applies its share, so a
sample is changed in the same way however many processes share the work.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from orthogonium.data.image_data import unit_pixels
from orthogonium.errors import ParameterError


class Augmentation(ABC):
    """A random map of images, split into drawing its random numbers and applying them.

    Make subclasses frozen dataclasses: `repr` shows the settings, and a resumed run compares them with the saved ones.
    """

    @abstractmethod
    def draw(self, count: int, generator: Generator) -> Tensor:
        """Random numbers (count, k) for `count` samples."""

    def windows(self, drawn: Tensor) -> Tensor | None:
        """The part (b, 4) of each image to read (see `orthogonium.data.crop_windows`), or None for all of it."""
        return None

    @abstractmethod
    def apply(self, images: Tensor, drawn: Tensor) -> Tensor:
        """Images (b, c, h, w), changed according to their rows of `drawn` (b, k)."""

    @property
    def reach(self) -> float:
        """Largest translation in pixels."""
        return 0

    def check(self, image_shape: tuple[int, int, int]) -> None:
        """Raise if images of this shape could be moved out of sight."""
        if self.reach >= min(image_shape[1:]):
            raise ParameterError(
                f"{self} may move an image of {image_shape[1]}×{image_shape[2]} pixels out of sight. "
                "Choose fewer pixels, e.g. augment='shift:1'."
            )


@dataclass(frozen=True)
class Identity(Augmentation):
    """Leaves images as they are."""

    def draw(self, count: int, generator: Generator) -> Tensor:
        """No random numbers: shape (count, 0)."""
        return torch.empty(count, 0, dtype=torch.int64)

    def apply(self, images: Tensor, drawn: Tensor) -> Tensor:
        """The images as they are."""
        return images


@dataclass(frozen=True)
class CropFlip(Augmentation):
    """A crop of the original size at a random position in the padded image, mirrored with probability ½.

    Without mirroring this is a translation by up to `padding` whole pixels.

    Args:
        padding: pixels added to each border.
        mode: what they contain: "zeros", or "reflect" for the image mirrored at its border.
        flip: whether to mirror left and right.

    >>> from orthogonium.data import CropFlip
    >>> shift = CropFlip(padding=1, flip=False)
    >>> image = torch.arange(9.0).view(1, 1, 3, 3) / 9
    >>> one_down = torch.tensor([[0, 1, 0]])  # the crop starts in the padding above; no flip
    >>> (shift.apply(image, one_down) * 9)[0, 0]
    tensor([[0., 0., 0.],
            [0., 1., 2.],
            [3., 4., 5.]])
    """

    padding: int = 4
    mode: Literal["zeros", "reflect"] = "zeros"
    flip: bool = True

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise ParameterError(f"CropFlip needs padding ≥ 0: got {self.padding}.")
        if self.mode not in ("zeros", "reflect"):
            raise ParameterError(f"CropFlip needs mode 'zeros' or 'reflect': got {self.mode!r}.")

    @property
    def reach(self) -> int:
        """Largest translation in pixels: the padding."""
        return self.padding

    def draw(self, count: int, generator: Generator) -> Tensor:
        """Row and column of the crop in the padded image, and 1 to mirror."""
        corner = torch.randint(2 * self.padding + 1, (count, 2), generator=generator)
        mirror = torch.randint(2, (count, 1), generator=generator) * int(self.flip)
        return torch.cat([corner, mirror], dim=1)

    def apply(self, images: Tensor, drawn: Tensor) -> Tensor:
        """The crops, through one gather: entry (i, j) of a crop is pixel (row + i, column ± j) of the padded image."""
        b, c, h, w = images.shape
        top, left, mirror = drawn.to(images.device).unsqueeze(2).unbind(1)  # (b, 1) each
        if self.padding:
            padding = (self.padding,) * 4
            images = F.pad(images, padding, mode="constant" if self.mode == "zeros" else self.mode)
        rows = top + torch.arange(h, device=images.device)
        columns = torch.arange(w, device=images.device)
        columns = left + torch.where(mirror.bool(), w - 1 - columns, columns)
        source = (rows[:, :, None] * images.shape[3] + columns[:, None, :]).view(b, 1, h * w)
        return images.flatten(2).gather(2, source.expand(b, c, h * w)).view(b, c, h, w)


@dataclass(frozen=True)
class ResizedCrop(Augmentation):
    """A random part of the image scaled to full size, mirrored with probability ½, as is usual for ImageNet.

    Images in files are cut before they are scaled, so a small part keeps its resolution.

    Args:
        smallest: smallest share of the image's area.
        ratio: largest ratio of the sides, of width to height or height to width.
    """

    smallest: float = 0.08
    ratio: float = 4 / 3

    def __post_init__(self) -> None:
        if not (0 < self.smallest <= 1 and 1 <= self.ratio < math.inf):
            raise ParameterError(f"ResizedCrop needs 0 < smallest ≤ 1 and ratio ≥ 1: got {self}.")

    def draw(self, count: int, generator: Generator) -> Tensor:
        """Area, ratio of the sides, the two positions, and 1 to mirror."""
        area, ratio, u, v, mirror = torch.rand(count, 5, generator=generator).unbind(1)
        area = self.smallest + (1 - self.smallest) * area
        return torch.stack([area, self.ratio ** (2 * ratio - 1), u, v, mirror.round()], dim=1)

    def windows(self, drawn: Tensor) -> Tensor:
        """What was drawn, without the mirroring."""
        return drawn[:, :4]

    def apply(self, images: Tensor, drawn: Tensor) -> Tensor:
        """Mirror; the rest was done when the images were read."""
        mirror = drawn[:, 4].bool().to(images.device).view(-1, 1, 1, 1)
        return torch.where(mirror, images.flip(-1), images)


@dataclass(frozen=True)
class Affine(Augmentation):
    """A small random rotation, zoom and translation, not restricted to whole pixels.

    Each new pixel is a convex combination of four old ones (bilinear), zero outside the image.

    Args:
        rotation: largest angle, in degrees.
        zoom: largest relative change of size.
        shift: largest translation along each axis, in pixels.
    """

    rotation: float = 10.0
    zoom: float = 0.1
    shift: float = 1.0

    def __post_init__(self) -> None:
        if not (0 <= self.rotation <= 180 and 0 <= self.zoom < 1 and 0 <= self.shift < math.inf):
            raise ParameterError(f"Affine needs 0 ≤ rotation ≤ 180, 0 ≤ zoom < 1 and 0 ≤ shift: got {self}.")

    @property
    def reach(self) -> float:
        """Largest translation in pixels along an axis."""
        return self.shift

    def draw(self, count: int, generator: Generator) -> Tensor:
        """Angle in radians, factor, and the two shifts in pixels."""
        largest = torch.tensor([math.radians(self.rotation), self.zoom, self.shift, self.shift])
        return (2 * torch.rand(count, 4, generator=generator) - 1) * largest

    def apply(self, images: Tensor, drawn: Tensor) -> Tensor:
        """Sample each image at the preimages of its pixels."""
        images = unit_pixels(images)
        h, w = images.shape[2:]
        angle, zoom, down, right = drawn.to(images.device).unbind(1)
        cos, sin = angle.cos() / (1 + zoom), angle.sin() / (1 + zoom)
        # torch measures both axes in [−1, 1]: a rotation of pixels is sheared by the ratio of the sides
        theta = torch.stack([cos, -sin * h / w, -2 * right / w, sin * w / h, cos, -2 * down / h], dim=1).view(-1, 2, 3)
        grid = F.affine_grid(theta, list(images.shape), align_corners=False)
        return F.grid_sample(images, grid, align_corners=False).clamp_(0, 1)  # weights may add up to 1 + rounding


AUGMENTATIONS: dict[str, Callable[[int | None], Augmentation]] = {
    "none": lambda pixels: Identity(),
    "flip": lambda pixels: CropFlip(0),
    "crop-flip": lambda pixels: CropFlip(4 if pixels is None else pixels),
    "crop-flip-reflect": lambda pixels: CropFlip(4 if pixels is None else pixels, mode="reflect"),
    "shift": lambda pixels: CropFlip(1 if pixels is None else pixels, flip=False),
    "resized-crop": lambda pixels: ResizedCrop(),
    "affine": lambda pixels: Affine(shift=1 if pixels is None else pixels),
}
_WITHOUT_PIXELS = ("none", "flip", "resized-crop")


def make_augmentation(name: str | Augmentation) -> Augmentation:
    """The augmentation with this name: a key of `AUGMENTATIONS`, optionally with a number of pixels, as in "shift:2".

    >>> from orthogonium.data import make_augmentation
    >>> make_augmentation("crop-flip"), make_augmentation("shift:2")
    (CropFlip(padding=4, mode='zeros', flip=True), CropFlip(padding=2, mode='zeros', flip=False))
    """
    if isinstance(name, Augmentation):
        return name
    kind, colon, pixels = name.partition(":")
    if kind not in AUGMENTATIONS:
        raise ParameterError(f"Unknown augmentation {name!r}: choose among {', '.join(AUGMENTATIONS)}.")
    if colon and (kind in _WITHOUT_PIXELS or not pixels.isdecimal()):
        raise ParameterError(
            f"Unknown augmentation {name!r}: pixels are a whole number, as in 'crop-flip:2' or 'shift:2'."
        )
    return AUGMENTATIONS[kind](int(pixels) if colon else None)
