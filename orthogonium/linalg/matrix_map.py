"""What the modules here have in common."""

from __future__ import annotations

from torch import Tensor, nn

from orthogonium.errors import ShapeError


class MatrixMap(nn.Module):
    """A map of matrices that also works as a torch parametrization: an assigned weight becomes the raw matrix.

    >>> import torch
    >>> from torch.nn.utils import parametrize
    >>> from orthogonium.reparametrizers import BatchedQROrthogonalization
    >>> linear = parametrize.register_parametrization(
    ...     nn.Linear(3, 3, bias=False), "weight", BatchedQROrthogonalization((3, 3))
    ... )
    >>> linear.weight = 2 * torch.eye(3)
    >>> torch.allclose(linear.weight, torch.eye(3))
    True
    """

    # Whether each matrix of a batch is mapped by itself. A subclass may differ, so each class declares its own.
    batched = False
    printed: tuple[str, ...] = ()  # its arguments beside the shape

    def right_inverse(self, w: Tensor) -> Tensor:
        """Take an assigned weight as the raw matrix, without a check that the map gives it back."""
        return w

    def extra_repr(self) -> str:
        """Its arguments with their values."""
        return ", ".join(f"{name}={getattr(self, name)}" for name in self.printed)


class ShapedMap(MatrixMap):
    """A map made for matrices of one shape."""

    def __init__(self, weight_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weight_shape = tuple(weight_shape)
        if len(self.weight_shape) < 2:
            name, shape = type(self).__name__, self.weight_shape
            raise ShapeError(f"{name}: weight_shape must be (..., rows, columns), got {shape}.")
