"""How far a network that kept its weights is still the one it was made from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from orthogonium.certification.bound import kind_of_input
from orthogonium.conversion.result import Change
from orthogonium.errors import ParameterError

_SAMPLES = 16


@torch.no_grad()
def agreement(before: nn.Module, after: nn.Module, shape: tuple[int, ...], changes: Sequence[Change]) -> float:
    """The cosine of the outputs of two networks, on normal inputs, over all of them: 1 if they agree up to a factor.

    It is measured, not derived from what is known of the changes. A softmax that was taken off the end is undone:
    logits are compared, up to a constant for each sample.
    """
    dtype, device = kind_of_input(before)
    x = torch.randn(_SAMPLES, *shape, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    outputs = before(x), after(x)
    if not all(isinstance(y, Tensor) for y in outputs):
        raise ParameterError(
            f"weights='keep' needs a network that returns one tensor, {type(before).__name__} returns "
            f"{type(outputs[0]).__name__}. Wrap it so that it returns its logits."
        )
    a, b = (y.double() for y in outputs)
    removed = [
        c.before for c in changes if c.after == "Identity()" and c.before.startswith(("Softmax(", "LogSoftmax("))
    ]
    if removed:
        a = a.log() if removed[-1].startswith("Softmax(") else a
        a, b = _centred(a), _centred(b)
    return float(torch.sum(_unit(a) * _unit(b)))


def _unit(outputs: Tensor) -> Tensor:
    """Of norm 1, also where the constants of many layers have left next to nothing; zeros stay zeros."""
    outputs = outputs / outputs.abs().max().clamp_min(torch.finfo(outputs.dtype).tiny)
    return outputs / outputs.norm().clamp_min(torch.finfo(outputs.dtype).tiny)


def _centred(logits: Tensor) -> Tensor:
    return logits - logits.mean(1, keepdim=True)
