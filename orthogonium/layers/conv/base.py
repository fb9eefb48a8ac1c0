"""Constrained convolutions: real `nn.ConvNd`s and `nn.ConvTransposeNd`s with their own border (see `padding.py`).

A call checks the images, extends them until the stride divides their size, applies the kernel (in one of the ways of
`execution.py`) and crops the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from orthogonium.errors import GeometryError, GuaranteeWarning, ShapeError, warn
from orthogonium.kernels import ConvGeometry
from orthogonium.kernels.geometry import Size, to_tuple
from orthogonium.layers.conv.execution import add_bias, adjoint, execute
from orthogonium.layers.conv.padding import Border, check_image, tile, tiled_size, zero_extend
from orthogonium.layers.guarantee import Guarantee
from orthogonium.layers.inversion import Inverse, InversionError
from orthogonium.layers.parametrization import Constrained, constrain
from orthogonium.methods.kernel import ConvKernel, Device

_KINDS = {1: (nn.Conv1d, nn.ConvTranspose1d), 2: (nn.Conv2d, nn.ConvTranspose2d), 3: (nn.Conv3d, nn.ConvTranspose3d)}


class ConstrainedConvNd(Constrained, nn.modules.conv._ConvNd):
    """What convolutions and transposed convolutions share."""

    dims: int  # those of the torch class
    geometry: ConvGeometry  # of the convolution, or of the one that a transposed layer is the adjoint of
    border: Border
    pads_as_torch: bool
    kernel_of: Callable[..., ConvKernel]  # what makes the kernel of a geometry, in layers with several
    spans_image = False  # whether the kernel is as large as the image: `conv/circle.py`
    smallest: float  # lower bound on the singular values of the kernel, on the infinite lattice

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.dims = next((dims for dims, kinds in _KINDS.items() if issubclass(cls, kinds)), 0)

    def _constrain(self, kernel: ConvKernel, border: Border, lipschitz: float) -> None:
        """Parametrize `weight`; called once torch has initialized the layer."""
        geometry = kernel.weight_geometry
        self.geometry, self.border, self.smallest = geometry, border, kernel.smallest
        # torch refuses "same" with stride.
        self.pads_as_torch = border.mode == "zeros" and not (border.same and geometry.is_strided)
        if border.same:
            self.padding = "same"  # as the user said it, for printing
        if not kernel.trainable:
            warn_depthwise(type(self).__name__, geometry)
        constrain(self, kernel, lipschitz)

    def spectral_geometry(self) -> dict[str, bool]:
        """What `orthogonium.spectral` cannot read off the attributes: circular images are extended to tile evenly."""
        return {"extend": self.border.mode == "circular"}

    @property
    def covers(self) -> bool:
        """Whether every window of a circular image is kept."""
        return self.border.covers(self.geometry)

    def inverse(self) -> Inverse:
        """The module that undoes this one: its adjoint, with the same parameters. See `orthogonium.inverse`."""
        g, name = self.geometry, type(self).__name__
        tiles = g.extent == g.stride and not any((*self.border.left, *self.border.right, *self.output_padding))
        if self.smallest != 1 or not (self.covers or tiles):
            raise InversionError(
                f"{name} promises no smallest singular value: {self.guarantee}. Use an orthogonal kernel with circular "
                "padding that keeps every window, or one as large as its stride without padding."
            )
        rows, columns = g.group_out, g.group_in * math.prod(g.stride)
        inputs, outputs = (rows, columns) if self.transposed else (columns, rows)
        if outputs < inputs:
            raise InversionError(
                f"{name}: {outputs} outputs of a window (in each group) do not determine its {inputs} inputs. Use at "
                "least as many."
            )
        return Inverse(self, both_sides=outputs == inputs)

    @property
    def inverse_constant(self) -> float | None:
        """Upper bound on the singular values of the inverse, which is the adjoint divided by `lipschitz²`."""
        return 1 / self.lipschitz if self.smallest == 1 else None

    def undo(self, y: Tensor) -> Tensor:
        """The images whose outputs these are, if the stride divides their size."""
        g = self.geometry
        centred = y if self.bias is None else y - self.bias.view(-1, *[1] * g.dims)
        return adjoint(self, centred) / self.lipschitz**2

    @property
    def guarantee(self) -> Guarantee:
        """Singular values are known under circular padding that keeps every window; else only `lipschitz` holds."""
        if not self.smallest or not self.covers:
            every = not self.smallest or self.border.mode == "zeros"
            return Guarantee("lipschitz", self.lipschitz, image_sizes=(1,) * self.dims, every_window=every)
        if self.smallest == 1:
            return Guarantee("orthogonal", self.lipschitz, image_sizes=self.geometry.stride)
        return Guarantee("lipschitz", self.lipschitz, image_sizes=self.geometry.stride, smallest=self.smallest)


class ConstrainedConv(ConstrainedConvNd):
    """Base of constrained convolutions; mixed with `nn.Conv1d`, `nn.Conv2d` or `nn.Conv3d`."""

    _axis_shapes: tuple[tuple[int, ...], ...] = ()  # of weights along axes

    def __init__(
        self,
        kernel: ConvKernel,
        padding: Size | str,
        padding_mode: str,
        bias: bool,
        device: Device,
        dtype: torch.dtype | None,
        lipschitz: float,
    ) -> None:
        g = kernel.weight_geometry
        border = Border.of(g, padding, padding_mode)
        amount = 0 if border.same and g.is_strided else padding  # torch refuses "same" with stride: the layer pads
        own_padding = amount if isinstance(amount, str) else to_tuple(amount, self.dims, "padding", minimum=0)
        sizes: Any = g.in_channels, g.out_channels, g.kernel_size, g.stride, own_padding, g.dilation, g.groups
        others: Any = bias, padding_mode, device, dtype
        super().__init__(*sizes, *others)  # of the torch class
        self._constrain(kernel, border, lipschitz)
        self._axis_shapes = kernel.axis_shapes

    def promise_along_axis(self, shape: Sequence[int]) -> Guarantee | None:
        """What is promised of the weight of this shape, if it is one along an axis: the last has the constant."""
        shapes = self._axis_shapes
        if tuple(shape) not in shapes:
            return None
        return self.guarantee if tuple(shape) == shapes[-1] else replace(self.guarantee, constant=1.0)

    def forward(self, input: Tensor) -> Tensor:
        """Convolve an image or a batch of images."""
        if self.pads_as_torch:  # and checks the input, too
            return execute(self, input)
        g, border = self.geometry, self.border
        check_image(input, g.dims, g.in_channels, type(self).__name__)
        sizes = input.shape[-g.dims :]
        if not border.same and any(n + 2 * p < x for n, p, x in zip(sizes, border.left, g.extent, strict=True)):
            raise ShapeError(
                f"{type(self).__name__}: images of size {tuple(sizes)} padded by {border.left} are smaller than the "
                f"extent {g.extent} of the kernel. Use padding='same'."
            )
        y = execute(self, tile(input, g.stride))
        if border.same or not g.is_strided:
            return y
        # The outputs that torch gives for integer padding; there may be one fewer.
        axes = zip(sizes, border.left, g.extent, g.stride, y.shape[-g.dims :], strict=True)
        return zero_extend(y, [(n + 2 * p - x) // s + 1 - m for n, p, x, s, m in axes])


class ConstrainedConvTranspose(ConstrainedConvNd):
    """Base of constrained transposed convolutions: exact adjoints of the convolutions with the same arguments.

    `padding_mode="circular"`, which torch does not have, gives the adjoint of the circular convolution. In this mode
    `padding="same"` (outputs `stride` times the inputs) is allowed, too.
    """

    def __init__(
        self,
        kernel: ConvKernel,
        padding: Size | str,
        output_padding: Size,
        padding_mode: str,
        bias: bool,
        device: Device,
        dtype: torch.dtype | None,
        lipschitz: float,
    ) -> None:
        kernel.axis_shapes = ()  # adjoints are applied as a whole
        g = kernel.weight_geometry
        border = Border.of(g, padding, padding_mode)
        extra = to_tuple(output_padding, self.dims, "output_padding", minimum=0)
        if any(o >= max(s, d) for o, s, d in zip(extra, g.stride, g.dilation, strict=True)):
            raise GeometryError(
                f"output_padding must be smaller than the stride or the dilation, got {extra} for stride {g.stride} "
                f"and dilation {g.dilation}."
            )
        if border.same and border.mode == "zeros":
            raise GeometryError(
                "padding='same' of a transposed convolution is for padding_mode='circular'; with zeros give integers."
            )
        if border.same and any(extra):
            raise GeometryError(
                f"padding='same' already determines the output size; got output_padding={extra}. Pass output_size to "
                "the call instead."
            )
        torch_padding = 0 if isinstance(padding, str) else to_tuple(padding, self.dims, "padding", minimum=0)
        sizes: Any = g.out_channels, g.in_channels, g.kernel_size, g.stride, torch_padding, extra, g.groups
        others: Any = bias, g.dilation, "zeros", device, dtype
        super().__init__(*sizes, *others)  # of the torch class
        self._constrain(kernel, border, lipschitz)
        self.padding_mode = border.mode

    @property
    def covers(self) -> bool:
        """`output_padding` that reaches past the end of the last window adds windows, which have no input here."""
        g, border = self.geometry, self.border
        axes = zip(g.extent, border.left, border.right, self.output_padding, g.stride, strict=True)
        return super().covers and all(x - a - b + o <= s for x, a, b, o, s in axes)

    def inverse(self) -> Inverse:
        """The module that undoes this one: a convolution with the same parameters. See `orthogonium.inverse`."""
        g, border, made = self.geometry, self.border, super().inverse()
        # Outputs of m inputs are (m − 1)·stride + last wide, so the stride divides all of these sizes or none.
        axes = zip(g.extent, border.left, border.right, self.output_padding, strict=True)
        last = tuple(x - a - b + o for x, a, b, o in axes)
        if not border.same and last != g.stride:
            needed = tuple(o + s - n for o, s, n in zip(self.output_padding, g.stride, last, strict=True))
            raise InversionError(
                f"{type(self).__name__}: m inputs give (m − 1)·{g.stride} + {last} outputs, which the stride does not "
                f"divide: what is cut off does not come back. Use output_padding={needed}, or padding='same'."
            )
        return made

    def undo(self, y: Tensor) -> Tensor:
        """The images whose outputs these are; the stride must divide the output size."""
        g = self.geometry
        check_image(y, g.dims, g.in_channels, type(self).__name__)
        sizes = tuple(y.shape[-g.dims :])
        if any(n % s for n, s in zip(sizes, g.stride, strict=True)):
            raise ShapeError(
                f"{type(self).__name__}: outputs of size {sizes} do not determine their inputs, since the stride "
                f"{g.stride} does not divide it. Use output_padding, or an output_size that it divides."
            )
        return super().undo(y)

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """Apply the adjoint of the convolution; `output_size` picks one of the image sizes it could come from."""
        if self.pads_as_torch:
            return execute(self, input, output_size)
        g, border = self.geometry, self.border
        check_image(input, g.dims, g.out_channels, type(self).__name__)
        inputs = input.shape[-g.dims :]
        sizes = self._sizes(inputs, output_size)
        tiled = [tiled_size(n, s) for n, s in zip(sizes, g.stride, strict=True)]
        padded = [n + a + b for n, a, b in zip(tiled, border.left, border.right, strict=True)]
        windows = [(n - x) // s + 1 for n, x, s in zip(padded, g.extent, g.stride, strict=True)]
        x = zero_extend(input, [w - m for w, m in zip(windows, inputs, strict=True)])
        y = zero_extend(execute(self, x, padded), [n - t for n, t in zip(sizes, tiled, strict=True)])
        return add_bias(self, y)

    def forward_of_torch(self, input: Tensor, output_size: Sequence[int] | None) -> Tensor:
        """What `nn.ConvTransposeNd` does with the weight."""
        return super().forward(input, output_size)

    def _sizes(self, inputs: Sequence[int], output_size: Sequence[int] | None) -> list[int]:
        """Image size of the convolution whose adjoint is applied."""
        g, border = self.geometry, self.border
        axes = list(zip(inputs, g.stride, strict=True))
        if border.same:
            natural, smallest = [m * s for m, s in axes], [(m - 1) * s + 1 for m, s in axes]
            largest = natural
        else:
            smallest = [(m - 1) * s - 2 * p + x for (m, s), p, x in zip(axes, border.left, g.extent, strict=True)]
            largest = [n + s - 1 for n, s in zip(smallest, g.stride, strict=True)]
            natural = [n + o for n, o in zip(smallest, self.output_padding, strict=True)]
        if output_size is None:
            return natural
        sizes = list(output_size)[-g.dims :]
        if len(sizes) != g.dims or any(not a <= n <= b for a, n, b in zip(smallest, sizes, largest, strict=True)):
            raise ShapeError(
                f"{type(self).__name__}: no image of size {tuple(output_size)} gives {tuple(inputs)} outputs; sizes "
                f"from {tuple(smallest)} to {tuple(largest)} do."
            )
        return sizes


def warn_depthwise(name: str, geometry: ConvGeometry) -> None:
    """Warn that a layer with one channel per group has next to nothing to learn."""
    warn(
        f"{name}: with one channel per group, the only orthogonal kernels are shifts ({geometry.groups} groups, kernel "
        f"{geometry.kernel_size}): this layer has no trainable weight. Use AdaptiveSOCConv{geometry.dims}d, or fewer "
        "groups.",
        GuaranteeWarning,
    )
