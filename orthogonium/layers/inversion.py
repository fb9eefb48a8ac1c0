"""Modules that undo others: orthogonal layers by their adjoints, permutations, chains of these.

Note [Undone]
An isometry `f`, `WᵀW = I`, is undone by its adjoint, `x = Wᵀ(f(x) − b)`, even if it has more outputs than inputs:
then `inverse(f)(f(x)) = x`, while `f(inverse(f)(y))` is only the projection of y. Layers with fewer outputs than inputs
lose information, as do activations that fold: MaxMin maps (a, b) and (b, a) to the same result, HouseHolder a point and
its mirror image. All of their Jacobians are orthogonal, but they are not injective. They are refused.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from orthogonium.errors import OrthogoniumError
from orthogonium.layers.as_written import departure
from orthogonium.layers.guarantee import Guarantee
from orthogonium.linalg.evaluation import has_values


class InversionError(OrthogoniumError):
    """Nothing undoes this module."""


def check_as_written(module: nn.Module, statement: str) -> None:
    """Refuse a module whose class may no longer know its inverse. Note [As written] of `as_written.py`."""
    reason = departure(module, statement)
    if reason is not None:
        raise InversionError(f"What undoes it is not known: {reason}")


class Inverse(nn.Module):
    """Undoes a module that has `undo`, and shares its parameters: training one trains the other.

    Guarantee: `Inverse(module)(module(x)) = x`, up to rounding; and the `inverse_constant` of the module, if any.

    Args:
        module: the module to undo.
        both_sides: whether the module also undoes its inverse.
    """

    def __init__(self, module: nn.Module, both_sides: bool = True) -> None:
        super().__init__()
        check_as_written(module, "undo")
        self.module, self.both_sides = module, both_sides

    @property
    def guarantee(self) -> Guarantee | None:
        """By how much distances may grow on the way back; None if there is no bound."""
        constant = getattr(self.module, "inverse_constant", None)
        return None if constant is None else Guarantee("lipschitz", constant)

    def inverse(self) -> nn.Module:
        """The module itself, if it is undone from both sides."""
        if not self.both_sides:
            raise InversionError(
                f"{type(self.module).__name__} has more outputs than inputs: its inverse forgets what is outside its "
                "range."
            )
        return self.module

    def forward(self, y: Tensor) -> Tensor:
        """The input from which the module made `y`."""
        undone: Any = self.module
        if has_values(y):
            check_as_written(undone, "undo")  # hooks and steps of an optimizer may have come since
        return undone.undo(y)


def inverse(module: nn.Module) -> nn.Module:
    """The module that undoes another one, with the same parameters: `inverse(f)(f(x)) = x` up to rounding.

    Supported are orthogonal dense layers and convolutions with at least as many outputs as inputs (under circular
    padding that keeps every window, or without padding if windows tile the image),
    `InvertibleDownsampling`, `InvertibleUpsampling`, `ChannelShuffle`, `ChannelShift`, `CReLU`, `Scale`,
    `ConcatResidual`, `iResidual`, `nn.Identity`, `PixelShuffle`, `PixelUnshuffle`, `Unflatten` and `LeakyReLU`, and
    chains (`nn.Sequential`) of these.
    Maps that fold cannot be undone: MaxMin, GroupSort, HouseHolder, Abs, and layers with fewer outputs than inputs.

    The stride of a convolution must divide the size of its images, which cannot be told from its outputs: other images
    come back with trailing zeros (padding "same"), or with an edge lost (integers). Outputs of transposed convolutions
    that the stride does not divide are refused.

    Raises:
        InversionError: for everything else, with the reason; also for modules that do not do what their class says:
            subclasses with their own forward, hooks, other parametrizations, weights that left their constraint.

    >>> import orthogonium
    >>> from orthogonium.layers import AdaptiveOrthoConv2d, OrthoLinear
    >>> model = nn.Sequential(AdaptiveOrthoConv2d(3, 12, 3, stride=2), nn.LeakyReLU(0.5))
    >>> x = torch.randn(2, 3, 8, 8)
    >>> torch.allclose(orthogonium.inverse(model)(model(x)), x, atol=1e-5)
    True
    """
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        check_as_written(module, "forward")
        return nn.Sequential(*(inverse(child) for child in reversed(list(module))))
    own = getattr(module, "inverse", None)
    if callable(own):
        made = own()  # which may know a better reason to refuse it
        check_as_written(module, "inverse")
        return made
    made = _of_torch(module)
    if made is None:
        raise InversionError(f"{type(module).__name__}: {_reason(module)}")
    check_as_written(module, "forward")
    return made


def _of_torch(module: nn.Module) -> nn.Module | None:
    if type(module) is nn.Identity:
        return module
    if type(module) is nn.PixelShuffle:
        return nn.PixelUnshuffle(module.upscale_factor)
    if type(module) is nn.PixelUnshuffle:
        return nn.PixelShuffle(module.downscale_factor)
    if type(module) is nn.Unflatten and isinstance(module.dim, int) and module.dim >= 0:
        return nn.Flatten(module.dim, module.dim + len(module.unflattened_size) - 1)
    if type(module) is nn.LeakyReLU and module.negative_slope > 0:
        return nn.LeakyReLU(1 / module.negative_slope)
    return None


_REASONS = {
    "MaxMin": "it gives (a, b) and (b, a) the same result, which nothing can undo; on its results it is the identity.",
    "HouseHolder": "it gives a pair and its mirror image the same result, so that nothing can undo it.",
    "GroupSort": "it forgets the order of what it sorts.",
    "Abs": "it forgets signs.",
    "NActivation": "it gives several numbers the same result.",
    "Flatten": (
        "its outputs do not tell the shape that it flattened. Invert the parts before and after it separately, with "
        "nn.Unflatten(1, shape) between: nn.Sequential(inverse(after), nn.Unflatten(1, shape), inverse(before)), "
        "where shape is that of one sample in front of Flatten."
    ),
}


def _reason(module: nn.Module) -> str:
    names = {"ReLUMaxMin": "MaxMin", "HouseHolder_Order_2": "HouseHolder", "FullSort": "GroupSort"}
    name = type(module).__name__
    instead = " Invertible activations are CReLU, nn.LeakyReLU and those inside an iResidual."
    known = _REASONS.get(names.get(name, name), "no inverse of it is known.")
    return known + ("" if name == "Flatten" else instead)
