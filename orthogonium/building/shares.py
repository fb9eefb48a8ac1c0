"""Builds shared among the processes of a group: each builds some of the weights, and all get all of them.

Note [Shares]
When a block begins, each rank builds the weights that it owns, and all ranks gather them. When it ends, the gradients
of the weights are summed at their owners and divided by the number of ranks; owners propagate them back through the
builds, and all ranks gather the gradients of raw parameters. Gradients of all other parameters are averaged, too. So on
each rank `.grad` holds what one process would have got from the whole batch, for losses that are means over equal parts
of it, as with `DistributedDataParallel`, which has nothing left to do.

Inside `DistributedDataParallel` the result is the same: it averages what is already averaged, or, if its hooks wait for
raw parameters, these get equal gradients on all ranks.

Raw parameters may have gradients that did not come through weights, too: of a penalty, or of a pass before the block.
These are averaged like all others, before the rest is added.

Whether a parameter has a gradient at all is decided for all ranks together: a rank that has none adds zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor, nn

from orthogonium.building.builds import build
from orthogonium.errors import ParameterError
from orthogonium.layers.parametrization import Source
from orthogonium.linalg.products import full_arithmetic
from orthogonium.methods.kernel import Kernels

_LARGE = 2**18  # size from which a tensor is sent by itself
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by their size
_ODD = 6364136223846793005
_compared: WeakSet[nn.Module] = WeakSet()  # models whose parameters are the same on all ranks


def weight_shape(source: Source) -> tuple[int, ...]:
    """Shape of a weight that is not built here. The kernels of a block are one vector."""
    kernel = source[0].kernel
    if isinstance(kernel, Kernels):
        return (sum(math.prod(shape) for shape in kernel.shapes),)
    if kernel.weight_shape is None:
        raise ParameterError(
            f"build_once with a group: {type(kernel).__name__} does not say the shape of what it builds, which ranks "
            "that do not build it need to know. Give it a `weight_shape`, or leave group= out."
        )
    return kernel.weight_shape


def flops(source: Source) -> int:
    """Roughly proportional to the flops of a build: each entry of kernels and raw parameters, times a row of them."""
    kernel, raw = source[0].kernel, source[1]
    shapes = kernel.shapes if isinstance(kernel, Kernels) else (weight_shape(source),)
    return sum(math.prod(s) * s[1] for s in shapes) + sum(p.numel() * min(p.shape[-2:]) for p in raw)


def assign(costs: Sequence[int], ranks: int) -> list[int]:
    """An owner for each weight: the costliest first, each assigned to the rank with the least load."""
    owners, load = [0] * len(costs), [0] * ranks
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        owners[i] = load.index(min(load))
        load[owners[i]] += costs[i]
    return owners


def _by_kind(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Which tensors are sent as one buffer: small ones of one dtype and device; large ones alone, without a copy."""
    kinds: dict[Any, list[int]] = {}
    for i, t in enumerate(tensors):
        kinds.setdefault((t.dtype, t.device, i if t.numel() >= _LARGE else None), []).append(i)
    return list(kinds.values())


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0].flatten() if len(tensors) == 1 else torch.cat([t.flatten() for t in tensors])


def _split(buffer: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The parts of a buffer, as tensors of these shapes."""
    parts = buffer.split([t.numel() for t in like])
    return [part.view(t.shape) for part, t in zip(parts, like, strict=True)]


def _fingerprint(x: Tensor) -> Tensor:
    """A whole number that changes with nearly every change of the bits of x, whatever computes it in which order."""
    bits = x.detach().contiguous().flatten().view(_INTEGERS[min(x.element_size(), 8)]).long()
    places = torch.arange(1, len(bits) + 1, device=x.device)
    return (bits * (places * _ODD)).sum()  # modulo 2⁶⁴


class Shares:
    """The weights of a model, and which rank of a group builds which. Note [Shares]."""

    def __init__(self, model: nn.Module, weights: Sequence[Source], group: dist.ProcessGroup) -> None:
        self.group, self.weights = group, weights
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.owners = assign([flops(w) for w in weights], self.size)
        self.raw = list(dict.fromkeys(p for _, tensors in weights for p in tensors if p.requires_grad))
        # Derivatives are taken with respect to these, so that hooks of raw parameters see gradients once, at the end.
        self.twins = {id(p): p.detach().requires_grad_(p.requires_grad) for _, tensors in weights for p in tensors}
        ids = {id(p) for p in self.raw}
        self.others = {name: p for name, p in model.named_parameters() if p.requires_grad and id(p) not in ids}
        self._refuse_early_hooks()
        if model not in _compared:
            self._compare(model)
            _compared.add(model)

    def _refuse_early_hooks(self) -> None:
        for name, p in self.others.items():
            if getattr(p, "_post_accumulate_grad_hooks", None):
                raise ParameterError(
                    f"build_once with a group averages gradients when the block ends, but hooks use that of {name} as "
                    "soon as it is there (register_post_accumulate_grad_hook). Remove them, or leave group= out."
                )

    def _compare(self, model: nn.Module) -> None:
        constants = torch.tensor([constraint.lipschitz for constraint, _ in self.weights], dtype=torch.float64)
        marks = [_fingerprint(t) for t in (*model.parameters(), constants)]
        low = torch.stack([t.to(marks[0].device) for t in marks])
        high = low.clone()
        dist.all_reduce(low, dist.ReduceOp.MIN, group=self.group)
        dist.all_reduce(high, dist.ReduceOp.MAX, group=self.group)
        if not torch.equal(low, high):
            raise ParameterError(
                "build_once with a group: the parameters or constants of the model differ among ranks. Give all ranks "
                "the same ones first: by one seed, one checkpoint, or torch.distributed.broadcast."
            )

    def build(self) -> list[Tensor]:
        """All weights: own ones with their graph, those of other ranks as received."""
        mine = [i for i, owner in enumerate(self.owners) if owner == self.rank]
        twins = [(c, tuple(self.twins[id(p)] for p in raw)) for c, raw in (self.weights[i] for i in mine)]
        own = dict(zip(mine, build(twins), strict=True))
        like = [own[i].detach() if i in own else w[1][0].new_empty(weight_shape(w)) for i, w in enumerate(self.weights)]
        return [own.get(i, t) for i, t in enumerate(self._gather(like, self.owners))]

    def backward(self, built: Sequence[Tensor], grads: Sequence[Tensor | None]) -> None:
        """From the gradients of the weights on all ranks to those of all parameters."""
        parameters = [*self.raw, *self.others.values()]
        used = self._anywhere([g is not None for g in (*grads, *(p.grad for p in parameters))])
        places = [i for i in range(len(grads)) if used[i]]
        has_grad = dict(zip(parameters, used[len(grads) :], strict=True))
        self._average([p for p in self.raw if has_grad[p]])
        mean = self._average_at_owners([built[i] for i in places], [grads[i] for i in places], places)
        own = [i for i in places if self.owners[i] == self.rank]
        # Raw parameters of the weights that each rank owns; tied ones may belong to several ranks.
        raw = {(self.owners[i], id(p)): p for i in places for p in self.weights[i][1] if p.requires_grad}
        mine = [p for (owner, _), p in raw.items() if owner == self.rank]
        found: Sequence[Tensor] = ()
        if mine:
            outputs, inputs, given = [built[i] for i in own], [self.twins[id(p)] for p in mine], [mean[i] for i in own]
            with full_arithmetic(mine[0]):
                found = torch.autograd.grad(outputs, inputs, given, allow_unused=True, materialize_grads=True)
        own_grads = {id(p): g for p, g in zip(mine, found, strict=True)}
        gradients = [own_grads[key] if owner == self.rank else torch.empty_like(p) for (owner, key), p in raw.items()]
        if raw:
            torch.autograd.backward(list(raw.values()), self._gather(gradients, [owner for owner, _ in raw]))
        self._average([p for p in self.others.values() if has_grad[p]])

    def _anywhere(self, flags: Sequence[bool]) -> list[bool]:
        """Each flag, or'ed over all ranks."""
        device = next((p.device for _, raw in self.weights for p in raw), None)
        total = torch.tensor(flags, dtype=torch.int32, device=device)
        dist.all_reduce(total, dist.ReduceOp.MAX, group=self.group)
        return [bool(flag) for flag in total.tolist()]

    def _average_at_owners(
        self, like: Sequence[Tensor], grads: Sequence[Tensor | None], places: Sequence[int]
    ) -> dict[int, Tensor]:
        """The mean gradient of each weight that this rank owns, by its place."""
        full = [torch.zeros_like(t) if g is None else g for t, g in zip(like, grads, strict=True)]
        sums = self._sum(full)
        return {
            place: total / self.size
            for place, total in zip(places, sums, strict=True)
            if self.owners[place] == self.rank
        }

    def _sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Each tensor, summed over all ranks; may write to it."""
        found, buffers = list(tensors), []
        for kind in _by_kind(tensors):
            own = [tensors[i] for i in kind]
            buffer = _flat(own)
            buffers.append((kind, own, buffer, dist.all_reduce(buffer, group=self.group, async_op=True)))
        for kind, own, buffer, work in buffers:
            work.wait()
            for i, part in zip(kind, _split(buffer, own), strict=True):
                found[i] = part
        return found

    def _average(self, parameters: Sequence[Tensor]) -> None:
        for p in parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        grads: list[Any] = [p.grad for p in parameters]
        for grad, total in zip(grads, self._sum(grads), strict=True):
            grad.copy_(total / self.size)

    def _gather(self, tensors: Sequence[Tensor], owners: Sequence[int]) -> list[Tensor]:
        """Each tensor as its owner has it; other ranks pass one of the same shape, dtype and device."""
        found, works = list(tensors), []
        for kind in _by_kind(tensors):
            for rank in range(self.size):
                places = [i for i in kind if owners[i] == rank]
                if not places:
                    continue
                share = [tensors[i] for i in places]
                buffer = _flat(share) if rank == self.rank else share[0].new_empty(sum(t.numel() for t in share))
                source = dist.get_global_rank(self.group, rank)
                works.append(dist.broadcast(buffer, source, group=self.group, async_op=True))
                for i, part in zip(places, _split(buffer, share), strict=True):
                    found[i] = part
        for work in works:
            work.wait()
        return found
