"""How a kernel becomes the `weight` of a layer: built when needed, kept in eval (`eval_cache.py`), assigned, copied.

Note [Precision]
Constraints are numerical algorithms: they run in float32 or better, whatever the storage dtype, autocast and the
settings of float32 products say (Note [Products] of `linalg/products.py`).

Note [Constants]
A layer whose constant is L applies L times what its kernel builds; in a block `Sx + Cσ(Ax + b)` only C and S are
multiplied (a skip connection without a kernel, in `forward`), so activations see what they see for L = 1. The
factor is part of the weight: frozen, assigned, measured and certified weights contain it. Like other arguments of a
layer, it is not an entry of the state_dict.

Note [Copies of parametrized modules]
torch gives each parametrized module its own class that holds the `weight` property, forbids pickling it, and lets a
deep copy share that class, so removing the parametrization of a copy breaks the original. Here a copy (or an unpickled
module) starts from the class as written and gets a fresh class of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from copy import deepcopy
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from orthogonium.errors import ConstraintError, ShapeError
from orthogonium.layers.eval_cache import Kept
from orthogonium.layers.from_torch import distance, start_from
from orthogonium.layers.guarantee import Guarantee, check_constant
from orthogonium.linalg.evaluation import full_precision, has_hooks, has_values, replaces, waits
from orthogonium.methods.batches import build_stacked
from orthogonium.methods.kernel import INSTEAD, Kernel, Raw, as_tuple

_MOST_KEPT = 4  # weights of one layer, for images of several sizes


def standard_strides(x: Tensor) -> Tensor:
    """Make strides standard: axes of size 1 may have any stride, with which torch 2.13 convolves out of bounds."""
    standard = [math.prod(x.shape[i + 1 :]) for i in range(x.dim())]
    return x if list(x.stride()) == standard else x.clone(memory_format=torch.contiguous_format)


class Packing:
    """Shapes of tensors that are stored one after another in a vector.

    >>> a, b = Packing((2, 3), (4,)).unpack(torch.arange(10))
    >>> a.shape, b.shape
    (torch.Size([2, 3]), torch.Size([4]))
    """

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        self.shapes = shapes
        self.sizes = [math.prod(shape) for shape in shapes]

    def unpack(self, packed: Tensor) -> list[Tensor]:
        """The tensors, as views."""
        return [t.view(shape) for t, shape in zip(packed.split(self.sizes), self.shapes, strict=True)]


class Constraint(nn.Module):
    """The parametrization of a `weight`: its kernel, the constant of the layer, and the weight that is kept in eval.

    `supply` takes raw parameters and returns what was built from them beforehand, together with others
    (`orthogonium.building`), or None if there is nothing: the weight, or weights along axes if `supply.along_axes`.
    """

    supply: Any = None

    def __init__(self, kernel: Kernel, initial: Tensor | Raw, lipschitz: float) -> None:
        super().__init__()
        self.kernel: Any = kernel
        self.lipschitz = lipschitz  # Note [Constants]
        # Orthogonalizers of users may have parameters and buffers: then the weight is not kept, nor built beforehand.
        self.is_of_raw_alone = not [*kernel.parameters(), *kernel.buffers()]
        self._initial: Tensor | Raw | None = initial
        self._kept: dict[Hashable, Kept] | None = None  # by what was built

    def forward(self, *raw: Tensor) -> Tensor:
        """The constrained weight, from the cache when no gradient can flow (Note [Eval cache])."""
        supplied = self.supplied(raw)
        if supplied is None:
            return self.kept_or_built(raw)
        self._forget(raw)
        if not self.supply.along_axes:
            return supplied
        join = full_precision(lambda packed: self.kernel.from_axes(self._split(packed)))
        return standard_strides(join(supplied))

    def kept_or_built(self, raw: Raw, what: Hashable = None, build: Callable[[Raw], Tensor] | None = None) -> Tensor:
        """The weight of these raw parameters, kept if possible.

        Kernels with several weights (one per image size) name the one they want, `what`, and what builds it.
        """
        build = self.build if build is None else build
        if not self.keeps(raw):
            self._forget(raw)
            return build(raw)
        known = self._kept or {}
        kept = known.get(what)
        if kept is None or not kept.is_current(raw):
            kept = Kept(raw, build)
            if not has_values(kept.weight):  # built under `FakeTensorMode`
                return kept.weight
            self._kept = {**dict(list(known.items())[1 - _MOST_KEPT :]), what: kept}
        return kept.weight

    @property
    def is_as_written(self) -> bool:
        """Whether weights are built as this class does, by no subclass and no method of the instance."""
        return type(self) is Constraint and not replaces(self, _REPLACEABLE)

    def supplied(self, raw: Raw) -> Tensor | None:
        """What has been built of these raw parameters beforehand, if anything."""
        return None if self.supply is None else self.supply(raw)

    def must_build(self, raw: Raw) -> bool:
        """Whether the weight of these raw parameters is neither kept nor supplied."""
        return not self.keeps(raw) and self.supplied(raw) is None

    def keeps(self, raw: Raw) -> bool:
        """Whether the weight is built once and kept: no gradient can flow, and there are values to compare."""
        if not self.is_of_raw_alone or self._may_train(raw) or not has_values(*raw):
            return False
        return not any(p.is_inference() and waits(p) for p in raw)  # inference tensors have no version

    def _may_train(self, raw: Raw) -> bool:
        return self.training or (torch.is_grad_enabled() and any(p.requires_grad for p in raw))

    def _forget(self, raw: Raw) -> None:
        if self._kept is not None and waits(raw[0]) and self._may_train(raw):
            self._kept = None

    def build(self, raw: Raw, along_axes: bool = False, stacked: bool = False, **options: Any) -> Tensor:
        """The weight, or the weights `along_axes` (Note [Along axes] of `methods/aoc.py`). Note [Precision].

        Several kernels are joined in one vector. The weights of n `stacked` sets of raw parameters, `(n, …)` each, are
        built at once (Note [Batches] of `methods/batches.py`). The method of the kernel takes the `options`.
        """
        kernel, name = self.kernel, "along_axes" if along_axes else "build"
        by = partial(build_stacked, kernel, by=name) if stacked else getattr(kernel, name)
        built = full_precision(lambda *raw: self._scale(by(*raw, **options), along_axes), self.is_of_raw_alone)(*raw)
        if not isinstance(built, Tensor):
            first = int(stacked)
            built = torch.cat([t.flatten(first) for t in built], first)
        return standard_strides(built)

    def _scale(self, built: Any, along_axes: bool) -> Any:
        """Times the constant of the layer: C and S of a block (Note [Constants]), or the last of weights along axes."""
        if self.lipschitz == 1:
            return built
        if isinstance(built, Tensor):
            return self.lipschitz * built
        first = -1 if along_axes else 1
        return *built[:first], *(self.lipschitz * kernel for kernel in built[first:])

    def parts(self, by: Callable[..., tuple[Tensor, ...]], raw: Raw) -> tuple[Tensor, ...]:
        """What a layer applies instead of the weight, by a method of the kernel; without the constant."""
        self._forget(raw)
        return full_precision(by, self.is_of_raw_alone)(*raw)

    def along_axes(self, raw: Raw) -> list[Tensor]:
        """What a layer applies instead of the weight, axis by axis: Note [Along axes] of `methods/aoc.py`."""
        supplied = self.supplied(raw)
        if supplied is None:
            return self._split(self.kept_or_built(raw, "along axes", partial(self.build, along_axes=True)))
        self._forget(raw)
        return self._split(supplied)

    def _split(self, packed: Tensor) -> list[Tensor]:
        return Packing(*self.kernel.axis_shapes).unpack(packed)

    def right_inverse(self, weight: Tensor) -> Tensor | Raw:
        """Called by torch at registration (when the raw parameters are known) and on `layer.weight = …`."""
        if self._initial is not None:
            raw, self._initial = self._initial, None
            return raw
        shape = self.kernel.weight_shape
        if shape is not None and tuple(weight.shape) != shape:
            raise ShapeError(f"The weight of this layer has shape {shape}: got {tuple(weight.shape)}.")
        if not weight.isfinite().all():
            raise ConstraintError("The assigned weight has entries that are NaN or infinite.")
        weight = weight / self.lipschitz
        raw = self.kernel.invert(weight)
        if self.kernel.projects:
            return raw
        rebuilt = self.build(as_tuple(raw)) / self.lipschitz
        tolerance = 1e-5 if weight.dtype.itemsize > 2 else 1e-2
        deviation = (rebuilt - weight).abs().max().item() if weight.numel() else 0.0
        if not deviation <= tolerance:
            raise ConstraintError(
                f"The assigned weight is outside the set of {type(self.kernel).__name__}, or could not be recovered: "
                f"what was found for it builds a weight that is {deviation:.1e} off (allowed {tolerance:.0e}). "
                f"{INSTEAD}"
            )
        return raw

    def train(self, mode: bool = True) -> Constraint:
        """Drop the kept weight: it is useless in training, and eval starts afresh."""
        self._kept = None
        super().train(mode)
        return self

    def _load_from_state_dict(self, *args: Any) -> None:
        self._kept = None
        super()._load_from_state_dict(*args)

    def _apply(self, *args: Any, **kwargs: Any) -> Constraint:
        self._kept = None  # and with it the memory it refers to
        return super()._apply(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None, "supply": None}  # copies and pickles build their own


_REPLACEABLE = frozenset(name for name, value in vars(Constraint).items() if callable(value))
Own = TypeVar("Own", bound=nn.Module)
Source = tuple[Constraint, Raw]  # of a weight: its constraint and raw parameters


def constrain(layer: Constrained, kernel: Kernel, lipschitz: float = 1.0) -> None:
    """Make `layer.weight` what `kernel` builds from raw parameters, initially random, times the layer's constant."""
    weight: Any = layer.weight
    layer._lipschitz = check_constant(lipschitz, type(layer).__name__)
    constraint = Constraint(kernel, kernel.initial(weight.device, weight.dtype), layer.lipschitz)
    parametrize.register_parametrization(layer, "weight", constraint, unsafe=True)


def raw_parameters(chain: Any) -> Raw | None:
    """What a `ParametrizationList` gives its constraint, in order; None if hooks (of pruning) decide at each call.

    Tensors may take the place of parameters: replicas on other devices and dual numbers are set as attributes.
    """
    if chain._forward_pre_hooks or chain._forward_hooks:
        return None
    found = chain._parameters
    names = ["original"] if chain.is_tensor else [f"original{i}" for i in range(chain.ntensors)]
    return tuple(found[name] if name in found else getattr(chain, name) for name in names)


def _restore(cls: type[nn.Module], state: dict[str, Any]) -> nn.Module:
    module = cls.__new__(cls)
    nn.Module.__setstate__(module, state)
    if "parametrizations" in module._modules:
        give_own_class(module, cls)
    return module


def give_own_class(module: nn.Module, cls: type[nn.Module]) -> None:
    """Give a parametrized module a fresh subclass of `cls`. Note [Copies of parametrized modules]."""
    module.__class__ = cls
    parametrize._inject_new_class(module)
    for name in module.parametrizations:  # type: ignore[union-attr]
        parametrize._inject_property(module, name)


class Constrained(nn.Module):
    """Mixin of every constrained layer. Note [Copies of parametrized modules]."""

    _lipschitz: float = 1.0

    @property
    def lipschitz(self) -> float:
        """The constant of the layer: 1 unless specified otherwise. Note [Constants]."""
        return self._lipschitz

    @lipschitz.setter
    def lipschitz(self, value: float) -> None:
        value = check_constant(value, type(self).__name__)
        if not parametrize.is_parametrized(self, "weight"):
            raise ConstraintError(
                f"{type(self).__name__} has a plain weight, which its constant {self.lipschitz:.6g} is part of: "
                "multiply `weight` instead, or add a `Scale` layer."
            )
        constraint: Any = self.parametrizations.weight[0]  # type: ignore[union-attr, index]
        constraint.lipschitz, constraint._kept = value, None
        self._lipschitz = value

    @property
    def guarantee(self) -> Guarantee:
        """The property this layer keeps whatever its parameters are."""
        raise NotImplementedError

    def size_repr(self) -> str:
        """Sizes and other arguments, for printing: by default those of the torch counterpart."""
        return super().extra_repr()

    def extra_repr(self) -> str:
        """Sizes, the constant if it is not 1, and the kernel that builds the weight."""
        parts = [self.size_repr()]
        if self.lipschitz != 1:
            parts.append(f"lipschitz={self.lipschitz:.6g}")
        if parametrize.is_parametrized(self, "weight"):
            constraint: Any = self.parametrizations.weight[0]  # type: ignore[union-attr, index]
            parts.append(f"kernel={type(constraint.kernel).__name__}")
        return ", ".join(parts)

    def __repr__(self) -> str:
        """One line, as for torch layers."""
        children = [
            f"{name}={' '.join(repr(child).split())}"
            for name, child in self.named_children()
            if name != "parametrizations"
        ]
        name = parametrize.type_before_parametrizations(self).__name__
        return f"{name}({', '.join([self.extra_repr(), *children])})"

    def source(self) -> Source | None:
        """The constraint and the raw parameters from which the weight is built, if nothing else is involved.

        There is no such pair after `remove_parametrizations`, with a second parametrization, hooks, pruning or
        replaced methods, or in `parametrize.cached()`.
        """
        chain = self._constrained_chain()
        if chain is None or parametrize._cache_enabled:
            return None
        constraint = chain._modules["0"]
        own = type(self).weight_of is Constrained.weight_of and "weight_of" not in vars(self)
        if not own or has_hooks(constraint) or not constraint.is_as_written:
            return None
        raw = raw_parameters(chain)
        return None if raw is None else (constraint, raw)

    def _constrained_chain(self) -> Any:
        """The `ParametrizationList` of the weight, if it contains nothing but the constraint."""
        chains = self._modules.get("parametrizations")
        chain: Any = None if chains is None else chains._modules.get("weight")
        if chain is None or len(chain._modules) != 1 or not isinstance(chain._modules["0"], Constraint):
            return None
        return chain

    def weight_of(self, source: Source | None) -> Tensor:
        """`weight`, at half the cost of the property when it is kept."""
        weight: Any = self.weight if source is None else source[0](*source[1])
        return weight

    def reset_parameters(self) -> None:
        """Draw new raw parameters and zero the bias; called after `to_empty` and by model initializers."""
        bias: Any = getattr(self, "bias", None)
        with torch.no_grad():
            if isinstance(bias, torch.Tensor):
                bias.zero_()
            if parametrize.is_parametrized(self, "weight"):
                chain: Any = self.parametrizations.weight  # type: ignore[union-attr]
                raw = list(chain.parameters(recurse=False))
                fresh = chain[0].kernel.initial(raw[0].device, raw[0].dtype)
                for parameter, value in zip(raw, as_tuple(fresh), strict=True):
                    parameter.copy_(value)

    @classmethod
    def from_torch(cls: type[Own], layer: nn.Module, *, steps: int = 500, **options: Any) -> Own:
        """The layer of this class that is closest to a plain one, with its sizes, bias, device and dtype.

        Weights come from a formula if there is one: polar factors of matrices, multiples of the weight for methods
        that scale. Other kernels are fitted in the direction of the weight; a fit that takes more than two seconds
        reports on stderr. Blocks with an activation inside are fitted to the activated outputs of the layer, on normal
        inputs. A layer that already satisfies the constraint keeps its outputs. `distance_to` measures what is lost.

        Args:
            layer: an `nn.Linear`, `nn.ConvNd` or `nn.ConvTransposeNd`, constrained or not.
            steps: largest number of steps of a fit.
            options: arguments of this class, its own or in place of those of the layer.

        >>> from orthogonium.layers import OrthoLinear
        >>> plain = nn.Linear(6, 4)
        >>> layer = OrthoLinear.from_torch(plain)
        >>> u, _, vh = torch.linalg.svd(plain.weight, full_matrices=False)
        >>> torch.allclose(layer.weight, u @ vh, atol=1e-5), torch.equal(layer.bias, plain.bias)
        (True, True)
        """
        return start_from(cls, layer, steps, options)

    def distance_to(self, layer: nn.Module, up_to_scale: bool = False) -> float:
        """`‖K − W‖ / ‖W‖` for the weights of this and another layer; or the smallest value over all multiples of K.

        For blocks with an activation inside: that of their outputs and the activated outputs of the layer, on normal
        inputs.

        >>> from orthogonium.layers import OrthoLinear
        >>> plain = nn.Linear(4, 4)
        >>> _ = plain.weight.data.copy_(3 * torch.eye(4))
        >>> layer = OrthoLinear.from_torch(plain)
        >>> round(layer.distance_to(plain), 4), round(layer.distance_to(plain, up_to_scale=True), 4)
        (0.6667, 0.0)
        """
        return distance(self, layer, up_to_scale)

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return _restore, (parametrize.type_before_parametrizations(self), self.__dict__.copy())

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        copy = _restore(
            parametrize.type_before_parametrizations(self),
            {k: deepcopy(v, memo) for k, v in self.__dict__.items()},
        )
        memo[id(self)] = copy
        return copy
