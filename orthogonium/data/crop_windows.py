"""Windows: the part of an image to look at, as (area, ratio, u, v).

They are drawn before the size of the image is known, so they are independent of pixels: `area` is a share of the image,
`ratio` is width over height of the window, and (u, v) in [0, 1] place it between the upper and lower, and the left and
right borders.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def window_box(
    windows: Tensor,  # (…, 4)
    height: int,
    width: int,
) -> Tensor:  # (…, 4)
    """Top, left, height and width of windows in pixels; a window that would not fit is cut to the image."""
    area, ratio, u, v = windows.unbind(-1)
    h = (area / ratio * height * width).sqrt().clamp(max=height)
    w = (area * ratio * height * width).sqrt().clamp(max=width)
    return torch.stack([u * (height - h), v * (width - w), h, w], dim=-1)


def resample_windows(
    images: Tensor,  # (b, c, h, w), float32
    windows: Tensor,  # (b, 4)
) -> Tensor:  # (b, c, h, w)
    """Each image's window, enlarged to the size of the image: convex combinations of its pixels (bilinear)."""
    height, width = images.shape[2:]
    top, left, h, w = window_box(windows, height, width).unbind(-1)
    zero = torch.zeros_like(h)
    # torch measures both axes of an image in [−1, 1]
    across = torch.stack([w / width, zero, (2 * left + w) / width - 1], dim=-1)
    down = torch.stack([zero, h / height, (2 * top + h) / height - 1], dim=-1)
    grid = F.affine_grid(torch.stack([across, down], dim=1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False).clamp_(0, 1)
