"""Convolutions that are orthogonal at each frequency of the image: Cayley, LOT, BRO and ECO, in 1-D, 2-D and 3-D.

The kernel is as large as the image and differs for each image size (Note [Image sizes] of `methods/circle.py`).

Note [Size of the weight]
`layer.weight` is the kernel for images of `layer.image_size`, which is an argument of the layer or else the size of the
first images that it sees. This kernel is the one that `build_once` builds beforehand and that is frozen and exported.
Images of other sizes are convolved with a kernel for their size, which is kept in eval as well. A plain weight, from
`freeze` or `remove_parametrizations`, serves the sizes that divide its own, since it wraps around to the kernel for
them; others are refused. The weight of ECO, whose taps move apart as the image grows, would wrap around to a different
kernel: it only serves its own size.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from orthogonium.errors import GeometryError, ShapeError
from orthogonium.kernels import ConvGeometry
from orthogonium.kernels.geometry import Size, to_tuple
from orthogonium.layers.conv.base import ConstrainedConv
from orthogonium.layers.conv.execution import execute
from orthogonium.layers.conv.padding import Border, ahead_of_same, check_image, tile
from orthogonium.layers.guarantee import Guarantee
from orthogonium.layers.parametrization import Constraint, Source
from orthogonium.methods.bro import BlockReflectorKernel
from orthogonium.methods.cayley import CayleyKernel
from orthogonium.methods.circle import CircleKernel, Grid, coarse
from orthogonium.methods.eco import ExplicitKernel
from orthogonium.methods.kernel import Device
from orthogonium.methods.lot import PolarKernel


def settle_image_sizes(model: nn.Module, image_shape: Sequence[int]) -> nn.Module:
    """Show images, (channels, *sizes), to layers whose kernel depends on the image size, if they have not seen any yet.

    Code that reads weights before the first call (`freeze`, `build_once`) then finds those that the network will use.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, CircleConv) and layer.image_size is None]
    if layers:
        modes = [(module, module.training) for module in model.modules()]
        raw = next(layers[0].parameters())
        with torch.no_grad():
            model.eval()(torch.zeros(1, *image_shape, dtype=raw.dtype, device=raw.device))
        for module, mode in modes:  # from the outside in
            module.train(mode)
    return model


class CircleConv(ConstrainedConv):
    """Base class; mixed with a torch convolution. Note [Size of the weight]."""

    kernel_of: Callable[..., CircleKernel]
    taps: Grid  # the `kernel_size` that was asked for; that of the weight is the image's
    image_size: Grid | None  # what the weight is for; None until the first images
    spans_image = True
    wraps = True  # whether the kernel for an image size wraps around to the kernels for its divisors
    # A record of this weight would be wrong for images of other sizes: the layer is measured.
    spectral_geometry = None  # type: ignore[assignment]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = "same",
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "circular",
        device: Device = None,
        dtype: torch.dtype | None = None,
        image_size: Size | None = None,
        lipschitz: float = 1.0,
    ) -> None:
        g = ConvGeometry.of(self.dims, in_channels, out_channels, kernel_size, stride, dilation, groups)
        kernel, name = self.kernel_of(g), type(self).__name__
        if padding_mode != "circular":
            raise GeometryError(
                f"{name}: its kernel is orthogonal on images that are wrapped around: needs padding_mode='circular', "
                f"got {padding_mode!r}. With zeros, use method='aoc'."
            )
        if any(d != 1 for d in g.dilation):
            raise GeometryError(
                f"{name}: its kernel reaches over the whole image, so that there is no dilation: got {g.dilation}. Use "
                "a larger kernel_size, or method='aoc'."
            )
        kernel.ahead = ahead_of_same(g, padding, name)
        if image_size is not None:
            kernel = kernel.at(coarse(to_tuple(image_size, g.dims, "image_size"), g.stride))
        super().__init__(kernel, "same", padding_mode, bias, device, dtype, lipschitz)
        self.image_size = None if image_size is None else self.geometry.kernel_size  # a multiple of the stride
        self.taps, self.padding_of_taps = g.kernel_size, padding

    @property
    def guarantee(self) -> Guarantee:
        """All singular values are equal if the stride divides the image size."""
        plain = "parametrizations" not in self._modules
        note = (
            f"with the circular kernel of images of {self.kernel_size}"
            if plain
            else "each with a circular kernel of its own"
        )
        return Guarantee("orthogonal", self.lipschitz, image_sizes=self.geometry.stride, note=note)

    def forward(self, input: Tensor) -> Tensor:
        """Convolve an image or a batch of images: `⌈size / stride⌉` outputs on each axis."""
        g = self.geometry
        check_image(input, g.dims, g.in_channels, type(self).__name__)
        x = tile(input, g.stride)
        if torch.jit.is_tracing():  # the graph, which holds the kernel for this size, then refuses all others
            for axis in range(-g.dims, 0):
                x = x.unflatten(axis, (int(x.shape[axis]),))
        # An index is a number even to a compiler, which makes one graph for each size, as there is one kernel for each.
        # With unknown sizes it would take minutes.
        self._settle(tuple(map(operator.index, x.shape[-g.dims :])))
        return execute(self, x)

    def _settle(self, sizes: Grid) -> None:
        """Let the first images determine which size the weight is for."""
        if self.image_size is not None or torch.compiler.is_compiling() or torch.jit.is_tracing():
            return
        chains: Any = self._modules.get("parametrizations")
        if chains is None or not isinstance(chains.weight[0], Constraint):  # a plain weight
            return
        constraint, g = chains.weight[0], self.geometry
        kernel = cast(CircleKernel, constraint.kernel).at(coarse(sizes, g.stride))
        constraint.kernel, constraint._kept = kernel, None
        self.geometry, self.image_size = kernel.weight_geometry, sizes
        self.kernel_size = self.geometry.kernel_size
        self.border = Border.of(self.geometry, "same", "circular")

    def weight_for(self, sizes: Grid, source: Source | None) -> Tensor:
        """The kernel for images of these sizes. Note [Size of the weight]."""
        if source is None:
            weight: Any = self.weight
            own = tuple(weight.shape[2:])
            if own != sizes and (not self.wraps or any(n % m for n, m in zip(own, sizes, strict=True))):
                raise ShapeError(
                    f"{type(self).__name__}: its weight is fixed, for images of {own}; those of {sizes} need another "
                    f"one. Give the layer image_size={sizes}, or call it once with such images, before its weight is "
                    "fixed (freeze, remove_parametrizations)."
                )
            return weight
        constraint, raw = source
        kernel, grid = cast(CircleKernel, constraint.kernel), coarse(sizes, self.geometry.stride)
        supplied = constraint.supplied(raw)
        if supplied is not None and tuple(supplied.shape[2:]) != sizes:  # built beforehand, for other images
            if getattr(constraint.supply, "for_all_passes", False):
                raise ShapeError(
                    f"{type(self).__name__}: inside build_once its weight is for images of "
                    f"{tuple(supplied.shape[2:])}, got {sizes}. Give the layer image_size={sizes}, or call it once "
                    "with such images before the block."
                )
        elif grid == kernel.grid:
            return self.weight_of(source)
        return constraint.kept_or_built(raw, grid, partial(constraint.build, grid=grid))

    def size_repr(self) -> str:
        """Sizes, for printing: the taps that are learned, and the image that the weight is for."""
        return f"{super().size_repr()}, taps={self.taps}, image_size={self.image_size}"


class _Cayley(CircleConv):
    kernel_of = CayleyKernel


class _LOT(CircleConv):
    kernel_of = PolarKernel


class _ECO(CircleConv):
    kernel_of = ExplicitKernel
    wraps = False


class _BRO(CircleConv):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = "same",
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "circular",
        device: Device = None,
        dtype: torch.dtype | None = None,
        image_size: Size | None = None,
        rank: int | None = None,
        lipschitz: float = 1.0,
    ) -> None:
        self.rank = rank
        sizes = in_channels, out_channels, kernel_size, stride, padding, dilation, groups
        super().__init__(*sizes, bias, padding_mode, device, dtype, image_size, lipschitz)

    def kernel_of(self, geometry: ConvGeometry) -> BlockReflectorKernel:
        return BlockReflectorKernel(geometry, self.rank)


class CayleyConv2d(_Cayley, nn.Conv2d):
    """Orthogonal 2-D convolution by the Cayley transform at each frequency of the image.

    Trockman & Kolter (2021), "Orthogonalizing convolutional layers with the Cayley transform".

    Guarantee: under circular padding all singular values are 1 (1e-5 in float32) if the stride divides the image size,
    and at most 1 otherwise. The kernel is as large as the image and differs for each image size.

    Arguments not listed here are those of `AdaptiveOrthoConv2d`.

    Args:
        kernel_size: of the learned taps, an integer or one for each axis, as for `stride`.
        stride: phases of the image become channels (pixel-unshuffle), `in·stride²` in total.
        padding: "same", or the integers that keep the image size.
        dilation: only 1, since the kernel already spans the image.
        padding_mode: "circular".
        image_size: of the images that `weight` is for, an integer or one for each axis; None to take that of the first
            images. Images of other sizes get a kernel of their own.

    >>> layer = CayleyConv2d(3, 16, kernel_size=3, stride=2)
    >>> x = torch.randn(1, 3, 8, 8)
    >>> layer(x).shape, layer.weight.shape
    (torch.Size([1, 16, 4, 4]), torch.Size([16, 3, 8, 8]))
    >>> torch.allclose((layer(x) - layer(0 * x)).norm(), x.norm())
    True
    >>> str(layer.guarantee)
    'all singular values 1, for image sizes divisible by the stride; 1-Lipschitz for others, each with a circular kernel
    of its own'
    """


class CayleyConv1d(_Cayley, nn.Conv1d):
    """`CayleyConv2d` in 1 dimension."""


class CayleyConv3d(_Cayley, nn.Conv3d):
    """`CayleyConv2d` in 3 dimensions."""


class LOTConv2d(_LOT, nn.Conv2d):
    """Orthogonal 2-D convolution by the polar factor at each frequency of the image; arguments of `CayleyConv2d`.

    Xu, Li & Li (2022), "LOT: Layer-wise orthogonal training on improving l2 certified robustness".

    Guarantee: that of `CayleyConv2d`, for taps whose symbol has full rank at each frequency (others raise a warning).
    Kernels smaller than the stride need `out ≤ in·∏kernel`.

    >>> LOTConv2d(4, 8, 3, image_size=8)(torch.randn(1, 4, 8, 8)).shape
    torch.Size([1, 8, 8, 8])
    """


class LOTConv1d(_LOT, nn.Conv1d):
    """`LOTConv2d` in 1 dimension."""


class LOTConv3d(_LOT, nn.Conv3d):
    """`LOTConv2d` in 3 dimensions."""


class BROConv2d(_BRO, nn.Conv2d):
    """Orthogonal 2-D convolution by a block reflector at each frequency of the image.

    Its arguments are those of `CayleyConv2d`, and `rank`.

    Lai et al. (2025), "Enhancing certified robustness via block reflector orthogonal layers and logit annealing loss".

    Guarantee: that of `CayleyConv2d`. With as many outputs as inputs (times strides) it is its own adjoint and inverse.

    Args:
        rank: number of directions that are reflected, less than `max(out, in·stride²)` of a group; half of that by
            default.

    >>> layer = BROConv2d(4, 4, 3, bias=False)
    >>> x = torch.randn(1, 4, 8, 8)
    >>> torch.allclose(layer(layer(x)), x, atol=1e-5)
    True
    """


class BROConv1d(_BRO, nn.Conv1d):
    """`BROConv2d` in 1 dimension."""


class BROConv3d(_BRO, nn.Conv3d):
    """`BROConv2d` in 3 dimensions."""


class ECOConv2d(_ECO, nn.Conv2d):
    """Explicitly constructed orthogonal 2-D convolution; arguments of `CayleyConv2d`.

    Yu, Li, Cai, Zhu & Chen (2022), "Constructing orthogonal convolutions in an explicit manner".

    Guarantee: that of `CayleyConv2d`. The taps are spread evenly over the image, `size / kernel_size` pixels apart;
    if the kernel size does not divide the image size, it is replaced by the next larger number that does.

    >>> layer = ECOConv2d(4, 8, 3)
    >>> layer(torch.randn(1, 4, 9, 9)).shape, int(layer.weight[0, 0].count_nonzero())
    (torch.Size([1, 8, 9, 9]), 9)
    """


class ECOConv1d(_ECO, nn.Conv1d):
    """`ECOConv2d` in 1 dimension."""


class ECOConv3d(_ECO, nn.Conv3d):
    """`ECOConv2d` in 3 dimensions."""
