"""Constrained convolutions: real `nn.ConvNd`s and `nn.ConvTransposeNd`s with their own border (see `padding.py`)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orthogonium.errors import GeometryError, GuaranteeWarning, ShapeError
from orthogonium.kernels import ConvGeometry
from orthogonium.kernels.geometry import Size, to_tuple
from orthogonium.layers.constrained import Constrained, Guarantee
from orthogonium.layers.conv.padding import Border, check_image, tiled_size, unwrap, wrap, zero_extend
from orthogonium.linalg.precision import autocasts, is_exporting
from orthogonium.methods.constraint import Constraint, standard_strides

_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_CONV_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}

Device = torch.device | str | None


class ConstrainedConvNd(Constrained, nn.modules.conv._ConvNd):
    """What convolutions and transposed ones share."""

    geometry: ConvGeometry  # of the convolution, or of the one that a transposed layer is the adjoint of
    border: Border

    def spectral_geometry(self) -> dict[str, bool]:
        """What `orthogonium.spectral` cannot read off the attributes: circular images are extended to tile evenly."""
        return {"extend": self.border.mode == "circular"}

    @property
    def exact(self) -> bool:
        """Whether the kernel is orthogonal on the infinite lattice (as opposed to non-expansive)."""
        return True

    @property
    def covers(self) -> bool:
        """Whether every window of a circular image is there."""
        return self.border.covers(self.geometry)

    @property
    def guarantee(self) -> Guarantee:
        """Orthogonal under circular padding that keeps every window; 1-Lipschitz otherwise."""
        if not self.exact or self.border.mode == "zeros":
            return Guarantee("lipschitz", "for every image size")
        if not self.covers:
            return Guarantee("lipschitz", "for every image size (the padding leaves out windows)")
        if not self.geometry.is_strided:
            return Guarantee("orthogonal", "for every image size")
        return Guarantee("orthogonal", "for image sizes divisible by the stride; 1-Lipschitz for others")


class ConstrainedConv(ConstrainedConvNd):
    """Base of constrained convolutions; mixed with `nn.Conv1d`, `nn.Conv2d` or `nn.Conv3d`."""

    dims: int

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
    ) -> None:
        geometry = ConvGeometry.of(self.dims, in_channels, out_channels, kernel_size, stride, dilation, groups)
        border = Border.of(geometry, padding, padding_mode)
        # torch refuses "same" with stride: it gets an integer and the layer pads by itself.
        strided_same = border.same and geometry.is_strided
        arguments: dict[str, Any] = {
            "in_channels": in_channels,
            "out_channels": out_channels,
            "kernel_size": geometry.kernel_size,
            "stride": geometry.stride,
            "padding": 0 if strided_same else padding,
            "dilation": geometry.dilation,
            "groups": groups,
            "bias": bias,
            "padding_mode": padding_mode,
        }
        super().__init__(**arguments, device=device, dtype=dtype)
        self.geometry, self.border = geometry, border
        if strided_same:
            self.padding = "same"  # as the user said it, for printing

    def forward(self, input: Tensor) -> Tensor:
        """Convolve an image or a batch of images."""
        g, border = self.geometry, self.border
        source = self.weight_source()
        kept = None if source is None else source[0].kept(source[1])
        if source is not None and kept is None and self._separates(*source, input):
            convolve = partial(self._convolve_in_turn, *source)
        else:
            weight = kept.weight if kept else source[0](*source[1]) if source else self.weight
            if border.mode == "zeros" and not (border.same and g.is_strided):
                return self._conv_forward(input, weight, self.bias)
            convolve = partial(self._convolve, weight)
        check_image(input, g.dims, g.in_channels, type(self).__name__)
        sizes = input.shape[-g.dims :]
        if not border.same and any(n + 2 * p < x for n, p, x in zip(sizes, border.left, g.extent, strict=True)):
            raise ShapeError(
                f"{type(self).__name__}: images of size {tuple(sizes)} padded by {border.left} are smaller than the "
                f"extent {g.extent} of the kernel. Use padding='same'."
            )
        if not g.is_strided:
            return convolve(input)
        tiled = [tiled_size(n, s) for n, s in zip(sizes, g.stride, strict=True)]
        y = convolve(zero_extend(input, [0] * g.dims, [t - n for t, n in zip(tiled, sizes, strict=True)]))
        if border.same:
            return y
        # Integer padding has the outputs of torch, of which there may be one less.
        outputs = [(n + 2 * p - x) // s + 1 for n, p, x, s in zip(sizes, border.left, g.extent, g.stride, strict=True)]
        return zero_extend(y, [0] * g.dims, [m - n for m, n in zip(outputs, y.shape[-g.dims :], strict=True)])

    def _separates(self, constraint: Constraint, raw: tuple[Tensor, ...], input: Tensor) -> bool:
        """Whether the factors of the weight do the same as the weight for less."""
        # Which is cheaper depends on the batch, which an exported or traced graph leaves open.
        if is_exporting() or torch.jit.is_tracing():
            return False
        if not constraint.separates(input.numel() // self.in_channels):
            return False
        # Half precision would round each factor, other memory formats would be lost.
        half = input.dtype.itemsize < 4 or autocasts(input)
        if half or input.layout != torch.strided or not input.is_contiguous():
            return False
        # Errors are those of the convolution with the weight.
        if self.bias is not None and self.bias.dtype != input.dtype:
            return False
        image = input.dim() in (self.dims + 1, self.dims + 2) and input.shape[-self.dims - 1] == self.in_channels
        axes = zip(input.shape[-self.dims :], self.border.left, self.border.right, self.geometry.extent, strict=False)
        return image and all(n > 0 and n + a + b >= x and max(a, b) <= n for n, a, b, x in axes)

    def _extend(self, x: Tensor, left: Sequence[int], right: Sequence[int]) -> Tensor:
        return (wrap if self.border.mode == "circular" else zero_extend)(x, left, right)

    def _convolve(self, weight: Tensor, input: Tensor) -> Tensor:
        g, border = self.geometry, self.border
        x = self._extend(input, border.left, border.right)
        return _CONV[g.dims](x, weight, self.bias, g.stride, 0, g.dilation, g.groups)

    def _convolve_in_turn(self, constraint: Constraint, raw: tuple[Tensor, ...], input: Tensor) -> Tensor:
        """Convolve with the factors of the weight."""
        g, border = self.geometry, self.border

        def pad(x: Tensor, axis: int) -> Tensor:  # up to the last window
            left, right = border.left[axis], border.right[axis]
            unused = (x.shape[2] + left + right - g.extent[axis]) % g.stride[axis]
            others = [0] * (x.dim() - 3)
            return self._extend(x, [left, *others], [right - unused, *others])

        x = constraint.convolve(input.reshape(-1, g.groups, g.group_in, *input.shape[-g.dims :]), pad, *raw)
        y = x.reshape(*input.shape[: -g.dims - 1], g.out_channels, *x.shape[3:])
        y = standard_strides(y)
        return y if self.bias is None else y + self.bias.view(-1, *[1] * g.dims)


class ConstrainedConvTranspose(ConstrainedConvNd):
    """Base of constrained transposed convolutions: exact adjoints of the convolutions with the same arguments.

    `padding_mode="circular"`, which torch does not have, is the adjoint of the circular convolution. There,
    `padding="same"` (outputs `stride` times the inputs) is allowed too.
    """

    dims: int

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        output_padding: Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Size = 1,
        padding_mode: str = "zeros",
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        geometry = ConvGeometry.of(self.dims, out_channels, in_channels, kernel_size, stride, dilation, groups)
        border = Border.of(geometry, padding, padding_mode)
        extra = to_tuple(output_padding, self.dims, "output_padding", minimum=0)
        if any(o >= max(s, d) for o, s, d in zip(extra, geometry.stride, geometry.dilation, strict=True)):
            raise GeometryError(
                f"output_padding must be smaller than the stride or the dilation, got {extra} for stride "
                f"{geometry.stride} and dilation {geometry.dilation}."
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
        arguments: dict[str, Any] = {
            "in_channels": in_channels,
            "out_channels": out_channels,
            "kernel_size": geometry.kernel_size,
            "stride": geometry.stride,
            "padding": 0 if isinstance(padding, str) else padding,
            "output_padding": extra,
            "groups": groups,
            "bias": bias,
            "dilation": geometry.dilation,
        }
        super().__init__(**arguments, device=device, dtype=dtype)
        self.geometry, self.border = geometry, border
        self.padding_mode = border.mode
        if border.same:
            self.padding = "same"

    @property
    def covers(self) -> bool:
        """More `output_padding` than to the end of the last window adds windows, which have no input here."""
        g, border = self.geometry, self.border
        axes = zip(g.extent, border.left, border.right, self.output_padding, g.stride, strict=True)
        return super().covers and all(x - a - b + o <= s for x, a, b, o, s in axes)

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """Apply the adjoint of the convolution; `output_size` picks one of the image sizes it could come from."""
        if self.border.mode == "zeros":
            return super().forward(input, output_size)
        g, border = self.geometry, self.border
        check_image(input, g.dims, g.out_channels, type(self).__name__)
        inputs = input.shape[-g.dims :]
        sizes = self._sizes(inputs, output_size)
        tiled = [tiled_size(n, s) for n, s in zip(sizes, g.stride, strict=True)]
        padded = [n + a + b for n, a, b in zip(tiled, border.left, border.right, strict=True)]
        windows = [(n - x) // s + 1 for n, x, s in zip(padded, g.extent, g.stride, strict=True)]
        x = zero_extend(input, [0] * g.dims, [w - m for w, m in zip(windows, inputs, strict=True)])
        y = _CONV_TRANSPOSE[g.dims](x, self.weight, None, g.stride, 0, 0, g.groups, g.dilation)
        y = zero_extend(y, [0] * g.dims, [n - m for n, m in zip(padded, y.shape[-g.dims :], strict=True)])
        y = unwrap(y, border.left, border.right)
        y = zero_extend(y, [0] * g.dims, [n - t for n, t in zip(sizes, tiled, strict=True)])
        return y if self.bias is None else y + self.bias.view(-1, *[1] * g.dims)

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
                f"{type(self).__name__}: no image of size {tuple(output_size)} gives {tuple(inputs)} outputs; sizes from "
                f"{tuple(smallest)} to {tuple(largest)} do."
            )
        return sizes


def warn_depthwise(name: str, geometry: ConvGeometry) -> None:
    """Say that a layer with one channel per group has next to nothing to learn."""
    warnings.warn(
        f"{name}: with one channel per group ({geometry.groups} groups, kernel {geometry.kernel_size}), the only "
        "orthogonal kernels are shifts: this layer has no trainable weight. Use AdaptiveSOCConv, or fewer groups.",
        GuaranteeWarning,
        stacklevel=5,
    )
