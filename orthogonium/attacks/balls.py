"""Models seen from unit balls, for libraries that support only one radius.

Note [One radius for all]
Libraries attack a batch with one radius, but certificates have one for each input. Around an input `x` with radius `r`
the model is `d ↦ f(x + r·d)`, to be attacked within ‖d‖ ≤ 1. Pixels are kept in their box by clamping `x + r·d`, which
only shortens the perturbation. A library may attack parts of a batch without saying which: then `d` carries the number
of its input, written in binary as black or white pixels of extra channels, which no perturbation in the ball can flip.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from orthogonium.attacks.distances import inner_radii


class UnitBalls(nn.Module):
    """`d ↦ f(x + r·d)` for a batch of inputs, in order. Note [One radius for all]."""

    def __init__(
        self, model: Callable[[Tensor], Tensor], images: Tensor, radii: Tensor, box: tuple[float, float]
    ) -> None:
        super().__init__()
        self.model, self.images, self.box = model, images, box
        self.radii = inner_radii(images, radii)

    def points(self, d: Tensor, index: Tensor | slice = slice(None)) -> Tensor:
        """The point of image space that `d` stands for."""
        return (self.images[index] + self.radii[index] * d).clamp(*self.box)

    def forward(self, d: Tensor) -> Tensor:
        """Logits of the model at the point that `d` stands for."""
        return self.model(self.points(d))


class NumberedUnitBalls(nn.Module):
    """The same for images `0.5 + scale·d` in [0, 1], with the number of the input in extra channels."""

    scale = 0.25  # half of what flips a black or white pixel

    def __init__(self, balls: UnitBalls) -> None:
        super().__init__()
        self.balls = balls
        count, self.channels, height, width = balls.images.shape
        bits = max(1, (count - 1).bit_length())
        pixels = height * width
        number = torch.arange(count, device=balls.images.device)
        written = (number[:, None] >> torch.arange(bits, device=number.device)) & 1
        padded = nn.functional.pad(written, (0, -bits % pixels)).reshape(count, -1, height, width)
        self.bits = bits
        self.start = torch.cat([torch.full_like(balls.images, 0.5), padded.to(balls.images)], dim=1)

    def points(self, z: Tensor) -> Tensor:
        """The point of image space that `z` stands for."""
        read = z.detach()[:, self.channels :].flatten(1)[:, : self.bits].round().long()
        number = (read << torch.arange(self.bits, device=z.device)).sum(dim=1)
        index = number.clamp(max=len(self.balls.images) - 1)  # outside the ball, any number may be read
        return self.balls.points((z[:, : self.channels] - 0.5) / self.scale, index)

    def forward(self, z: Tensor) -> Tensor:
        """Logits of the model at the point that `z` stands for."""
        return self.balls.model(self.points(z))
