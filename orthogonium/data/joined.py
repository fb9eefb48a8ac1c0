"""Two sources of images as one."""

from __future__ import annotations

import torch
from torch import Tensor

from orthogonium.data.image_data import Images, ImageSource, unit_pixels
from orthogonium.errors import DataError


class JoinedImages(ImageSource):
    """The images of one source, followed by those of another.

    Args:
        first: source of the images at the first indices.
        second: source of images of the same shape, at the indices that follow.
    """

    def __init__(self, first: ImageSource, second: ImageSource) -> None:
        if first.image_shape != second.image_shape:
            raise DataError(f"Images of shape {first.image_shape} and {second.image_shape} cannot be mixed.")
        self.first, self.second = first, second
        self.labels = torch.cat([first.labels, second.labels])

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        return self.first.image_shape

    def fetch(self, indices: Tensor, windows: Tensor | None = None) -> Tensor:
        """The images (b, c, h, w) at `indices` (b,), in order; float32 if either source gives that."""
        is_second = indices >= len(self.first)
        if not is_second.any():
            return self.first.fetch(indices, windows)
        if is_second.all():
            return self.second.fetch(indices - len(self.first), windows)
        parts = []
        for source, mine, offset in ((self.first, ~is_second, 0), (self.second, is_second, len(self.first))):
            parts.append(source.fetch(indices[mine] - offset, None if windows is None else windows[mine]))
        if parts[0].dtype != parts[1].dtype:
            parts = [unit_pixels(part) for part in parts]
        images = parts[0].new_empty(len(indices), *self.image_shape)
        images[~is_second], images[is_second] = parts
        return images

    def subset(self, indices: Tensor) -> Images:
        """The images at `indices`, in memory."""
        return Images(self.fetch(indices), self.labels[indices])

    def digest(self) -> str:
        """The digests of both sources."""
        return f"{self.first.digest()} {self.second.digest()}"
