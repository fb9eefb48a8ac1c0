"""Schedules: factors of the peak learning rate and of the radius of the loss, as functions of progress in [0, 1].

Progress, not a step count, is the argument: the same schedule serves runs limited by epochs and runs limited by time,
and nothing but the progress has to be restored to continue one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from orthogonium.errors import ParameterError

_ONE_CYCLE_START = 1 / 25  # of the peak; the usual choice
_RADIUS_START = 1 / 100  # of the radius: losses divide by it


def _half_cosine(t: float) -> float:
    """Rises from 0 to 1 as t goes from 0 to 1, flat at both ends."""
    return (1 - math.cos(math.pi * t)) / 2


def _linear_rise(t: float) -> float:
    return t


def _one_cycle_rise(t: float) -> float:
    return _ONE_CYCLE_START + (1 - _ONE_CYCLE_START) * _half_cosine(t)


# name → (factor during warm-up, factor after it), each a function of the fraction in [0, 1] of that phase
SCHEDULES: dict[str, tuple[Callable[[float], float], Callable[[float], float]]] = {
    "constant": (_linear_rise, lambda t: 1.0),
    "linear": (_linear_rise, lambda t: 1 - t),
    "cosine": (_linear_rise, lambda t: 1 - _half_cosine(t)),
    "one-cycle": (_one_cycle_rise, lambda t: 1 - _half_cosine(t)),
}


def check_schedule(name: str, warmup: float) -> None:
    """Check that the schedule is known and that the warm-up leaves something to anneal."""
    if name not in SCHEDULES:
        raise ParameterError(f"Unknown schedule {name!r}: choose one of {', '.join(SCHEDULES)}.")
    if not 0 <= warmup < 1:
        raise ParameterError(f"warmup={warmup}, the fraction of training spent warming up, must be in [0, 1).")
    if name == "one-cycle" and warmup == 0:
        raise ParameterError("A one-cycle schedule is half warm-up: give it a share, such as warmup=0.3.")


# name → factor during the growth, as a function of the fraction in [0, 1] of it
RADIUS_SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda t: 1.0,
    "linear": _linear_rise,
    "cosine": _half_cosine,
}


def check_radius_schedule(name: str, warmup: float) -> None:
    """Check that the schedule is known and that the growth ends within training."""
    if name not in RADIUS_SCHEDULES:
        raise ParameterError(f"Unknown radius schedule {name!r}: choose one of {', '.join(RADIUS_SCHEDULES)}.")
    if not 0 < warmup <= 1:
        raise ParameterError(
            f"radius_warmup={warmup}, the fraction of training in which radii grow, must be in (0, 1]."
        )


def radius_factor(
    name: str,
    warmup: float,
    progress: float,  # in [0, 1]; larger values count as the end
) -> float:
    """Factor of the radius a loss asks for: it grows from 0.01 to 1 over the fraction `warmup`, then stays at 1.

    A network learns to tell classes apart before it is asked to do so with a margin.

    >>> from orthogonium.recipes.schedules import radius_factor
    >>> [radius_factor("linear", 0.5, p) for p in (0.0, 0.25, 0.5, 1.0)]
    [0.01, 0.505, 1.0, 1.0]
    """
    check_radius_schedule(name, warmup)
    grown = RADIUS_SCHEDULES[name](min(max(progress, 0.0) / warmup, 1.0))
    return _RADIUS_START + (1 - _RADIUS_START) * grown


def schedule_factor(
    name: str,
    warmup: float,
    progress: float,  # in [0, 1]; larger values count as the end
) -> float:
    """Factor of the peak learning rate: a rise over the fraction `warmup`, then the decay of the schedule to its end.

    >>> from orthogonium.recipes.schedules import schedule_factor
    >>> [round(schedule_factor("cosine", 0.5, p), 3) for p in (0.0, 0.25, 0.5, 0.75, 1.0)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    check_schedule(name, warmup)
    progress = min(max(progress, 0.0), 1.0)
    rise, decay = SCHEDULES[name]
    return rise(progress / warmup) if progress < warmup else decay((progress - warmup) / (1 - warmup))
