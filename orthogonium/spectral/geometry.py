"""Reads a layer into one plain record: which pixels it multiplies by which numbers.

Note [Whose forward is known]
The record describes a layer only if the layer's forward does what the record says. That is so in two cases.

1. The forward *is* torch's own (`nn.Linear`, `nn.ConvNd`, `nn.ConvTransposeNd`, parametrized or not; subclasses that do
   not override it): the record is read from the layer's attributes.
2. The layer states its geometry in a method `spectral_geometry()`, which returns a mapping with any of the fields of
   `Convolution` (missing ones are read from the layer's attributes). An empty mapping says: "my attributes mean what
   `Convolution` says they mean". `check_geometry` compares the statement with the forward.

Any other layer, and any layer with forward hooks (which may change input or output), is known only by calling it: it is
measured by impulse responses, or estimated; it never gets a certified bound from its weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor, nn

from orthogonium.errors import ParameterError, ShapeError

_MODES = ("zeros", "circular", "reflect", "replicate")
_CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
LINEAR_LAYERS = (nn.Linear, *_CONV, *_TRANSPOSED)


@dataclass(frozen=True, eq=False)
class Convolution:
    """A convolution `out[i] = Σ_j W[j]·x[s·i + d·j − left]` per axis, or the adjoint of one.

    Attributes:
        weight: (co, ci/groups, *k), real. A transposed layer from co to ci channels has the weight of the convolution
            it is the adjoint of. Without spatial axes: a dense matrix.
        stride: s, one per axis.
        dilation: d, one per axis.
        padding: (left, right), one pair per axis. There are ⌊(n + left + right − reach)/s⌋ + 1 windows on n pixels, the
            first one `left` pixels before the image.
        groups: number of groups of channels that do not mix.
        padding_mode: "zeros", "circular", "reflect" or "replicate": what the pads are filled with.
        transposed: whether the layer applies the adjoint of the convolution.
        output_padding: transposed only: pixels added at the end, one per axis.
        extend: circular only: the image is extended by zeros at its end so that the circle is a whole number of
            strides.
    """

    weight: Tensor
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    groups: int = 1
    padding_mode: str = "zeros"
    transposed: bool = False
    output_padding: tuple[int, ...] = ()
    extend: bool = False

    @property
    def kernel_size(self) -> tuple[int, ...]:
        """Taps per axis."""
        return tuple(self.weight.shape[2:])

    @property
    def reach(self) -> tuple[int, ...]:
        """Pixels from the first to the last tap, d·(k − 1) + 1 per axis."""
        return tuple(d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel_size, strict=True))

    @property
    def in_channels(self) -> int:
        """Channels the layer reads."""
        return self.weight.shape[0] if self.transposed else self.weight.shape[1] * self.groups

    @property
    def out_channels(self) -> int:
        """Channels the layer writes."""
        return self.weight.shape[1] * self.groups if self.transposed else self.weight.shape[0]

    def with_weight(self, weight: Tensor) -> Convolution:
        """The same geometry with another weight."""
        return replace(self, weight=weight)


def convolution(
    weight: Tensor,
    *,
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
    padding: str | int | Sequence[Any] = 0,
    groups: int = 1,
    padding_mode: str = "zeros",
    transposed: bool = False,
    output_padding: int | Sequence[int] = 0,
    extend: bool | None = None,
) -> Convolution:
    """A checked `Convolution` from arguments written as in torch.

    `padding` is an int, one int or (left, right) pair per axis, "valid", or "same". With stride 1, "same" is torch's:
    d·(k − 1) pixels in total, the smaller half on the left. With a stride, which torch does not allow, "same" means
    ⌈n/s⌉ windows, the first max(d·(k − 1) + 1 − s, 0) // 2 pixels before the image, and `extend` for circular padding.

    Args:
        weight: (co, ci/groups, *k) kernel; see `Convolution` for a transposed layer.
        stride: of the windows.
        dilation: distance between taps.
        padding: see above.
        groups: number of groups of channels.
        padding_mode: one of torch's four.
        transposed: whether the layer is the adjoint.
        output_padding: as in `nn.ConvTransposeNd`.
        extend: see `Convolution`; by default True for circular "same" with a stride.

    >>> from orthogonium.spectral import convolution
    >>> convolution(torch.ones(4, 3, 3, 3), stride=2, padding="same", padding_mode="circular").padding
    ((0, 2), (0, 2))
    """
    if weight.ndim < 2 or 0 in weight.shape:
        raise ShapeError(
            f"A weight is a non-empty (out, in/groups, *kernel) tensor, got shape {tuple(weight.shape)}. "
            "Materialize a lazy layer by one forward pass first."
        )
    if weight.is_complex():
        raise ParameterError(f"Spectra are computed for real weights, got {weight.dtype}. Use a real weight.")
    if groups < 1 or weight.shape[0] % groups:
        raise ParameterError(f"groups must divide the {weight.shape[0]} rows of the weight, got {groups}.")
    if padding_mode not in _MODES:
        raise ParameterError(f"padding_mode must be one of {_MODES}, got {padding_mode!r}.")
    kernel = tuple(weight.shape[2:])
    s, d = _per_axis(stride, len(kernel), "stride", 1), _per_axis(dilation, len(kernel), "dilation", 1)
    extra = _per_axis(output_padding, len(kernel), "output_padding", 0)
    pads = _pads(padding, kernel, s, d, padding_mode)
    same = padding == "same" and padding_mode == "circular"
    if same and transposed and not any(extra):
        extra = tuple(si - 1 for si in s)  # outputs of m·s pixels
    return Convolution(
        weight, s, d, pads, groups, padding_mode, transposed, extra, same and max(s) > 1 if extend is None else extend
    )


def geometry_of(layer: nn.Module | Convolution) -> Convolution | None:
    """The record of a layer, or None if only calling the layer shows what it does.

    >>> from orthogonium.spectral import geometry_of
    >>> geometry_of(torch.nn.Conv2d(3, 8, 3, padding=1)).reach
    (3, 3)
    >>> geometry_of(torch.nn.ReLU()) is None
    True
    """
    if isinstance(layer, Convolution):
        return layer
    if not isinstance(layer, nn.Module) or layer._forward_hooks or layer._forward_pre_hooks:
        return None
    if states_geometry(layer):
        return _read(layer, layer.spectral_geometry())  # type: ignore[operator]
    return _read(layer, {}) if _has_torch_forward(layer) else None


def require_geometry(layer: nn.Module | Convolution) -> Convolution:
    """`geometry_of`, or an error that says what to do instead."""
    conv = geometry_of(layer)
    if conv is None:
        raise ParameterError(
            f"No certified bound is known for {type(layer).__name__}: bounds from the weight need torch's own forward "
            "without hooks, or a layer that states its geometry by `spectral_geometry()`. "
            "Measure it instead: `spectrum(layer, input_shape)`, `operator_matrix` or `lanczos`."
        )
    return conv


def states_geometry(layer: object) -> bool:
    """Whether the layer has the method `spectral_geometry`."""
    return callable(getattr(layer, "spectral_geometry", None))


def _has_torch_forward(layer: nn.Module) -> bool:
    known = [cls for cls in LINEAR_LAYERS if isinstance(layer, cls)]
    return bool(known) and all(
        method not in layer.__dict__ and getattr(type(layer), method, None) is getattr(known[0], method, None)
        for method in ("forward", "_conv_forward", "_output_padding")
    )


def _read(layer: nn.Module, stated: Mapping[str, Any]) -> Convolution:
    names = {f.name for f in fields(Convolution)}
    if unknown := stated.keys() - names:
        raise ParameterError(
            f"{type(layer).__name__}.spectral_geometry() states {sorted(unknown)}; known are {sorted(names)}."
        )
    found: dict[str, Any] = {"transposed": isinstance(layer, _TRANSPOSED), "extend": None}
    for name in names - stated.keys():
        value = getattr(layer, name, None)  # once: a parametrized weight is computed
        if value is not None:
            found[name] = value
    found |= stated
    return convolution(**found)


def _per_axis(value: int | Sequence[int], axes: int, name: str, least: int) -> tuple[int, ...]:
    values = (value,) * axes if isinstance(value, int) else tuple(value)
    if len(values) != axes or any(v < least for v in values):
        raise ParameterError(f"{name} must be an int or {axes} ints, each at least {least}, got {value!r}.")
    return values


def _pads(
    padding: str | int | Sequence[Any], kernel: tuple[int, ...], s: tuple[int, ...], d: tuple[int, ...], mode: str
) -> tuple[tuple[int, int], ...]:
    if padding == "same":
        if max(s, default=1) > 1 and mode in ("reflect", "replicate"):
            raise ParameterError(f'padding="same" with stride {s} has no meaning for {mode} padding. Give pixels.')
        lefts = (max(di * (k - 1) + 1 - si, 0) // 2 for k, si, di in zip(kernel, s, d, strict=True))
        return tuple((left, di * (k - 1) - left) for left, k, di in zip(lefts, kernel, d, strict=True))
    if isinstance(padding, str) and padding != "valid":
        raise ParameterError(f'padding must be "same", "valid" or numbers of pixels, got {padding!r}.')
    values = [0] * len(kernel) if padding == "valid" else padding
    values = [values] * len(kernel) if isinstance(values, int) else list(values)
    pairs = tuple((v, v) if isinstance(v, int) else tuple(v) for v in values)
    if len(pairs) != len(kernel) or any(len(p) != 2 or min(p) < 0 for p in pairs):
        raise ParameterError(f"padding needs one non-negative int or pair for each of {len(kernel)} axes: {padding!r}.")
    return pairs
