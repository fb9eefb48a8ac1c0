"""What can go wrong while training, or when its files are read back."""

from orthogonium.errors import OrthogoniumError


class CheckpointError(OrthogoniumError):
    """A file is not a checkpoint of this library, is damaged, or does not fit what it is used for."""


class DivergenceError(OrthogoniumError):
    """The training loss is no longer finite."""
