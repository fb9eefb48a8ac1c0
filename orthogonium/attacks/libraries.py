"""Attacks of other libraries: foolbox (Rauber et al. 2020) and AutoAttack (Croce & Hein 2020).

They need the extra `[attack]`. Their results are only suggestions: the caller checks whether a point is of another
class, and how far away it is.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from orthogonium.attacks.balls import NumberedUnitBalls, UnitBalls
from orthogonium.attacks.distances import box_of
from orthogonium.attacks.options import AttackOptions
from orthogonium.errors import ParameterError, ShapeError, lacking


def library(name: str) -> Any:
    """The module of a library, or an error that says how to install it."""
    try:
        with warnings.catch_warnings():  # about their own imports
            warnings.simplefilter("ignore", DeprecationWarning)
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise lacking(
            f"This attack needs {name}", extra="attack", otherwise="The method 'pgd' does without."
        ) from error


class _Module(nn.Module):
    """A function as a module: libraries ask for `training`, `to` and the like."""

    def __init__(self, fn: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(x)


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Context with torch's generators set to `seed`, and restored afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@dataclass(frozen=True)
class Foolbox:
    """An attack of foolbox.

    Attributes:
        attack: its class there.
        smallest: whether it looks for the nearest adversarial point (and takes no radius).
        steps: default number of steps.
        count: its argument for the number of steps, None if there is none.
        options: further arguments.
    """

    attack: str
    smallest: bool
    steps: int = 0
    count: str | None = "steps"
    options: tuple[tuple[str, Any], ...] = ()

    def __call__(
        self,
        model: Callable[[Tensor], Tensor],
        images: Tensor,
        labels: Tensor,
        radii: Tensor,
        how: AttackOptions,
    ) -> Iterator[Tensor]:
        """The points it finds, once per restart."""
        if how.steps is not None and self.count is None:
            raise ParameterError(f"foolbox's {self.attack} has no steps: leave them out.")
        foolbox = library("foolbox")
        options = dict(self.options) | ({} if self.count is None else {self.count: how.steps or self.steps})
        attack = getattr(foolbox.attacks, self.attack)(**options)
        box = box_of(images, how.bounds)
        for restart in range(how.restarts or 1):
            with _seeded(how.seed + restart, images.device), torch.enable_grad():
                if self.smallest:
                    reach = float(radii.max()) if len(radii) else 0.0
                    wide = (float(images.min()) - reach, float(images.max()) + reach)
                    wrapped = foolbox.PyTorchModel(
                        _Module(model).eval(), bounds=how.bounds or wide, device=images.device
                    )
                    yield attack(wrapped, images, labels, epsilons=None)[0].detach()
                else:
                    balls = UnitBalls(model, images, radii, box).eval()
                    wrapped = foolbox.PyTorchModel(balls, bounds=(-2.0, 2.0), device=images.device)
                    d = attack(wrapped, torch.zeros_like(images), labels, epsilons=1.0)[0].detach()
                    yield balls.points(d)


def autoattack(
    model: Callable[[Tensor], Tensor],
    images: Tensor,
    labels: Tensor,
    radii: Tensor,
    how: AttackOptions,
) -> Iterator[Tensor]:
    """AutoAttack, standard version (APGD-CE, targeted APGD and FAB, Square), all inputs at once."""
    if how.steps is not None:
        raise ParameterError("AutoAttack fixes the steps of its parts: leave them out.")
    if images.dim() != 4 or min(images.shape[2:]) < 5:
        raise ShapeError(f"AutoAttack is for images (n, c, h, w) of at least 5×5 pixels: got {tuple(images.shape)}.")
    pyautoattack = library("pyautoattack")
    numbered = NumberedUnitBalls(UnitBalls(model, images, radii, box_of(images, how.bounds))).eval()
    with torch.no_grad():
        classes = model(images[:1]).shape[1]
    parts = ["apgd-ce", "apgd-t", "fab-t", "square"] if classes > 3 else ["apgd-ce", "fab-t", "square"]
    for restart in range(how.restarts or 1):
        run = pyautoattack.AutoAttack(
            numbered, norm="L2", eps=numbered.scale, version="custom", attacks=parts, seed=how.seed + restart,
            device=images.device,
        )  # fmt: skip
        run.verbose = False
        run.apgd.n_restarts = run.fab.n_restarts = run.apgd_targeted.n_restarts = 1
        run.fab.n_target_classes = run.apgd_targeted.n_target_classes = min(9, classes - 1)
        tracer = sys.gettrace()  # AutoAttack turns tracing off, and with it debuggers and coverage
        try:
            with _seeded(how.seed + restart, images.device):
                z = run.run_standard_evaluation(numbered.start, labels, batch_size=max(1, len(images)))[0]
        finally:
            sys.settrace(tracer)
        yield numbered.points(z.detach())
