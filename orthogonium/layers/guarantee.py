"""What layers promise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from orthogonium.errors import ParameterError


@dataclass(frozen=True)
class Guarantee:
    """What a layer promises about the linear map, or the function, it applies.

    Attributes:
        kind: "orthogonal": all singular values are `constant` (for 1, an isometry or the adjoint of one; for a
            nonlinear function, each Jacobian is one); or "lipschitz": no distance between two inputs grows by more
            than `constant`.
        constant: the Lipschitz constant.
        each_output: whether the constant only holds for each output by itself.
        image_sizes: for layers on images, what the image sizes must be multiples of for the singular values to be as
            large as promised; for other sizes the layer keeps its constant.
        every_window: whether the padding keeps every window of an image.
        smallest: lower bound on the singular values, as a fraction of `constant`, if more is known than `kind` says.
        note: anything else to tell the reader.

    >>> print(Guarantee("orthogonal", image_sizes=(2, 2)))
    all singular values 1, for image sizes divisible by the stride; 1-Lipschitz for others
    """

    kind: Literal["orthogonal", "lipschitz"]
    constant: float = 1.0
    each_output: bool = False
    image_sizes: tuple[int, ...] = ()
    every_window: bool = True
    smallest: float = 0.0
    note: str = ""

    @property
    def depends_on_size(self) -> bool:
        """Whether singular values may be smaller than promised for some image sizes."""
        return any(n > 1 for n in self.image_sizes)

    def __str__(self) -> str:
        meaning = f"all singular values {self.constant:.6g}" if self.kind == "orthogonal" else self._lipschitz
        noted = [self.note] if self.note and self.image_sizes else []
        return ", ".join((meaning, *self._conditions(), *noted))

    @property
    def _lipschitz(self) -> str:
        return f"{self.constant:.6g}-Lipschitz"

    def _conditions(self) -> list[str]:
        divisible = "for image sizes divisible by the stride"
        if self.smallest:
            bound = f"with all singular values above {self.constant:.6g} − {self.constant * (1 - self.smallest):.1e}"
            return [bound, divisible] if self.depends_on_size else [bound]
        if self.kind == "orthogonal" and self.depends_on_size:
            return [f"{divisible}; {self._lipschitz} for others"]
        if self.image_sizes:
            return ["for every image size" + ("" if self.every_window else " (the padding leaves out windows)")]
        return [self.note or ("for each output by itself" if self.each_output else "always")]


def check_constant(lipschitz: float, name: str) -> float:
    """Check the constant of a layer, any positive number, and return it."""
    number = isinstance(lipschitz, (int, float)) and not isinstance(lipschitz, bool)
    if not (number and 0 < lipschitz < math.inf):
        raise ParameterError(
            f"{name}: lipschitz, the constant of the layer, must be a positive finite number, got {lipschitz!r}."
        )
    return float(lipschitz)
