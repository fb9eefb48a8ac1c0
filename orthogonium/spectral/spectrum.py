"""The front door: the spectrum of any layer, with a label that says what the numbers mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from orthogonium.errors import ParameterError, ShapeError
from orthogonium.spectral import definition
from orthogonium.spectral.affine import is_affine
from orthogonium.spectral.circular import circular_reduction, circular_singular_values
from orthogonium.spectral.enclosure import BUDGET, enclosure
from orthogonium.spectral.estimate import LinearMap, lanczos
from orthogonium.spectral.geometry import LINEAR_LAYERS, Convolution, geometry_of, states_geometry
from orthogonium.spectral.jacobian import jacobian, steepest_point
from orthogonium.spectral.operator import Map, as_function, operator_matrix
from orthogonium.spectral.rounding import double, gamma
from orthogonium.spectral.symbol import circle_frequencies, mass, phases

Kind = Literal["exact", "upper", "estimate"]
_SVD_FLOPS = 10  # times rows · columns · min(rows, columns)
_PROBES, _STARTS = 16, 8


@dataclass(frozen=True)
class Spectrum:
    """Singular values of a layer. What each number means depends on `kind`.

    | kind | sigma_max | sigma_min | stable_rank |
    |---|---|---|---|
    | exact | the largest singular value | the smallest of min(inputs, outputs) | ‖A‖_F² / ‖A‖₂² |
    | upper | certified: never below the true one | never above the true one (0 if unknown) | never above the true one |
    | estimate | never above the true one | the smallest seen | approximate |

    "Exact" means that no singular value is off by more than `rounding`. A number without meaning (the stable rank of a
    convolution on images of unknown size) is NaN.
    """

    sigma_min: float
    sigma_max: float
    stable_rank: float
    kind: Kind
    method: str
    rounding: float = 0.0

    @property
    def upper_bound(self) -> float:
        """A number the norm provably does not exceed, rounding included; an estimate has none and raises."""
        if self.kind == "estimate":
            raise ParameterError(
                f"An estimate from below ({self.method}, {self.sigma_max:.6g}) bounds nothing. Ask for kind='upper', "
                "or let the layer state its geometry by `spectral_geometry()`."
            )
        return math.nextafter(self.sigma_max + self.rounding, math.inf) if self.sigma_max + self.rounding else 0.0


def spectrum(
    layer: Map,
    input_shape: Sequence[int] | None = None,
    *,
    kind: Kind | None = None,
    linear: bool = False,
    rtol: float = 0.01,
    budget: float = BUDGET,
) -> Spectrum:
    """Smallest and largest singular value and stable rank of a layer, by the cheapest sound method.

    Exact where affordable: by Fourier transform if the layer is a circular convolution, else by the SVD of its
    operator. Otherwise a certified upper bound if the geometry is known (`geometry_of`). A layer known only by calling
    it is measured by impulse responses if it is linear (a subclass of a linear torch layer, or `linear=True`; both are
    tested), and estimated otherwise: a non-linear module has one spectrum per point, and the largest value found is an
    estimate of its Lipschitz constant from below.

    Args:
        layer: a module, a function on batches, or a `Convolution`.
        input_shape: shape of one sample, without the batch dimension. Not needed for dense layers, or for a bound that
            holds at every size.
        kind: what to compute; by default exact if it costs less than the budget, else upper, else estimate.
        linear: whether the function is linear or affine (checked on random inputs, and rejected if it is not).
        rtol: desired sharpness of an upper bound.
        budget: floating point operations to spend.

    >>> from orthogonium.spectral import spectrum
    >>> conv = torch.nn.Conv2d(8, 8, 3, padding=1)
    >>> spectrum(conv, (8, 6, 6)).kind, spectrum(conv, (8, 512, 512)).kind, spectrum(torch.sin, (2,)).kind
    ('exact', 'upper', 'estimate')
    """
    if kind not in (None, "exact", "upper", "estimate"):
        raise ParameterError(f'kind must be "exact", "upper" or "estimate", got {kind!r}.')
    conv = geometry_of(layer) if isinstance(layer, (torch.nn.Module, Convolution)) else None
    if conv is not None and kind != "estimate":
        return _of_geometry(layer, conv, input_shape, kind, rtol, budget)
    if kind == "upper":
        raise ParameterError(
            f"No certified bound is known for {getattr(layer, '__name__', type(layer).__name__)}: its geometry is "
            "unknown. Let it state `spectral_geometry()`, or ask for an exact spectrum or an estimate."
        )
    if input_shape is None:
        if conv is None or conv.stride:
            raise ParameterError("A layer that has to be called needs its input_shape, e.g. (3, 32, 32).")
        input_shape = (conv.in_channels,)
    if conv is None and not _is_linear(layer, input_shape, linear, kind):
        return _steepest(layer, input_shape)
    return _measured(layer, input_shape, kind, budget)


def _of_geometry(
    layer: Map, conv: Convolution, input_shape: Sequence[int] | None, kind: Kind | None, rtol: float, budget: float
) -> Spectrum:
    conv = conv.with_weight(conv.weight.detach())
    unit = _unit(conv.weight)
    if unit != 1:
        found = _of_geometry(layer, conv.with_weight(double(conv.weight) / unit), input_shape, kind, rtol, budget)
        return _scaled(found, unit)
    size, copies = _split_shape(conv, input_shape)
    if size is None:
        if kind == "exact":
            raise ParameterError("An exact spectrum depends on the size of the input: give input_shape.")
    else:
        if states_geometry(layer) and _work(conv, size) <= budget / 100:
            definition.check_geometry(layer, (conv.in_channels, *size))  # type: ignore[arg-type]
        fourier, dense = _costs(conv, size)
        if min(fourier, dense) <= budget or kind == "exact":
            if kind != "upper":
                return _exact(conv, size, copies, fourier <= dense)
    bounds = enclosure(conv, size, rtol=rtol, budget=budget)
    upper, rank = float(bounds.upper.amax()), math.nan
    if size is not None:
        total, moduli, error = _frobenius(conv, size)
        rank = copies * max(total - error * moduli, 0.0) * (1 - gamma(16)) / upper**2 if upper else 0.0
    return Spectrum(float(bounds.lower.amin()), upper, rank, "upper", bounds.method)


def _unit(weight: Tensor) -> float:
    """1, or the power of two at the largest entry where squares of entries would leave the range of float64."""
    largest = float(weight.abs().amax()) if weight.numel() else 0.0
    exponent = math.frexp(largest)[1] if math.isfinite(largest) else 0
    return 2.0 ** max(exponent, -1074) if abs(exponent) > 256 else 1.0


def _scaled(found: Spectrum, unit: float) -> Spectrum:
    """The spectrum of `unit` times the operator; the smallest float64 numbers are only exact to one step."""
    step = 5e-324
    upper, least = found.sigma_max * unit, found.sigma_min * unit
    if found.kind == "upper":
        upper, least = upper + step, max(least - step, 0.0)
    return replace(found, sigma_min=least, sigma_max=upper, rounding=found.rounding * unit + step)


def _frobenius(conv: Convolution, size: tuple[int, ...]) -> tuple[float, float, float]:
    """Squared Frobenius norms of the operator and of the operator in moduli, and the error relative to the latter."""
    total = float(definition.frobenius(conv, size).sum())
    moduli = float(definition.frobenius(conv.with_weight(conv.weight.abs()), size).sum())
    return total, moduli, gamma(conv.weight.numel() + sum(conv.kernel_size) + 64)


def _split_shape(conv: Convolution, input_shape: Sequence[int] | None) -> tuple[tuple[int, ...] | None, int]:
    """(spatial size, independent copies): a dense layer acts on the last axis, a convolution on (channels, *size)."""
    if input_shape is None:
        return (None, 1) if conv.stride else ((), 1)
    shape = tuple(input_shape)
    channels, size, copies = (shape[0], shape[1:], 1) if conv.stride else (shape[-1], (), math.prod(shape[:-1]))
    if channels != conv.in_channels:
        raise ShapeError(f"The layer reads {conv.in_channels} channels, input_shape {shape} has {channels}.")
    return definition.check_size(conv, size), copies


def _work(conv: Convolution, size: tuple[int, ...]) -> float:
    return 2.0 * conv.weight.numel() * math.prod(max(n) for n in zip(*definition.sides(conv, size), strict=True))


def _costs(conv: Convolution, size: tuple[int, ...]) -> tuple[float, float]:
    """Floating point operations of the exact spectrum by Fourier transform and by the operator."""
    image, count = (math.prod(side) for side in definition.sides(conv, size))
    rows, columns = conv.weight.shape[0] * count, conv.weight.shape[1] * conv.groups * image
    dense = _SVD_FLOPS * float(rows) * columns * min(rows, columns)
    reduction = circular_reduction(conv, size)
    frequencies = circle_frequencies(conv, reduction) if reduction else None
    if reduction is None or frequencies is None:
        return math.inf, dense
    co, ci = conv.weight.shape[0] // conv.groups, conv.weight.shape[1] * math.prod(reduction.stride)
    return (4.0 if size else 1.0) * _SVD_FLOPS * conv.groups * len(frequencies) * co * ci * min(co, ci), dense


def _exact(conv: Convolution, size: tuple[int, ...], copies: int, fourier: bool) -> Spectrum:
    if fourier:
        values = circular_singular_values(conv, size)
        entries = mass(phases(conv))
        hidden = gamma(2 * math.prod(conv.kernel_size) + 32) * float(torch.linalg.matrix_norm(entries).amax())
        order, method = sum(entries.shape[1:]), "Fourier" if size else "SVD"
    else:
        matrix = operator_matrix(conv, (conv.in_channels, *size))
        values = torch.linalg.svdvals(matrix)
        _, moduli, error = _frobenius(conv, size)
        hidden = error * math.sqrt(moduli)
        order, method = sum(matrix.shape), "operator"
    return _from_values(values, copies, method, hidden + _svd_error(values, order))


def _svd_error(values: Tensor, order: int) -> float:
    """LAPACK's singular values are off by a modest multiple of u‖A‖."""
    return gamma(64 * order) * float(values[0])


def _from_values(values: Tensor, copies: int, method: str, rounding: float) -> Spectrum:
    top = float(values[0])
    rank = float((values / top).square().sum()) * copies if top else 0.0
    return Spectrum(float(values[-1]), top, rank, "exact", method, rounding)


def _is_linear(layer: Map, input_shape: Sequence[int], declared: bool, kind: Kind | None) -> bool:
    """Declared linear, or by its class; tested in both cases."""
    if not declared and not isinstance(layer, LINEAR_LAYERS):
        if kind == "exact":
            raise ParameterError(
                f"An exact spectrum is one of a linear map: say linear=True if {type(layer).__name__} is one, or look "
                "at `jacobian_singular_values` at a point."
            )
        return False
    if is_affine(layer, input_shape):
        return True
    raise ParameterError(
        f"{type(layer).__name__} is not linear: f(x) − f(y) ≠ f(x − y) − f(0) on random inputs. "
        "Look at `jacobian_singular_values` or `steepest_point`."
    )


def _measured(layer: Map, input_shape: Sequence[int], kind: Kind | None, budget: float) -> Spectrum:
    """Of a linear map that can only be called."""
    a = LinearMap(layer, input_shape)
    cost = _SVD_FLOPS * float(a.inputs) * a.outputs * min(a.inputs, a.outputs)
    if kind == "exact" or (kind is None and cost <= budget):
        matrix = operator_matrix(layer, input_shape)
        values = torch.linalg.svdvals(matrix.double())
        # Each column is a difference f(e) − f(0) computed in the layer's dtype.
        size = float(torch.linalg.matrix_norm(matrix.double())) + math.sqrt(a.inputs) * float(a.origin.double().norm())
        hidden = 64 * torch.finfo(matrix.dtype).eps * size
        return _from_values(values, 1, "impulse responses", hidden + _svd_error(values, sum(matrix.shape)))
    values = lanczos(layer, input_shape)
    probes = a.forward(a.noise(_PROBES, a.inputs)).double()
    top = float(values[0])
    rank = float((probes / top).square().sum()) / _PROBES if top else 0.0
    return Spectrum(float(values[-1]), top, rank, "estimate", f"Lanczos, {len(values)} steps")


def _steepest(layer: Map, input_shape: Sequence[int]) -> Spectrum:
    """Of a function that is not known to be linear: the steepest Jacobian found from a few random points."""
    call, dtype, device = as_function(layer)
    generator = torch.Generator().manual_seed(0)
    starts = torch.randn(_STARTS, *input_shape, generator=generator).to(device, dtype)
    steepness, where = steepest_point(call, starts, generator=generator)
    top, point = float(steepness.max()), where[steepness.argmax()][None]
    least, rank = math.nan, math.nan
    with torch.no_grad():
        outputs = call(point).numel()
    if point.numel() * outputs <= 2**22:
        values = torch.linalg.svdvals(jacobian(call, point)[0].double())
        top, least = max(top, float(values[0])), float(values[-1])
        rank = float((values / top).square().sum()) if top else 0.0
    return Spectrum(least, top, rank, "estimate", f"Jacobians, ascent from {_STARTS} points")
