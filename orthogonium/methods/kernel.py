"""What every method is: a differentiable function from raw parameters to a constrained kernel.

Kernels are pure mathematics. `layers/parametrization.py` keeps, assigns and copies the weights they build.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from orthogonium.errors import ConstraintError
from orthogonium.kernels import ConvGeometry

Device = torch.device | str | None
Raw = tuple[Tensor, ...]  # raw parameters
INSTEAD = (
    "Make the closest layer of a plain one by `from_torch` (`AdaptiveOrthoConv2d.from_torch(conv)`), load the "
    "state_dict of a layer of the same sizes, draw a random weight by `layer.reset_parameters()`, or remove the "
    "constraint: `torch.nn.utils.parametrize.remove_parametrizations(layer, 'weight')`."
)


def as_tuple(raw: Tensor | Raw) -> Raw:
    """Raw parameters as a tuple; a single tensor is stored as `original`, a tuple as `original0` and so on."""
    return raw if isinstance(raw, tuple) else (raw,)


def unit_groups(raw: Tensor, groups: int) -> tuple[Tensor, Tensor]:  # (g·m, n, *k) → (g, m, n, *k), (g, 1, 1, …)
    """Each group divided by its largest entry, and that: a constant for the gradient, which keeps squares in range.

    For functions that do not depend on the scale of a group.
    """
    x = raw.unflatten(0, (groups, -1))
    largest = x.detach().abs().amax(tuple(range(1, x.dim())), keepdim=True)
    return x / torch.where(largest > 0, largest, torch.ones_like(largest)), largest


class Kernel(nn.Module):
    """Base class of all methods. A module only for the sake of its orthogonalizers, which move with the layer.

    A kernel that can be applied without being built has `factors` (Note [In turn] of `aoc.py`) or `stages` (Note
    [Series] of `soc.py`), too.

    Note [Assignment]
    `layer.weight = w` sets the raw parameters that `invert` finds. If the map of the method accepts any weight of the
    right shape (`projects`), w itself is the raw parameter and the layer gets what the method makes of it: the weight
    closest to w, or one as good. Otherwise `invert` recovers a weight of the set (another layer's, a frozen model's),
    and what it finds must build w again, or w is refused.

    Note [Closest]
    `from_torch` starts a layer from any weight: from `nearest` if there is a formula for the closest kernel of the set
    (a polar factor) or for the multiple of the weight that is in it (methods that scale: that of `invert`), otherwise
    from a fit that begins at `guess` (Note [Fit] of `fitting.py`).
    """

    projects = False  # Note [Assignment]
    weight_shape: tuple[int, ...] | None = None  # of what may be assigned
    # Note [Batches] of `batches.py`. A subclass may build differently, so each class declares its own.
    group_axes: tuple[int, ...] | None = None

    def initial(self, device: Device, dtype: torch.dtype) -> Tensor | Raw:
        """Random raw parameters to start from."""
        raise NotImplementedError

    def build(self, *raw: Tensor) -> Tensor | Raw:
        """The kernel of the raw parameters; for blocks with an activation inside, a tuple of kernels."""
        raise NotImplementedError

    def invert(self, weight: Tensor) -> Tensor | Raw:
        """Raw parameters that build `weight`, if the method has such a formula. Note [Assignment]."""
        raise ConstraintError(f"{type(self).__name__} cannot recover its raw parameters from a weight. {INSTEAD}")

    def nearest(self, weight: Tensor) -> Raw | None:
        """Raw parameters of the kernel closest to `weight`, if there is a formula. Note [Closest]."""
        return as_tuple(self.invert(weight)) if self.projects else None

    def guess(self, weight: Tensor) -> Raw:
        """Raw parameters from which to start a fit to `weight`: random, but always the same."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            raw = self.initial("cpu", torch.float64)
        return tuple(t.to(weight.device) for t in as_tuple(raw))


class ConvKernel(Kernel):
    """A method that builds the kernel of a convolution."""

    geometry: ConvGeometry
    trainable = True  # whether there is more than one such kernel
    smallest = 0.0  # lower bound on the singular values, on the infinite lattice
    axis_shapes: tuple[tuple[int, ...], ...] = ()  # of weights to apply instead, in turn, if that is cheaper

    @property
    def weight_geometry(self) -> ConvGeometry:
        """The geometry with the size of the kernel that is built."""
        return self.geometry

    @property
    def weight_shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """`(out, in/groups, *kernel_size)`."""
        return self.weight_geometry.weight_shape


class Kernels(Kernel):
    """A method that builds the kernels of a block `Sx + Cσ(Ax + b)`: A, C and, unless x is added as it is, S."""

    shapes: tuple[tuple[int, ...], ...]  # of the kernels
