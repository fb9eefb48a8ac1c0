"""Layers that are bounded as a whole.

| layer | constant | kind |
|---|---|---|
| dense and convolutional, ours and torch's | measured by `orthogonium.spectral`, never read off | exact, upper |
| ours that state a guarantee (activations, poolings, SLL) | 1, unless two inputs refute it | guarantee |
| `L2NormResidual` | √((1 + L²)/2) of its branch | constant |

Every other module is walked through, and so is a layer whose forward is not the one that is known.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrize

from orthogonium.certification.rule import NOT_FINITE
from orthogonium.certification.slopes import steepest_secant
from orthogonium.certification.tracking import Step, Tracked, type_name
from orthogonium.certification.values import Value, concatenated
from orthogonium.certification.walk import Walker, unchanged
from orthogonium.certification.watch import unwatched
from orthogonium.errors import GeometryError, ParameterError
from orthogonium.layers.constrained import Constrained, Guarantee
from orthogonium.layers.conv.base import ConstrainedConv, ConstrainedConvNd, ConstrainedConvTranspose
from orthogonium.layers.residual import AdditiveResidual, ConcatResidual, L2NormResidual, PrescaledAdditiveResidual
from orthogonium.spectral import Spectrum, check_geometry, geometry_of, spectrum

_LINEAR = (nn.Linear, _ConvNd)
_TOLERANCE = 1e-4  # of a secant, computed in float32, above a guaranteed constant
_PROBE = 16  # pixels per axis of the image on which a stated geometry is compared with the forward


class _Forward(nn.Module):
    """The forward of a layer, without its hooks."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer.forward(x)


class _WithGeometry(_Forward):
    """The same with the geometry of its own border."""

    def spectral_geometry(self) -> dict[str, Any]:
        """As the attributes say; our circular images are extended by zeros to a multiple of the stride."""
        names = ("weight", "stride", "dilation", "padding", "groups", "padding_mode", "transposed", "output_padding")
        stated = {name: getattr(self.layer, name) for name in names if hasattr(self.layer, name)}
        if isinstance(self.layer, ConstrainedConvNd):
            stated["extend"] = self.layer.padding_mode == "circular"
        return stated


_OWN_FORWARD = {ConstrainedConv.forward, ConstrainedConvTranspose.forward}
_TORCH_FORWARD: set[Any] = {kind.forward for kind in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)}
_TORCH_FORWARD |= {kind.forward for kind in (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)}


def _known(layer: nn.Module) -> nn.Module | None:
    """The layer, or a view of it, whose linear map `spectral` can read; None if only calling it tells."""
    if "forward" in layer.__dict__:
        return None
    if geometry_of(layer) is not None:
        return layer
    ours = isinstance(layer, ConstrainedConvNd) and type(layer).forward in _OWN_FORWARD
    return _WithGeometry(layer) if ours or type(layer).forward in _TORCH_FORWARD else None


def measure(layer: nn.Module, input_shape: tuple[int, ...]) -> Spectrum:
    """Spectrum of a linear layer: from its geometry if the forward is known and agrees, else by calling it."""
    known = _known(layer)
    if known is not None and isinstance(layer, _ConvNd):
        try:
            dims = len(layer.kernel_size)
            channels, size = input_shape[0], input_shape[1:]
            reach = [d * (k - 1) + 1 for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
            probe = [min(n, max(_PROBE, 2 * r)) for n, r in zip(size, reach, strict=True)]
            if len(size) == dims:
                check_geometry(known, (channels, *probe))
        except GeometryError:
            known = None
    if known is not None:
        return spectrum(known, input_shape, rtol=1e-3)
    return spectrum(_Forward(layer), input_shape, linear=True)


def layer_rule(module: nn.Module, x: Tracked, walker: Walker) -> Value | None:
    """Value behind a layer that is bounded as a whole; None to walk through it."""
    if isinstance(module, _LINEAR):
        return _linear(module, x, walker)
    if isinstance(module, L2NormResidual) and not _altered(module):
        return _l2_residual(module, x, walker)
    if _guaranteed(module) and not _altered(module):
        return _by_guarantee(module, x, walker)
    return None


def summarized(module: nn.Module) -> bool:
    """Whether a module that is walked through is one step of the report: the residual wrappers."""
    return isinstance(module, ConcatResidual | AdditiveResidual | PrescaledAdditiveResidual)


def _altered(module: nn.Module) -> bool:
    return "forward" in module.__dict__


def guarantee_of(module: nn.Module) -> Guarantee | None:
    """The guarantee a module states."""
    guarantee = getattr(module, "guarantee", None)
    return guarantee if isinstance(guarantee, Guarantee) else None


def _guaranteed(module: nn.Module) -> bool:
    """Whether the module as such states a guarantee (and does not wrap others, which are walked through)."""
    author = parametrize.type_before_parametrizations(module).__module__
    if guarantee_of(module) is None or summarized(module) or not author.startswith("orthogonium."):
        return False
    return isinstance(module, Constrained) or not any(name != "parametrizations" for name, _ in module.named_children())


def _linear(module: nn.Module, x: Tracked, walker: Walker) -> Value | None:
    spatial = 0 if isinstance(module, nn.Linear) else len(module.kernel_size)  # type: ignore[arg-type]
    if x.dim() < spatial + 2 or (spatial and x.dim() != spatial + 2):
        return walker.no_bound(x.value, type_name(module), "It needs a batch.", "Keep the batch in front.")
    if not all(t.isfinite().all() for t in (module.weight, module.bias) if isinstance(t, Tensor)):
        return walker.no_bound(x.value, type_name(module), *NOT_FINITE)
    shape = tuple(x.shape[1:])
    cache = walker.spectra
    key = (id(module), x.shape)
    if key not in cache:
        with unchanged(module), unwatched():
            try:
                cache[key] = measure(module, shape)
            except ParameterError:  # its forward was replaced by one that is not linear
                return None
    found = cache[key]
    guarantee = guarantee_of(module)
    warnings = _broken(found, guarantee)
    if found.kind == "estimate":
        walker.steps.append(_step(module, walker, found, math.nan, guarantee, (*warnings, _ESTIMATE)))
        return None
    value = x.value.scaled(found.upper_bound)
    walker.steps.append(_step(module, walker, found, value.bound, guarantee, warnings))
    return value


_ESTIMATE = "Its forward is unknown and it is too large to be measured: its operations are bounded one by one."


def _broken(found: Spectrum, guarantee: Guarantee | None) -> tuple[str, ...]:
    """Warnings where a measured layer is not what it promises; an upper bound proves that only if it is far off."""
    if guarantee is None or "each output" in guarantee.condition:
        return ()
    if found.sigma_max > 1 + (_TOLERANCE if found.kind != "upper" else 0.02):
        return (f"Its guarantee is broken: σ_max = {found.sigma_max:.6g} ({found.kind}).",)
    shrinks = found.kind == "exact" and found.sigma_min < 1 - 1e-3
    if guarantee.kind == "orthogonal" and shrinks and "divisible" not in guarantee.condition:
        return (f"It is not orthogonal: σ_min = {found.sigma_min:.6g}.",)
    return ()


def _step(
    module: nn.Module,
    walker: Walker,
    found: Spectrum,
    bound: float,
    guarantee: Guarantee | None,
    warnings: tuple[str, ...],
) -> Step:
    factor = found.upper_bound if found.kind != "estimate" else math.nan
    slack = factor / found.sigma_max - 1 if found.sigma_max and math.isfinite(factor) else 0.0
    return Step(
        walker.place,
        type_name(module),
        factor,
        found.kind,
        bound,
        found.sigma_min,
        found.sigma_max,
        found.stable_rank,
        slack,
        None if guarantee is None else str(guarantee),
        found.method,
        warnings,
    )


def _l2_residual(module: L2NormResidual, x: Tracked, walker: Walker) -> Value:
    with torch._C._EnableTorchFunction():
        y = module.fn(x)
    branch = y.value if isinstance(y, Tracked) else x.value.scaled(0.0)  # a constant branch
    value = concatenated([x.value, branch]).scaled(math.sqrt(0.5))
    factor = value.bound / x.value.bound
    text = str(module.guarantee)
    walker.steps.append(Step(walker.place, type_name(module), factor, "constant", value.bound, guarantee=text))
    return value


def _by_guarantee(module: nn.Module, x: Tracked, walker: Walker) -> Value:
    """Constant 1 by guarantee, unless two inputs refute it."""
    guarantee = guarantee_of(module)
    assert guarantee is not None
    seen = walker.secants
    key = (id(module), x.shape)
    if key not in seen:
        with unchanged(module), unwatched():
            seen[key] = steepest_secant(module.forward, tuple(x.shape[1:]), x.dtype, x.device)
    if seen[key] > 1 + max(_TOLERANCE, 64 * torch.finfo(x.dtype).eps):
        return walker.no_bound(
            x.value,
            type_name(module),
            f"It guarantees '{guarantee}', but two inputs are moved apart by {seen[key]:.6g}.",
            "Find out who changed its weight or its forward.",
        )
    walker.steps.append(
        Step(
            walker.place,
            type_name(module),
            1.0,
            "guarantee",
            x.value.bound,
            sigma_max=seen[key],
            guarantee=str(guarantee),
            method="guarantee, secants from below",
        )
    )
    return x.value
