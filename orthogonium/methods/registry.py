"""What a method is, and how methods from outside this package enter the table.

Note [Methods from outside]
`register_method(Method(…))` registers a method when it is called. An installed package can declare an entry point in
the group "orthogonium.methods", a `Method` or several of them, which is read when the table is first accessed:

    [project.entry-points."orthogonium.methods"]
    mine = "my_package:METHOD"

Its layers are classes, or "package.module:Class". They may be any modules: bounds follow what they compute, and
take nothing on trust.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from orthogonium.errors import ParameterError

if TYPE_CHECKING:
    from torch import nn

ENTRY_POINTS = "orthogonium.methods"
Layer: TypeAlias = "str | Callable[..., nn.Module]"  # "package.module:Class", or the class


@dataclass(frozen=True)
class Method:
    """What a method promises, supports and costs, and the layers that apply it."""

    name: str  # what `method=` of the façades takes
    paper: str  # authors and year
    guarantee: Literal["orthogonal", "lipschitz"]  # all singular values 1, or 1-Lipschitz
    padding: str  # where the guarantee holds
    cost: str  # flops of building a 3×3 kernel of c channels, forward
    conv: Mapping[int, Layer] = field(default_factory=dict)  # dims → layer with the arguments of `nn.ConvNd`, or some
    conv_transpose: Mapping[int, Layer] = field(default_factory=dict)  # dims → layer, as `nn.ConvTransposeNd`
    linear: Layer | None = None  # layer with the arguments of `nn.Linear`
    linear_options: Mapping[str, Any] = field(default_factory=dict)  # options that make `linear` apply this method
    conv_options: Mapping[str, Any] = field(default_factory=dict)  # options of `conv` besides torch's, and their values
    square: bool = False  # whether inputs and outputs have the same number of channels or features
    activated: bool = False  # whether the layers contain their activation, so they are not linear
    further: tuple[Layer, ...] = ()  # layers that the façades do not build
    stride: bool = True  # whether strides other than 1 are supported; likewise dilations and groups
    dilation: bool = True
    groups: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ParameterError(f"A method has a name, got {self.name!r}.")
        if self.guarantee not in ("orthogonal", "lipschitz"):
            raise ParameterError(
                f"Method {self.name!r}: guarantee is 'orthogonal' or 'lipschitz', got {self.guarantee!r}."
            )
        for layer in self.layers:
            if not callable(layer) and not (isinstance(layer, str) and layer.count(":") == 1):
                raise ParameterError(
                    f"Method {self.name!r}: a layer is a class, or 'package.module:Class', got {layer!r}."
                )

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All layers of this method."""
        dense = () if self.linear is None else (self.linear,)
        return (*self.conv.values(), *self.conv_transpose.values(), *dense, *self.further)


class MethodTable(UserDict[str, Method]):
    """Methods by name. Note [Methods from outside]."""

    def __init__(self, built_in: Iterable[Method]) -> None:
        self._methods = {method.name: method for method in built_in}
        self._is_complete = False

    def add(self, method: Method) -> Method:
        """Register a method under a new name."""
        if not isinstance(method, Method):
            raise ParameterError(f"A method is registered as a Method, got {type(method).__name__}.")
        if method.name in self._methods:
            raise ParameterError(f"There is a method {method.name!r} already. Give yours another name.")
        self._methods[method.name] = method
        return method

    @property
    def data(self) -> dict[str, Method]:  # type: ignore[override]
        """What every access goes to: the table, completed at the first one."""
        if not self._is_complete:
            self._is_complete = True  # already here: what is loaded may access the table
            all_loaded = False
            try:
                for point in entry_points(group=ENTRY_POINTS):
                    loaded = point.load()
                    for method in [loaded] if isinstance(loaded, Method) else loaded:
                        if self._methods.get(method.name) is not method:  # it may have registered itself
                            self.add(method)
                all_loaded = True
            finally:
                self._is_complete = all_loaded  # otherwise the next lookup tries again, and raises the same error
        return self._methods
