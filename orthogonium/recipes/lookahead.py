"""Lookahead: slow weights that follow those of an optimizer, which returns to them every few steps.

Zhang, Lucas, Hinton, Ba (2019), "Lookahead optimizer: k steps forward, 1 step back".
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from orthogonium.errors import ParameterError

_COUNT, _SLOW = "lookahead_steps", "lookahead_slow"


def check_lookahead(every: int | None, share: float) -> None:
    """Check that there are at least two steps between returns, and that the share is in (0, 1]."""
    if every is not None and every < 2:
        raise ParameterError(
            f"lookahead={every}, the steps between two returns to the slow weights, must be at least 2."
        )
    if not 0 < share <= 1:
        raise ParameterError(f"lookahead_share={share}, how far slow weights follow, must be in (0, 1].")


def look_ahead(optimizer: torch.optim.Optimizer, every: int, share: float) -> torch.optim.Optimizer:
    """Let an optimizer look ahead: after `every` steps, `slow ← slow + share·(fast − slow)` and `fast ← slow`.

    The slow weights start as the weights before the first step. They and the step count are part of the optimizer's
    state, so its `state_dict` restores both exactly; steps skipped by a gradient scaler do not count.
    The optimizer is modified in place and returned. A copy of it does not look ahead, since torch copies no hooks: call
    this again for the copy, which goes on where the optimizer was.

    >>> from orthogonium.recipes.lookahead import look_ahead
    >>> weight = torch.nn.Parameter(torch.zeros(()))
    >>> optimizer = look_ahead(torch.optim.SGD([weight], lr=1.0), every=2, share=0.5)
    >>> for _ in range(2):
    ...     weight.grad = torch.tensor(-1.0)
    ...     _ = optimizer.step()
    >>> weight.item()  # half of two steps of 1
    1.0
    """
    check_lookahead(every, share)
    for group in optimizer.param_groups:
        group.setdefault(_COUNT, 0)
    start: dict[Tensor, Tensor] = {}  # weights before a step, where there are no slow ones yet

    def before(opt: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for group in opt.param_groups:
            start.update({p: p.detach().clone() for p in group["params"] if _SLOW not in opt.state.get(p, {})})

    @torch.no_grad()
    def after(opt: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for parameter, weight in start.items():
            if parameter.grad is not None:  # else it was not moved, and a state would keep it from being prepared later
                opt.state[parameter][_SLOW] = weight
        start.clear()
        for group in opt.param_groups:
            group[_COUNT] += 1
            if group[_COUNT] % every == 0:
                for p in group["params"]:
                    if _SLOW in opt.state.get(p, {}):
                        p.copy_(opt.state[p][_SLOW].lerp_(p, share))

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
    return optimizer
