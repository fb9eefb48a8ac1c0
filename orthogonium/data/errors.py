"""The error of this package."""

from orthogonium.errors import OrthogoniumError


class DataError(OrthogoniumError):
    """A dataset is not where it should be, is cut short, or does not hold what its format promises."""
