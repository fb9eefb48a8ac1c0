"""What several of the published methods share: input checks, invertible downsampling, power iteration."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orthogonium.annotations import as_int
from orthogonium.errors import GeometryError, ParameterError, ShapeError

LinearMap = Callable[[Tensor], Tensor]


def require_positive(**sizes: int) -> None:
    """Refuse sizes that are not positive integers, naming the argument."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(as_int(size), int) or size < 1:
            raise ParameterError(
                f"{name} must be a positive integer, got {size!r}. The published method knows square kernels and "
                "equal strides only: pass one int."
            )


def require_same_padding(name: str, kernel_size: int, padding: int | str | None) -> None:
    """Refuse paddings that change the image size, for methods whose outputs must be as large as their inputs."""
    if padding not in (None, "same") and (isinstance(padding, str) or 2 * padding != kernel_size - 1):
        raise GeometryError(
            f"{name}: its guarantee needs outputs of the size of the inputs, i.e. 2·padding = kernel_size − 1; got "
            f"padding {padding!r} and kernel_size {kernel_size}. Leave padding=None."
        )


def downsample(x: Tensor, stride: int) -> Tensor:
    """Invertible downsampling (pixel-unshuffle): each stride × stride patch becomes stride² channels, an isometry.

    This is how the published methods stride: an orthogonal map stays orthogonal, at stride² times the channels.
    """
    if x.dim() != 4 or x.shape[-2] % stride or x.shape[-1] % stride:
        raise ShapeError(
            f"Needs images (batch, channels, height, width) whose sides stride {stride} divides, got "
            f"{tuple(x.shape)}. Crop or pad the image to a multiple of the stride."
        )
    return F.pixel_unshuffle(x, stride)


def add_bias(x: Tensor, bias: Tensor | None) -> Tensor:
    """Add one number per channel to x."""
    return x if bias is None else x + bias.view(-1, 1, 1)


class PowerIteration(nn.Module):
    """Estimates the norm of a linear map L, from below: ‖Lv‖ with v ← LᵀLv / ‖LᵀLv‖.

    `v` (batch, …) is a buffer; each map of a batch gets its own norm. Every `every`-th call in training advances it by
    `steps` iterations. Evaluation runs `eval_steps` more without keeping them, so it is deterministic.
    The estimate is differentiable in L at fixed v, which is the derivative of the norm once v has converged.
    """

    v: Tensor

    def __init__(self, v: Tensor, steps: int = 1, eval_steps: int = 0, every: int = 1) -> None:
        super().__init__()
        self.register_buffer("v", v)
        self.steps, self.eval_steps, self.every = steps, eval_steps, every
        self._calls = 0

    @torch.no_grad()
    def iterate(self, linear: LinearMap, adjoint: LinearMap, steps: int) -> Tensor:
        """The vector after `steps` iterations, a new tensor: the old one may be part of a graph."""
        v = self.v
        for _ in range(steps):
            v = F.normalize(adjoint(linear(v)).flatten(1), dim=1).view_as(v)
        return v

    def forward(self, linear: LinearMap, adjoint: LinearMap) -> Tensor:  # (batch,)
        """The estimate of the norm of `linear`."""
        v = self.v
        if not self.training:
            v = self.iterate(linear, adjoint, self.eval_steps)
        else:
            if self._calls % self.every == 0:
                self.v = v = self.iterate(linear, adjoint, self.steps)
            self._calls += 1
        return torch.linalg.vector_norm(linear(v).flatten(1), dim=1)


class MatrixPowerIteration(PowerIteration):
    """`PowerIteration` for the matrices (batch, rows, columns) it is called with."""

    def __init__(
        self, matrices: Tensor, init_steps: int = 50, steps: int = 1, eval_steps: int = 0, every: int = 1
    ) -> None:
        matrices = matrices.detach()
        v = torch.randn(len(matrices), matrices.shape[-1], 1, dtype=matrices.dtype, device=matrices.device)
        super().__init__(v, steps, eval_steps, every)
        self.v = self.iterate(*self.maps(matrices), init_steps)

    @staticmethod
    def maps(matrices: Tensor) -> tuple[LinearMap, LinearMap]:
        """The linear maps of the matrices and of their adjoints."""
        return lambda v: matrices @ v, lambda u: matrices.mT @ u

    def of(self, matrices: Tensor) -> Tensor:  # (batch,)
        """The estimates of the spectral norms."""
        return self(*self.maps(matrices))
