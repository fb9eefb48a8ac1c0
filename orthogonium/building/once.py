"""`build_once`: each constrained weight of a model is built a single time, however many passes run.

Note [One build]
Inside the block, layers are given their weights as leaves of the graph, on which the gradients of all passes add up.
By linearity one backward pass through the builds, at the end of the block, gives raw parameters the sum of the
gradients that they would have got from each pass: `Σ_i J_buildᵀ ∂L_i/∂W = J_buildᵀ Σ_i ∂L_i/∂W`.

Whatever would make a weight wrong is an error: writing to raw parameters or weights inside the block, and backward
passes after it. From tensors other than the raw parameters of the model (`torch.func.functional_call`, replicas on
other devices, parameters that were replaced) weights are built as usual.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from orthogonium.building.builds import Supply, build, go_along_axes, sources, state, unsupplied
from orthogonium.building.refusals import watch
from orthogonium.building.shares import Shares
from orthogonium.errors import DerivativeError, ParameterError
from orthogonium.layers.parametrization import Source
from orthogonium.linalg.evaluation import has_values
from orthogonium.linalg.products import full_arithmetic
from orthogonium.methods.batches import kind

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


_CHANGED = (
    "Inside build_once, a raw parameter of a constrained layer, its weight, its constant or its kernel was changed (an "
    "optimizer's step, load_state_dict, .to(), requires_grad_, `weight = …`, `lipschitz = …`, an option of its "
    "orthogonalizer, an edit in place or of .data): they are used as they were when the block began. End the block "
    "first."
)


class _Leaf(Supply):
    """A weight for all passes of a block, as a leaf. Note [One build]."""

    for_all_passes = True

    def __init__(self, source: Source, built: Tensor, along_axes: bool) -> None:
        trains = any(p.requires_grad for p in source[1])
        super().__init__(source, built.detach().requires_grad_(trains), along_axes)
        self.built, self.device_type = built, built.device.type
        self.kernel = self.constraint.kernel
        self.kind = kind(self.kernel)
        self.states = [state(p) for p in (*self.raw, self.weight)]
        if trains:
            self.weight.register_hook(self._check_open)

    def __call__(self, raw: tuple[Tensor, ...]) -> Tensor | None:
        if not self.is_of(raw):
            return None
        if self.constraint.lipschitz != self.lipschitz:
            raise DerivativeError(_CHANGED)
        if not torch.compiler.is_compiling():
            self.check()
            _refuse_unused()
        # Autocast would cast a leaf once for all its uses, and add up their gradients in half precision.
        casts = torch.is_autocast_enabled(self.device_type)
        return self.weight.view_as(self.weight) if casts else self.weight

    def check(self, at_end: bool = False) -> None:
        """Check that neither the weight nor what it was built from has changed."""
        changed = [state(p) for p in (*self.raw, self.weight)] != self.states
        changed |= self.constraint.lipschitz != self.lipschitz
        if at_end:
            changed |= self.has_other_values() or kind(self.kernel) != self.kind
        if changed:
            raise DerivativeError(_CHANGED)
        if len(self.weight._backward_hooks or ()) > 1:  # besides `_check_open`
            raise DerivativeError(
                "A hook on `layer.weight` inside build_once: the weight is one tensor for all passes of the block, and "
                "the hook would change the gradients of all of them. Put it on a view of its own, "
                "`layer.weight.view_as(layer.weight)`, or on the raw parameter."
            )

    def _check_open(self, grad: Tensor) -> None:
        if not self.is_open:
            raise DerivativeError(
                "backward() after the end of build_once, through a weight that was built for the block: its raw "
                "parameters have got their gradients. Run backward passes inside the block."
            )


def _refuse_unused() -> None:
    """Refuse a `DistributedDataParallel` that would not find raw parameters in the graph, and take them for unused."""
    ddp = getattr(DistributedDataParallel, "_active_ddp_module", None)
    if ddp is not None and ddp.find_unused_parameters:
        raise ParameterError(
            "build_once inside DistributedDataParallel(find_unused_parameters=True): raw parameters are not in the "
            "graph of the loss, so that their gradients would not be averaged. Leave find_unused_parameters out, or "
            "leave out DistributedDataParallel and use build_once(model, group)."
        )


def _check_raw(model: nn.Module, weights: Sequence[Source]) -> None:
    if any(getattr(module, "_is_fsdp_managed_module", False) for module in model.modules()):
        raise ParameterError("build_once is for whole parameters on each process: with FSDP, leave it out.")
    for constraint, raw in weights:
        if not has_values(*raw):
            raise ParameterError(
                f"build_once: the raw parameters of {type(constraint.kernel).__name__} are {type(raw[0]).__name__}s on "
                f"{raw[0].device}, not plain tensors with values. It is for whole parameters on each process, outside "
                "of compiled and transformed functions: with FSDP, or before parameters are materialized, leave it out."
            )


def _gradients(leaves: Sequence[_Leaf]) -> list[Tensor | None]:
    grads = [leaf.weight.grad for leaf in leaves]
    if any(g is not None and g.requires_grad for g in grads):
        raise DerivativeError(
            "backward(create_graph=True) inside build_once: gradients of raw parameters would have no graph. Leave "
            "the block out, or take higher derivatives with torch.autograd.grad with respect to inputs."
        )
    return grads


def _backward(leaves: Sequence[_Leaf], grads: Sequence[Tensor | None]) -> None:
    """From the gradients of the weights to those of the raw parameters."""
    ready = [i for i, leaf in enumerate(leaves) if grads[i] is not None and leaf.built.requires_grad]
    if ready:
        with full_arithmetic(leaves[ready[0]].built):
            torch.autograd.backward([leaves[i].built for i in ready], [grads[i] for i in ready])


@contextmanager
def build_once(model: nn.Module, group: ProcessGroup | None = None) -> Iterator[None]:
    """Build each constrained weight of the model a single time inside a `with` block, however many passes run.

    For everything that applies a weight more often than it changes: gradient accumulation over parts of a batch,
    recurrent networks, critics, siamese branches, several losses. Gradients of constrained weights add up on the
    weights; leaving the block propagates them to the `.grad` of the raw parameters, the same as without the block up to
    rounding. Weights of equal geometry are built in one batch.

    Run forward and backward passes inside the block; clip and unscale gradients and step the optimizer after it.
    Autocast, `GradScaler`, activation checkpoints, `torch.compile`, parameter hooks (called once, at the end) and
    derivatives with respect to inputs all work. An exception inside the block leaves raw parameters and their `.grad`
    unchanged.

    Args:
        model: any module; its constrained layers may be anywhere inside.
        group: processes of `torch.distributed` that train the model together (`torch.distributed.group.WORLD`: all).
            Each then builds a share of the weights, and leaving the block averages the gradients of *all* parameters of
            the model over the ranks, so `DistributedDataParallel` is not needed. Parameters must be whole and the same
            on all ranks, and all ranks must enter and leave the block.

    >>> from orthogonium import build_once
    >>> from orthogonium.layers import OrthoLinear
    >>> layer = OrthoLinear(3, 3)
    >>> with build_once(layer):
    ...     for x in torch.randn(4, 8, 3):
    ...         layer(x).square().sum().backward()
    >>> layer.parametrizations.weight.original.grad.shape
    torch.Size([3, 3])
    """
    weights = unsupplied(model)
    _check_raw(model, weights)
    if group is not None and len(weights) < len(sources(model)):
        raise ParameterError(
            "build_once(model, group) inside another block for the same weights: leave out one of them."
        )
    with torch.inference_mode(False), torch.enable_grad():
        shares = None if group is None else Shares(model, weights, group)
        along_axes = [shares is None and go_along_axes(source) for source in weights]
        built = build(weights, along_axes) if shares is None else shares.build()
    leaves = [_Leaf(*arguments) for arguments in zip(weights, built, along_axes, strict=True)]
    with watch((p, leaf.weight) for leaf in leaves for p in leaf.raw if p.requires_grad):
        try:
            for leaf in leaves:
                leaf.constraint.supply = leaf
            yield
            for leaf in leaves:
                leaf.check(at_end=True)
        finally:
            for leaf in leaves:
                leaf.constraint.supply, leaf.is_open = None, False
    grads = _gradients(leaves)
    if shares is None:
        _backward(leaves, grads)
    else:
        shares.backward([leaf.built for leaf in leaves], grads)
