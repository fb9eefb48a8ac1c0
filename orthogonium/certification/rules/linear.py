"""Products with constant matrices and kernels, as they reach the operators; entries added at indices; scaled channels.

Note [Circular images] A convolution does not know that its image was wrapped around; the sources do. If they repeat
along an axis with a period N, the image lies on a circle of N pixels, whoever has padded it and however, and its
windows are windows of the circle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from orthogonium.certification.rounding import product_roundoff, sum_roundoff, unit_roundoff
from orthogonium.certification.rules.call import NOT_FINITE, Call, Effect, Local, NoBound, scaled
from orthogonium.certification.rules.movement import moved
from orthogonium.certification.sources import form_of
from orthogonium.certification.tracked import Tracked
from orthogonium.certification.values import Form
from orthogonium.errors import OrthogoniumError
from orthogonium.layers.constrained import Guarantee
from orthogonium.spectral import Spectrum, convolution, spectrum

aten = torch.ops.aten
_PRODUCT = ("The product of two values (Attention is one) is not Lipschitz.", "Use OrthoLinear, or a constant matrix.")
_SMALL = 1536  # inputs and outputs of a map that is measured entry by entry


class Dense:
    """`out = Wx + b` for each sample: what a head of a classifier is known by."""

    def __init__(self, weight: Tensor, features: float) -> None:
        self.weight, self.features = weight, features


# ── spectra ──


def measured(call: Call, weight: Tensor, shape: Sequence[int] | None, **geometry: Any) -> Spectrum:
    """Spectrum of a constant kernel or matrix as it is now; once for equal ones."""
    weight = weight.detach()
    if not bool(weight.isfinite().all()):
        raise NoBound(*NOT_FINITE)
    key = (tuple(shape or ()), tuple(sorted((k, str(v)) for k, v in geometry.items())))
    for known, kept, found in call.walk.measured:
        if (
            known == key
            and kept.shape == weight.shape
            and kept.dtype == weight.dtype
            and torch.equal(kept, weight.cpu())
        ):
            return found
    try:
        found = spectrum(convolution(weight, **geometry), shape, rtol=1e-3)
        _ = found.upper_bound
    except OrthogoniumError as error:
        raise NoBound(f"Its spectral norm is unknown: {error}", "Use nn.ConvNd.") from error
    call.walk.measured.append((key, weight.cpu().clone(), found))
    return found


def _matrix_norm(call: Call, matrix: Tensor) -> tuple[float, Spectrum | None]:
    """Largest norm of one or several matrices (…, m, n)."""
    if matrix.dim() == 2:
        found = measured(call, matrix, None)
        return found.upper_bound, found
    first = matrix[0] if len(matrix) else matrix.new_zeros(matrix.shape[1:])
    if all(bool((m == first).all()) for m in matrix):
        return _matrix_norm(call, first)
    return max(measured(call, m, None).upper_bound for m in matrix), None


def _absolute(matrix: Tensor) -> float:
    """Norm of the absolute values, from above: √(largest row sum · largest column sum)."""
    a = matrix.detach().double().abs()
    return float((a.sum(-1).amax() * a.sum(-2).amax()).sqrt()) * (1 + 1e-12) if a.numel() else 0.0


def _local(call: Call, terms: int, absolute: float, *, conv: bool = False) -> Local:
    dtype, device = call.first_output.dtype, call.first_output.device
    unit, factors = unit_roundoff(dtype), product_roundoff(dtype, device, conv)
    return Local(sum_roundoff(terms + 1, unit, factors) * absolute, unit, absolute, unit=factors)


def _step(call: Call, found: Spectrum | None, kinds: tuple[type, ...]) -> dict[str, Any] | None:
    """The layer in the report: named after the module it runs in, if that is such a layer."""
    if found is None:
        return None
    module = call.walk.module
    layer = module if isinstance(module, kinds) else None
    guarantee = getattr(layer, "guarantee", None)
    guarantee = guarantee if isinstance(guarantee, Guarantee) else None
    factor = found.upper_bound
    return {
        "operation": type(layer).__name__.removeprefix("Parametrized") if layer is not None else call.name,
        "factor": factor,
        "kind": found.kind,
        "sigma_min": found.sigma_min,
        "sigma_max": found.sigma_max,
        "stable_rank": found.stable_rank,
        "slack": factor / found.sigma_max - 1 if found.sigma_max else 0.0,
        "method": found.method,
        "guarantee": None if guarantee is None else str(guarantee),
        "warnings": _broken(found, guarantee),
    }


def _broken(found: Spectrum, guarantee: Guarantee | None) -> tuple[str, ...]:
    """Warnings where a measured layer is not what it promises; an upper bound proves that only if it is far off."""
    if guarantee is None or "each output" in guarantee.condition:
        return ()
    if found.sigma_max > 1 + (1e-4 if found.kind != "upper" else 0.02):
        return (f"Its guarantee is broken: σ_max = {found.sigma_max:.6g} ({found.kind}).",)
    shrinks = found.kind == "exact" and found.sigma_min < 1 - 1e-3
    if guarantee.kind == "orthogonal" and shrinks and "divisible" not in guarantee.condition:
        return (f"It is not orthogonal: σ_min = {found.sigma_min:.6g}.",)
    return ()


# ── matrices ──


def _is_value(x: Any) -> bool:
    return isinstance(x, Tracked) and not x.constant


def _constant(x: Any) -> Tensor:
    return x.value if isinstance(x, Tracked) else x


def multiplied(call: Call) -> Effect:
    """`mm`, `bmm`, `mv`, `addmm`, `baddbmm`, `addmv` with one constant factor."""
    a, b = (call[n] for n in _FACTORS[call.func])
    if _is_value(a) and _is_value(b):
        raise NoBound(*_PRODUCT)
    alpha, beta = (abs(float(call.given.get(n, 1))) for n in ("alpha", "beta"))
    terms: list[Form] = []
    operands: list[Tracked] = []
    owner, local, origin, found = None, Local(), None, None
    if _is_value(a) or _is_value(b):
        x, c, right = (a, _constant(b), True) if _is_value(a) else (b, _constant(a), False)
        vector = c.dim() == 1 or x.dim() == 1
        matrix = (c[:, None] if right else c[None]) if c.dim() == 1 else c
        norm, found = _matrix_norm(call, matrix.mT if right else matrix)
        axis = x.dim() - 1 if right or x.dim() == 1 else x.dim() - 2
        owner = call.together(x, [axis])
        if owner is not None:
            owner = owner.squeeze(axis) if vector and not (right and c.dim() == 2) else owner
            owner = owner.expand(call.output.shape)
        terms.append(x.form().scaled(_square(alpha * norm)))
        local = _local(call, x.shape[axis], alpha * _absolute(matrix))
        if (
            right
            and x.dim() == 2
            and c.dim() == 2
            and owner is None
            and not (call.func in _ADDS and _is_value(call["self"]))
        ):
            origin = Dense(alpha * c.detach().cpu().double().T, x.form().bound)
        operands.append(x)
    added = call["self"] if call.func in _ADDS else None
    if isinstance(added, Tracked) and not added.constant and beta:
        terms.append(call.broadcast(added).scaled(_square(beta)))
        operands.append(added)
        owner = call.merged(added) if len(operands) == 1 else _joined(call, owner, added)
    step = _step(call, found, (torch.nn.Linear,)) if len(operands) == 1 and alpha == 1 else None
    return Effect(tuple(terms), owner, local, origin, step)


def _joined(call: Call, owner: Tensor | None, other: Tracked) -> Tensor | None:
    """Samples of a sum with another value."""
    also = call.merged(other)
    if owner is None and also is None:
        return None
    samples = torch.arange(call.output.shape[0]).reshape(-1, *[1] * (call.output.dim() - 1)).expand(call.output.shape)
    first, second = (samples if o is None else o for o in (owner, also))
    if bool(((first >= 0) & (second >= 0) & (first != second)).any()):
        raise NoBound("It combines the samples of the batch.", "Keep the batch in front of every tensor.")
    return torch.maximum(first, second)


def _square(c: float) -> float:
    return c * c if c in (0.0, 1.0) else c * c * (1 + 1e-15)


_FACTORS = {
    aten.mm.default: ("self", "mat2"),
    aten.bmm.default: ("self", "mat2"),
    aten.mv.default: ("self", "vec"),
    aten.dot.default: ("self", "tensor"),
    aten.addmm.default: ("mat1", "mat2"),
    aten.baddbmm.default: ("batch1", "batch2"),
    aten.addmv.default: ("mat", "vec"),
}
_ADDS = {aten.addmm.default, aten.baddbmm.default, aten.addmv.default}


# ── convolutions ──


def convolved(call: Call) -> Effect:
    """A convolution, transposed or not, with a constant kernel."""
    x, weight, bias = call["input"], call["weight"], call["bias"]
    if not _is_value(x) or _is_value(weight) or _is_value(bias):
        raise NoBound(*_PRODUCT)
    weight = _constant(weight)
    dims, groups, transposed = weight.dim() - 2, call["groups"], call["transposed"]
    owner = call.together(x, range(1, x.dim()))
    owner = None if owner is None else owner.expand(call.output.shape)
    geometry: dict[str, Any] = {n: _sizes(call[n], dims) for n in ("stride", "padding", "dilation")}
    sizes = tuple(x.shape[1:])
    form, found = None, None
    if transposed:
        geometry |= {"transposed": True, "output_padding": _sizes(call["output_padding"], dims)}
    elif x.whole is None and not any(geometry["padding"]):
        form, found = _gathered(call, x, weight, groups, geometry)
    if form is None:
        form = x.form()
        found = measured(call, weight, sizes, groups=groups, **geometry)
    assert found is not None
    own = weight.unflatten(0, (groups, -1)).flatten(2)
    terms = own.shape[1] if transposed else own.shape[2]
    absolute = _kernel_absolute(weight, groups)
    local = _local(call, terms * (math.prod(weight.shape[2:]) if transposed else 1), absolute, conv=True)
    step = _step(call, found, (torch.nn.modules.conv._ConvNd,))
    origin = Transposed(weight, groups, geometry, form, tuple(x.shape[2:])) if transposed else None
    return Effect((form.scaled(_square(found.upper_bound)),), owner, local, origin, step)


class Transposed:
    """The result of a transposed convolution: what a base is known by when its margins are folded back."""

    def __init__(
        self, weight: Tensor, groups: int, geometry: dict[str, Any], form: Form, inputs: tuple[int, ...]
    ) -> None:
        self.weight, self.groups, self.geometry, self.form, self.inputs = (
            weight.detach().clone(),
            groups,
            geometry,
            form,
            inputs,
        )


def _sizes(given: Sequence[int], dims: int) -> tuple[int, ...]:
    return tuple(given) * dims if len(given) == 1 else tuple(given)


def _kernel_absolute(weight: Tensor, groups: int) -> float:
    """Norm of the convolution with the absolute values of a kernel, from above."""
    a = weight.detach().double().abs().unflatten(0, (groups, -1)).flatten(3)
    return float((a.sum((2, 3)).amax() * a.sum((1, 3)).amax()).sqrt()) * (1 + 1e-12) if a.numel() else 0.0


def _gathered(call: Call, x: Tracked, weight: Tensor, groups: int, geometry: dict[str, Any]) -> Any:
    """Form and spectrum of a convolution of an image that was put together: wrapped around, mirrored, extended."""
    codes = x.codes
    extent = [d * (k - 1) + 1 for k, d in zip(weight.shape[2:], geometry["dilation"], strict=True)]
    circles = [_period(codes, axis) for axis in range(2, codes.dim())]
    steps = list(zip(codes.shape[2:], circles, extent, geometry["stride"], strict=True))
    # Each window once: what is left out can only lower the norm.
    if all(
        (n != size or e == 1) and n % s == 0 and (size - e) // s + 1 <= n // s for size, n, e, s in steps
    ) and circles != list(codes.shape[2:]):
        image = codes
        for axis, n in enumerate(circles, 2):
            image = image.narrow(axis, 0, n)
        if _once(image):
            circular = geometry | {"padding": "same", "padding_mode": "circular"}
            return form_of(image, call.walk.bases), measured(
                call, weight, tuple(image.shape[1:]), groups=groups, **circular
            )
    return _by_entries(call, x, weight, groups, geometry)


def _period(codes: Tensor, axis: int) -> int:
    """The smallest period of the sources along an axis; its size, if there is none."""
    size = codes.shape[axis]
    for n in range(1, size):
        if torch.equal(codes.narrow(axis, n, size - n), codes.narrow(axis, 0, size - n)):
            return n
    return size


def _once(codes: Tensor) -> bool:
    """Whether no entry of a base occurs twice."""
    stored = codes[codes > 0]
    return len(stored.unique()) == len(stored)


def _by_entries(call: Call, x: Tracked, weight: Tensor, groups: int, geometry: dict[str, Any]) -> Any:
    """The matrix from the entries of bases to the outputs of a sample, if it is small and the same for all samples."""
    codes = x.codes
    used = codes[0].unique()
    used = used[used > 0]
    outputs = call.output[0].numel()
    if (
        len(used) > _SMALL
        or outputs > _SMALL
        or len(used) * codes[0].numel() > 2**23
        or not bool(weight.isfinite().all())
    ):
        return None, None
    shift = codes - codes[:1]
    alike = all(
        bool(((codes[b] > 0) == (codes[0] > 0)).all()) and len(shift[b][codes[0] > 0].unique()) <= 1
        for b in range(len(codes))
    )
    if not alike:
        return None, None
    impulses = (codes[0][None] == used.reshape(-1, *[1] * codes[0].dim())).double()
    conv = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[weight.dim() - 2]
    kernel = weight.detach().double().cpu()
    matrix = conv(impulses, kernel, None, geometry["stride"], 0, geometry["dilation"], groups).flatten(1)
    values = torch.linalg.svdvals(matrix)
    rounding = float(values[0]) * 1e-13 * max(matrix.shape)
    least = float(values[-1])
    rank = float(values.square().sum() / values[0].square()) if float(values[0]) else 0.0
    found = Spectrum(least, float(values[0]), rank, "exact", "SVD of the operator on its sources", rounding)
    first = codes.clone()
    # Each source counts once: the copies are inside the matrix.
    flat = first.reshape(len(first), -1)
    kept = torch.zeros_like(flat)
    for b, row in enumerate(flat):
        own = row.unique()
        kept[b, : len(own)] = own
    return form_of(kept, call.walk.bases), found


# ── adjoints of copies ──


def gathered_back(call: Call) -> Effect:
    """`index_add`, `scatter_add`, accumulating `index_put`: each target is the sum of what is sent to it."""
    given = {k: (v.value if isinstance(v, Tracked) else v) for k, v in call.given.items()}
    sent = "values" if "values" in call.given else "source" if "source" in call.given else "src"
    for name in ("index", "indices"):
        values = call.given.get(name)
        if any(_is_value(v) for v in (values if isinstance(values, (list, tuple)) else [values])):
            raise NoBound("It chooses by values that depend on the input, so that it may jump.", "Choose by constants.")
    target, source = given["self"], given[sent]
    ones = {
        **given,
        "self": torch.zeros(target.shape, dtype=torch.float64),
        sent: torch.ones(source.shape, dtype=torch.float64),
    }
    if "indices" in given:
        ones["indices"] = [i if not isinstance(i, Tracked) else i.value for i in given["indices"]]
    alpha = abs(float(call.given.get("alpha", 1) or 0))
    ones.pop("alpha", None)
    arrived = call.func(**ones)
    # What is sent may be copied on the way, and several copies may meet.
    most = float(arrived.max()) * float(arrived.sum()) / source.numel() if source.numel() else 0.0
    terms, owners = [], []
    if _is_value(call["self"]):
        terms.append(call["self"].form())
        owners.append(call["self"].owners())
    if _is_value(call[sent]):
        terms.append(call[sent].form().scaled(_square(alpha) * most))
        numbers = {
            **ones,
            "self": torch.full(target.shape, -1.0, dtype=torch.float64),
            sent: call[sent].owners().double() + 1,
        }
        # With the largest sample number in place of a sum, twice: upwards and downwards.
        owners.append(_reduced_owner(call, numbers, sent))
    return Effect(tuple(terms), _one_owner(owners), call.rounded(most + 1, most))


def _reduced_owner(call: Call, ones: dict[str, Any], sent: str) -> Tensor:
    """Samples of the targets: all that is sent to one must be of one sample."""
    samples = ones[sent] - 1
    found: Tensor | None = None
    for sample in samples.unique().tolist():
        part = {**ones, "self": torch.zeros_like(ones["self"]), sent: (samples == sample).double()}
        touched = call.func(**part) > 0
        if found is None:
            found = torch.full(touched.shape, -1, dtype=torch.long)
        if sample >= 0:
            if bool((touched & (found >= 0)).any()):
                raise NoBound("It combines the samples of the batch.", "Keep the batch in front of every tensor.")
            found[touched] = int(sample)
    assert found is not None
    return found


def _one_owner(owners: Sequence[Tensor]) -> Tensor:
    high = torch.stack([*owners]).amax(0)
    if any(bool(((o >= 0) & (o != high)).any()) for o in owners):
        raise NoBound("It combines the samples of the batch.", "Keep the batch in front of every tensor.")
    return high


def folded(call: Call) -> Effect:
    """`fold`: the adjoint of `unfold`, so its norm is the root of the number of windows over a pixel."""
    x = call.operand()
    ones = torch.ones(x.shape, dtype=torch.float64)
    most = float(call.func(**{**call.given, "self": ones}).max())
    owner = call.together(x, range(1, x.dim()))
    owner = None if owner is None else owner[..., None].expand(call.output.shape)
    return scaled(call, x, math.sqrt(most) * (1 + 1e-15), owner, call.rounded(most, most))


# ── channels ──


def normalized(call: Call) -> Any:
    """BatchNorm in eval: `γ/√(Var + ε)` for each channel."""
    x = call["input"]
    if call.given.get("training"):
        raise NoBound(
            "BatchNorm in training (or InstanceNorm) divides by the deviation of its input: no bound.",
            "Call model.eval(), keep running statistics, or use BatchCentering.",
        )
    if not _is_value(x) or len(call.operands) != 1:
        raise NoBound("It depends on several values.", "Use constants for all but the input.")
    variance, gamma = _constant(call["running_var"]).detach().cpu().double(), call["weight"]
    scale = (variance + call["eps"]).rsqrt() * (1 + 1e-12)
    if gamma is not None:
        scale = scale * _constant(gamma).detach().cpu().double().abs()
    if not bool(scale.isfinite().all()):
        raise NoBound(*NOT_FINITE)
    weights = scale.square().reshape(1, -1, *[1] * (x.dim() - 2)).expand(x.shape)
    effect = Effect((x.form(weights),), call.together(x, ()), call.rounded(4.0, 4.0 * float(scale.max())))
    empty = [Effect((), torch.full(t.shape, -1)) for t in call.output[1:]]
    return [effect, *empty]


RULES: dict[Any, Any] = {
    **dict.fromkeys(_FACTORS, multiplied),
    aten.convolution.default: convolved,
    aten.index_put.default: lambda call: gathered_back(call) if call["accumulate"] else moved(call),
    **dict.fromkeys([aten.index_add.default, aten.scatter_add.default], gathered_back),
    aten.col2im.default: folded,
    aten.native_batch_norm.default: normalized,
    aten._native_batch_norm_legit_no_training.default: normalized,
}
