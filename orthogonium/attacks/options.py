"""How to attack, whatever the attack is."""

from __future__ import annotations

from dataclasses import dataclass

from orthogonium.errors import ParameterError


@dataclass(frozen=True)
class AttackOptions:
    """The keywords of `attack`, `empirical_accuracy` and `break_certificates`.

    Attributes:
        method: one of `list_attacks()`.
        steps: number of steps of the attack; its default if None. Attacks without steps reject a number.
        restarts: number of starts, each from other random points; the attack's default if None.
        bounds: smallest and largest value of a pixel; by default points may leave the range of images.
        seed: seed for everything random. torch's global generator is left unchanged.
        batch_size: number of inputs attacked at once.
    """

    method: str = "pgd"
    steps: int | None = None
    restarts: int | None = None
    bounds: tuple[float, float] | None = None
    seed: int = 0
    batch_size: int = 500

    def __post_init__(self) -> None:
        for name in ("steps", "restarts", "batch_size"):  # with fewer, libraries would find nothing without a search
            number = getattr(self, name)
            if number is not None and number < 1:
                raise ParameterError(f"{name} of an attack is at least 1: got {number}.")
