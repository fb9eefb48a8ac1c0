"""Errors and warnings of the library. Every error is a `ValueError` that says the rule, the values and a remedy."""


class OrthogoniumError(ValueError):
    """Base of every error raised for bad input."""


class ShapeError(OrthogoniumError):
    """A tensor or a size does not fit the operation."""


class GeometryError(OrthogoniumError):
    """No convolution of the requested geometry can keep the requested guarantee."""


class ConstraintError(OrthogoniumError):
    """A weight outside the set a layer is constrained to was assigned to it."""


class ParameterError(OrthogoniumError):
    """An argument is outside its range or not one of the known values."""


class ExportError(OrthogoniumError):
    """A format has no way to say what a model computes."""


class DerivativeError(OrthogoniumError):
    """A derivative was asked for in a way in which it would be wrong."""


class DataError(OrthogoniumError):
    """A dataset is not where it should be, is cut short, or does not hold what its format promises."""


class CheckpointError(OrthogoniumError):
    """A file is not a checkpoint of this library, is damaged, or does not fit what it is used for."""


class DivergenceError(OrthogoniumError):
    """The training loss is no longer finite."""


class NumericalWarning(UserWarning):
    """The result is finite but the guarantee cannot hold for this input (e.g. a rank-deficient matrix)."""


class GuaranteeWarning(UserWarning):
    """The layer is valid, but its guarantee is narrower than its user may expect."""
