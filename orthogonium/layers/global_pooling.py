"""Global pooling, and average pooling to a given size, with a Lipschitz constant of exactly 1."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orthogonium.errors import ParameterError, ShapeError
from orthogonium.layers.guarantee import Guarantee
from orthogonium.layers.pooling import root_of_sum
from orthogonium.linalg.evaluation import widened

_ADAPTIVE_AVG_POOL: dict[int, Callable[[Tensor, tuple[int, ...]], Tensor]] = {
    1: torch.adaptive_avg_pool1d,
    2: F.adaptive_avg_pool2d,  # type: ignore[dict-item]
    3: F.adaptive_avg_pool3d,  # type: ignore[dict-item]
}


class _GlobalPool(nn.Module):
    """Pools every axis after the channels, in any number of dimensions."""

    def __init__(self, keepdim: bool = False) -> None:
        super().__init__()
        self.keepdim = keepdim

    def forward(self, x: Tensor) -> Tensor:
        """One value per sample and channel: (n, c), or (n, c, 1, …) with `keepdim`."""
        if x.dim() < 3:
            raise ShapeError(f"{type(self).__name__} pools space, inputs (n, c, …) of rank ≥ 3: got {tuple(x.shape)}.")
        y = self._pool(x.flatten(2))
        return y.reshape(*y.shape, *[1] * (x.dim() - 2)) if self.keepdim else y

    def _pool(self, x: Tensor) -> Tensor:  # (n, c, pixels) → (n, c)
        raise NotImplementedError

    def extra_repr(self) -> str:
        """Whatever is not the default."""
        return "keepdim=True" if self.keepdim else ""


class ScaledGlobalAvgPool(_GlobalPool):
    """Mean over space times `√N` for `N` pixels, that is, `Σx/√N`.

    Guarantee: a linear map with orthonormal rows (the plain mean has constant `1/√N`).

    Args:
        keepdim: whether the pooled axes stay, with size 1.

    >>> from orthogonium.layers.global_pooling import ScaledGlobalAvgPool
    >>> ScaledGlobalAvgPool()(torch.ones(1, 2, 3, 3))
    tensor([[3., 3.]])
    """

    guarantee = Guarantee("orthogonal")

    def _pool(self, x: Tensor) -> Tensor:
        return x.mean(dim=2) * math.sqrt(x.shape[2])


class GlobalL2NormPool(_GlobalPool):
    """Euclidean norm of each channel over space: the norm of the image is preserved.

    Guarantee: 1-Lipschitz; the Jacobian has orthonormal rows where no channel is all zero.

    Args:
        keepdim: whether the pooled axes stay, with size 1.

    >>> from orthogonium.layers.global_pooling import GlobalL2NormPool
    >>> GlobalL2NormPool()(torch.tensor([[[3.0, -4.0]]]))
    tensor([[5.]])
    """

    guarantee = Guarantee("orthogonal", note="of the Jacobian where no channel is all zero")

    def _pool(self, x: Tensor) -> Tensor:
        return root_of_sum(widened(x).square().sum(dim=2)).to(x.dtype)


class GlobalMaxPool(_GlobalPool):
    """Maximum of each channel over space.

    Guarantee: 1-Lipschitz; the Jacobian has orthonormal rows (a tie goes to one pixel).

    Args:
        keepdim: whether the pooled axes stay, with size 1.

    >>> from orthogonium.layers.global_pooling import GlobalMaxPool
    >>> GlobalMaxPool()(torch.tensor([[[3.0, -4.0]]]))
    tensor([[3.]])
    """

    guarantee = Guarantee("orthogonal", note="of the Jacobian at every input")

    def _pool(self, x: Tensor) -> Tensor:
        return x.max(dim=2).values


@functools.cache
def _norm_of_windows(size: int, output_size: int) -> float:
    # In numpy, so that the number exists while torch traces or exports.
    matrix = np.zeros((output_size, size))
    for i in range(output_size):  # the windows of torch
        start, end = i * size // output_size, -(-(i + 1) * size // output_size)
        matrix[i, start:end] = 1 / (end - start)
    return float(np.linalg.norm(matrix, ord=2))


def adaptive_avg_constant(size: int, output_size: int) -> float:
    """Spectral norm of 1-D adaptive average pooling: `√(output/size)` if that divides, else from its matrix.

    >>> from orthogonium.layers.global_pooling import adaptive_avg_constant
    >>> adaptive_avg_constant(8, 2), round(adaptive_avg_constant(5, 2), 4)
    (0.5, 0.6667)
    """
    return math.sqrt(output_size / size) if size % output_size == 0 else _norm_of_windows(size, output_size)


# Set by `torch.compiler.assume_constant_result`; calling that here would import the compiler, which takes a second.
adaptive_avg_constant._dynamo_marked_constant = True  # type: ignore[attr-defined]


class ScaledAdaptiveAvgPool(nn.Module):
    """Adaptive average pooling to a given size, divided by its spectral norm, for up to 3 spatial axes.

    The scale depends on the size of the input, since the windows do.

    Guarantee: 1-Lipschitz; orthonormal rows if the output size divides the size of the input.

    Args:
        output_size: the size of each spatial axis of the output, or one size for all.

    >>> from orthogonium.layers.global_pooling import ScaledAdaptiveAvgPool
    >>> ScaledAdaptiveAvgPool((1, 2))(torch.ones(1, 1, 4, 8))
    tensor([[[[4., 4.]]]])
    """

    guarantee = Guarantee("lipschitz", note="always (orthogonal where the output size divides the input size)")

    def __init__(self, output_size: int | tuple[int, ...]) -> None:
        super().__init__()
        if min(output_size if isinstance(output_size, tuple) else (output_size,)) < 1:
            raise ParameterError(f"ScaledAdaptiveAvgPool needs output sizes ≥ 1: got {output_size}.")
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        """Pooled `x`."""
        dims = x.dim() - 2
        sizes = self.output_size if isinstance(self.output_size, tuple) else (self.output_size,) * dims
        if dims not in (1, 2, 3) or len(sizes) != dims:
            raise ShapeError(
                f"ScaledAdaptiveAvgPool pools inputs (n, c, …) with one to three spatial axes, as many as output_size "
                f"{self.output_size} names: got {tuple(x.shape)}."
            )
        constants = [adaptive_avg_constant(n, o) for n, o in zip(x.shape[2:], sizes, strict=True)]
        return _ADAPTIVE_AVG_POOL[dims](x, sizes) / math.prod(constants)

    def extra_repr(self) -> str:
        """The output size."""
        return f"{self.output_size}"
