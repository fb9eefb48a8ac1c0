"""The weights of a whole network: what they are, which are built in one batch, and how unused ones are treated.

Note [What pays]
Torch operators cost 5 to 10 µs each on a CPU, so small kernels gain most from a batch: 32 of 16 channels are built
ten times as fast together as one by one; those of 256 channels take as long either way, and are not worth the copy. On
an accelerator each kernel launch costs about as much, while the arithmetic is much faster: there all equal weights are
built together.

Note [Parts of weights]
Where layers convolve along one axis after the other (Note [Along axes] of `methods/aoc.py`), it is these weights that
are built beforehand: from 128 channels on, where images of 4×4 pixels are large enough for it. Whatever needs the
weight itself (autocast, smaller images, `layer.weight`) gets it as their product.

Note [Unused weights]
A weight that no loss depends on gives its raw parameters no gradient: None, which optimizers skip, rather than zeros,
with which momentum and decay would still move them. In a batch torch would fill in zeros. So the functions at both ends
of a batch share a list of the weights that got a gradient. A gradient with a graph (`create_graph=True`) depends on raw
parameters beside the weight: its derivatives may pass one end of the batch only, so from then on that weight counts as
used.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_, or_
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from orthogonium.layers.conv.execution import REPLACEABLE
from orthogonium.layers.eval_cache import same_values
from orthogonium.layers.parametrization import Constraint, Source, raw_parameters
from orthogonium.linalg.evaluation import replaces, waits
from orthogonium.methods.aoc import OrthogonalKernel
from orthogonium.methods.batches import are_alike, kind
from orthogonium.methods.kernel import Kernel

_MOST_RAW = 2**17  # of the raw parameters of a kernel that is worth a batch on a CPU: Note [What pays]
_FEWEST_IN_PARTS = 128  # channels of a kernel that is built in parts: Note [Parts of weights]


def sources(model: nn.Module) -> list[Source]:
    """The constraint and the raw parameters of each weight of a model that its raw parameters alone determine."""
    found: dict[Constraint, tuple[Tensor, ...]] = {}
    seen, left = {model}, [model]
    while left:  # like `model.modules()`, which is slow, but without what is inside constraints
        module = left.pop()
        constraint: Any = module._modules.get("0") if isinstance(module, parametrize.ParametrizationList) else None
        if isinstance(constraint, Constraint):
            raw = raw_parameters(module)
            if raw is not None and constraint.is_of_raw_alone:
                found.setdefault(constraint, raw)
            continue
        new = [child for child in module._modules.values() if child is not None and child not in seen]
        seen.update(new)
        left.extend(reversed(new))
    return list(found.items())


class Supply:
    """Gives a layer what was built beforehand, a weight or its parts, while it is open (`Constraint.supply`)."""

    for_all_passes = False  # whether gradients reach raw parameters by this weight alone

    def __init__(self, source: Source, weight: Tensor, along_axes: bool) -> None:
        self.constraint, self.raw = source
        self.weight, self.along_axes = weight, along_axes
        self.lipschitz = self.constraint.lipschitz
        self.is_open = True
        self._seen = *self.raw, weight
        # Writing to `.data` leaves no other trace. On accelerators, comparing would make the host wait.
        self._values = [None if waits(p) else p.detach().clone() for p in self._seen]

    def __call__(self, raw: tuple[Tensor, ...]) -> Tensor | None:
        """The weight of these raw parameters; None if it was built from others, and the layer builds as usual."""
        raise NotImplementedError

    def is_of(self, raw: tuple[Tensor, ...]) -> bool:
        """Whether the weight was built from these very tensors."""
        return all(map(is_, raw, self.raw))

    def has_other_values(self) -> bool:
        """Whether the raw parameters or the weight have been written to, as far as a CPU can see."""
        pairs = zip(self._seen, self._values, strict=True)
        return any(q is not None and not same_values(p.detach(), q) for p, q in pairs)


def state(p: Tensor) -> tuple[Any, ...]:
    """Memory and version of a tensor, which change when it is written to, and whether it has a gradient."""
    return p.data_ptr(), 0 if p.is_inference() else p._version, p.requires_grad


def unsupplied(model: nn.Module) -> list[Source]:
    """The sources of a model for which nothing has been built beforehand."""
    return [(c, raw) for c, raw in sources(model) if not (isinstance(c.supply, Supply) and c.supply.is_open)]


def batches(weights: Sequence[Source]) -> list[list[int]]:
    """Which weights are built together, by their places in the list. Note [What pays]."""
    groups: list[list[int]] = []
    # Groups that others may join, and the first kernel of each, by what is compared at once.
    candidates: dict[Any, list[tuple[Kernel, list[int]]]] = {}
    for i, (constraint, raw) in enumerate(weights):
        kernel = constraint.kernel
        tensors = tuple((p.shape, p.dtype, p.device, p.requires_grad) for p in raw)
        found = candidates.setdefault((type(kernel), constraint.lipschitz, tensors), [])
        own = next((g for known, g in found if constraint.is_as_written and are_alike(known, kernel)), None)
        if own is not None:
            own.append(i)
            continue
        groups.append([i])
        pays = waits(raw[0]) or sum(p.numel() for p in raw) <= _MOST_RAW
        if pays and constraint.is_as_written and kind(kernel) is not None:
            found.append((kernel, groups[-1]))
    return groups


def go_along_axes(source: Source) -> bool:
    """Whether the layer of this weight usually convolves along axes. Note [Parts of weights]."""
    kernel, p = source[0].kernel, source[1][0]
    if type(kernel) is not OrthogonalKernel or kernel.channels < _FEWEST_IN_PARTS or not kernel.axis_shapes:
        return False
    as_written = source[0].is_as_written and kind(kernel) is not None and not replaces(kernel, REPLACEABLE)
    return as_written and p.dtype.itemsize >= 4 and not waits(p)


def build(weights: Sequence[Source], along_axes: Sequence[bool] | None = None) -> list[Tensor]:
    """The values of the weights, or their parts along axes, differentiable, in one batch for each kind."""
    along_axes = along_axes or [False] * len(weights)
    built: list[Any] = [None] * len(weights)
    for places in batches(weights):
        for i, weight in zip(places, _build_batch([weights[i] for i in places], along_axes[places[0]]), strict=True):
            built[i] = weight
    return built


def _build_batch(weights: Sequence[Source], along_axes: bool) -> Sequence[Tensor]:
    constraint, sets = weights[0][0], [raw for _, raw in weights]
    if len(sets) == 1:
        return [constraint.build(sets[0], along_axes)]
    used = _Used(len(sets))
    stacked = tuple(_Stack.apply(used, *tensors) for tensors in zip(*sets, strict=True))
    return _Unstack.apply(used, constraint.build(stacked, along_axes, stacked=True))


class _Used:
    """Which weights of a batch have a gradient. Note [Unused weights]."""

    def __init__(self, count: int) -> None:
        self.now, self.always = [False] * count, [False] * count

    def record(self, found: list[bool]) -> None:
        """What a backward pass has found."""
        if torch.is_grad_enabled():
            self.always = [*map(or_, self.always, found)]
        self.now = [*map(or_, self.always, found)]


class _Stack(torch.autograd.Function):
    """Tensors → one, whose gradient goes to those that were used. Note [Unused weights]."""

    @staticmethod
    def forward(ctx: Any, used: _Used, *tensors: Tensor) -> Tensor:
        ctx.used = used
        return torch.stack(tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return None, *(g if used else None for g, used in zip(grad.unbind(), ctx.used.now, strict=True))


class _Unstack(torch.autograd.Function):
    """The inverse of `_Stack`, which records the tensors that have a gradient."""

    @staticmethod
    def forward(ctx: Any, used: _Used, stacked: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.used, ctx.like = used, stacked[0].detach()
        return stacked.unbind()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.used.record([g is not None for g in grads])
        if all(g is None for g in grads):
            return None, None
        return None, torch.stack([torch.zeros_like(ctx.like) if g is None else g for g in grads])
