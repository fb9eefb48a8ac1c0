"""Errors and warnings of the library. Errors about input are `ValueError`s with the rule, the values and a remedy."""

from __future__ import annotations

import sys
import warnings

_PASSED = ("orthogonium", "torch", "torchmetrics")  # packages whose lines mean nothing to the user


class OrthogoniumError(ValueError):
    """Base of every error raised for bad input."""


class ShapeError(OrthogoniumError):
    """A tensor or a size does not fit the operation."""


class GeometryError(OrthogoniumError):
    """No convolution of the requested geometry can keep the requested guarantee."""


class ConstraintError(OrthogoniumError):
    """An assigned weight lies outside the set its layer is constrained to."""


class ParameterError(OrthogoniumError):
    """An argument is outside its range or not one of the known values."""


class ExportError(OrthogoniumError):
    """A format cannot express what a model computes."""


class DerivativeError(OrthogoniumError):
    """A derivative was requested in a way that would give a wrong result."""


class DataError(OrthogoniumError):
    """A dataset is not where it should be, is cut short, or does not hold what its format promises."""


class CheckpointError(OrthogoniumError):
    """A file is not a checkpoint of this library, is damaged, or does not fit what it is used for."""


class DivergenceError(OrthogoniumError):
    """The training loss is no longer finite."""


class NumericalWarning(UserWarning):
    """The result is finite, but the guarantee cannot hold for this input (e.g. a rank-deficient matrix)."""


class GuaranteeWarning(UserWarning):
    """The layer is valid, but its guarantee is narrower than its user may expect."""


def lacking(need: str, extra: str = "train", *, otherwise: str = "") -> ModuleNotFoundError:
    """The error for a missing package of an extra: what needs it, how to install it, what works without it.

    >>> from orthogonium.errors import lacking
    >>> print(lacking("The digits need scikit-learn"))
    The digits need scikit-learn, of the extra [train]: `pip install '.[train]'` in a clone of https://github.com/deel-ai/orthogonium.
    """
    remedy = f"`pip install '.[{extra}]'` in a clone of https://github.com/deel-ai/orthogonium."
    return ModuleNotFoundError(f"{need}, of the extra [{extra}]: {remedy} {otherwise}".rstrip())


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line of the caller's own code, however deep in this library or in torch the cause lies."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _PASSED:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
