"""What layers promise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Guarantee:
    """What a layer promises about the linear map, or the function, it applies.

    Attributes:
        kind: "orthogonal", all singular values are 1 (an isometry or the adjoint of one; of a function that is not
            linear, each Jacobian is one); or "lipschitz", no two inputs are moved apart by more than `constant`.
        constant: the Lipschitz constant.
        each_output: whether it only holds for each output by itself.
        image_sizes: of layers on images, what their sizes must be multiples of for the singular values to be as large as
            promised; for other sizes the layer is 1-Lipschitz.
        every_window: whether the padding keeps every window of an image.
        smallest: what no singular value is below, if more is known than `kind` says.
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
        meaning = "all singular values 1" if self.kind == "orthogonal" else f"{self.constant:.6g}-Lipschitz"
        return ", ".join((meaning, *self._conditions()))

    def _conditions(self) -> list[str]:
        divisible = "for image sizes divisible by the stride"
        if self.smallest:
            bound = f"with all singular values above 1 − {1 - self.smallest:.1e}"
            return [bound, divisible] if self.depends_on_size else [bound]
        if self.kind == "orthogonal" and self.depends_on_size:
            return [f"{divisible}; 1-Lipschitz for others"]
        if self.image_sizes:
            return ["for every image size" + ("" if self.every_window else " (the padding leaves out windows)")]
        return [self.note or ("for each output by itself" if self.each_output else "always")]
