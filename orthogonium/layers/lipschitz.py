"""Layers by the name of their method: to compare methods, change one word.

Each function takes the arguments of its torch counterpart, `method`, and the options of that method (`niter=2` for AOL,
`order=8` for SOC, `ortho_params=…`), and returns the layer that `orthogonium.methods.METHODS` names. The default
padding is the same for all methods: "same", circular.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from orthogonium.errors import ParameterError
from orthogonium.kernels.geometry import Size
from orthogonium.layers.argument_names import argument_names
from orthogonium.methods import METHODS, Method
from orthogonium.methods.kernel import Device
from orthogonium.methods.registry import Layer


def layer_class(layer: Layer) -> Callable[..., nn.Module]:
    """The layer that an entry of `METHODS` names: a class, or "package.module:Class"."""
    return pkgutil.resolve_name(layer) if isinstance(layer, str) else layer


def _find(method: str, kind: str, layer_of: Callable[[Method], Layer | None]) -> Callable[..., nn.Module]:
    known = ", ".join(name for name, entry in METHODS.items() if layer_of(entry))
    if method not in METHODS:
        raise ParameterError(f"There is no method {method!r}. Methods with {kind}: {known}.")
    layer = layer_of(METHODS[method])
    if layer is None:
        own = ", ".join(layer_class(other).__name__ for other in METHODS[method].layers)
        raise ParameterError(f"Method {method!r} has no {kind}; its layers are {own}. Methods with {kind}: {known}.")
    return layer_class(layer)


def _make(
    function: Callable[..., nn.Module], cls: Callable[..., nn.Module], own: Mapping[str, Any], given: Mapping[str, Any]
) -> nn.Module:
    """Call the class with what a function of this file was `given`, and the method's `own` options.

    Torch arguments that the class does not take must have been left at their defaults.
    """
    method, options = given["method"], {**own, **given["options"]}
    declared = inspect.signature(function).parameters
    arguments = {name: value for name, value in given.items() if name in declared and name not in ("method", "options")}
    if METHODS[method].square:
        before, after = (
            ("in_channels", "out_channels") if "in_channels" in arguments else ("in_features", "out_features")
        )
        if arguments[before] != arguments[after]:
            raise ParameterError(
                f"Method {method!r} keeps the number of channels, got {arguments[before]} → {arguments[after]}. Use "
                "'sll-aoc' or 'sandwich', which change it, or an orthogonal layer before it."
            )
        del arguments[after]
    accepted = argument_names(cls)
    refused = [name for name in options if name not in accepted]
    refused += [name for name in arguments if name not in accepted and arguments[name] != declared[name].default]
    if refused:
        others = ", ".join(sorted(accepted - set(arguments) - set(declared))) or "nothing"
        raise ParameterError(
            f"The layer {cls.__name__} of method {method!r} does not take {', '.join(refused)}. "
            f"Beside the arguments of torch it takes: {others}."
        )
    return cls(**{name: value for name, value in arguments.items() if name in accepted}, **options)


def _named(function: Callable[..., nn.Module], name: str, doc: str) -> Callable[..., nn.Module]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def _convolution(dims: int, doc: str) -> Callable[..., nn.Module]:
    def make(
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
        *,
        method: str = "aoc",
        **options: Any,
    ) -> nn.Module:
        given = locals()
        cls = _find(method, f"{dims}-D convolutions", lambda entry: entry.conv.get(dims))
        return _make(make, cls, METHODS[method].conv_options, given)

    return _named(make, f"LipschitzConv{dims}d", doc)


def _transposed_convolution(dims: int, doc: str) -> Callable[..., nn.Module]:
    def make(
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = "same",
        output_padding: Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Size = 1,
        padding_mode: str = "circular",
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        method: str = "aoc",
        **options: Any,
    ) -> nn.Module:
        given = locals()
        cls = _find(method, f"{dims}-D transposed convolutions", lambda entry: entry.conv_transpose.get(dims))
        return _make(make, cls, METHODS[method].conv_options, given)

    return _named(make, f"LipschitzConvTranspose{dims}d", doc)


LipschitzConv2d = _convolution(
    2,
    """2-D convolution of the method with this name: `LipschitzConv2d(3, 16, 3, stride=2, method="aoc")`.

    Args:
        in_channels: this and the next are the arguments of `nn.Conv2d`; padding="same" goes with any stride.
        method: a key of `METHODS`; an unknown one lists the known ones.
        options: of the method, such as `niter`, `order` or `ortho_params`; what its layer does not take is refused.

    Returns:
        The layer of the method, an `nn.Conv2d` for linear methods.

    >>> x = torch.randn(1, 4, 8, 8)
    >>> for method in ("aoc", "soc", "aol", "rko"):
    ...     layer = LipschitzConv2d(4, 8, 3, stride=2, method=method)
    ...     print(type(layer).__name__.removeprefix("Parametrized"), tuple(layer(x).shape))
    AdaptiveOrthoConv2d (1, 8, 4, 4)
    AdaptiveSOCConv2d (1, 8, 4, 4)
    AOLConv2d (1, 8, 4, 4)
    RKOConv2d (1, 8, 4, 4)
    """,
)
LipschitzConv1d = _convolution(1, "`LipschitzConv2d` in 1 dimension.")
LipschitzConv3d = _convolution(3, "`LipschitzConv2d` in 3 dimensions.")

LipschitzConvTranspose2d = _transposed_convolution(
    2,
    """Transposed 2-D convolution of this method: arguments of `nn.ConvTranspose2d`, `method` and its options.

    `padding="same"` with circular padding, the default, gives outputs `stride` times as large as the inputs.

    >>> layer = LipschitzConvTranspose2d(8, 4, 3, stride=2, method="soc", order=3)
    >>> layer(torch.randn(1, 8, 4, 4)).shape
    torch.Size([1, 4, 8, 8])
    """,
)
LipschitzConvTranspose1d = _transposed_convolution(1, "`LipschitzConvTranspose2d` in 1 dimension.")
LipschitzConvTranspose3d = _transposed_convolution(3, "`LipschitzConvTranspose2d` in 3 dimensions.")


def LipschitzLinear(
    in_features: int,
    out_features: int,
    bias: bool = True,
    device: Device = None,
    dtype: torch.dtype | None = None,
    *,
    method: str = "aoc",
    **options: Any,
) -> nn.Module:
    """Dense layer of the method with this name; takes the arguments of `nn.Linear`, `method` and its options.

    >>> for method in ("aoc", "aol", "spectral"):
    ...     print(LipschitzLinear(4, 2, method=method).__class__.__mro__[1].__name__)
    OrthoLinear
    AOLLinear
    SpectralLinear
    """
    given = locals()
    cls = _find(method, "dense layers", lambda entry: entry.linear)
    return _make(LipschitzLinear, cls, METHODS[method].linear_options, given)
