"""Batch statistics: the mean of each channel over batch and space, its running average, across several processes.

Note [Statistics of several processes]
With `sync=True` (the default) and an initialised `torch.distributed` world, training statistics are those of the global
batch: sums and counts are all-reduced, so processes may hold batches of different sizes, and gradients flow through
the reduction. Output, gradients and running statistics are then the same as those of one process with the whole
batch. As with SyncBatchNorm, every process of the group must take part in each training forward pass; `sync=False`
keeps statistics local. In a single process, and in eval, nothing is communicated.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from orthogonium.errors import ParameterError, ShapeError


def precise(dtype: torch.dtype) -> torch.dtype:
    """The type in which statistics are computed: float32 or better."""
    return torch.promote_types(dtype, torch.float32)


def per_channel(values: Tensor, x: Tensor) -> Tensor:
    """One value per channel, shaped to broadcast against `x` (n, c, …)."""
    return values.reshape(-1, *[1] * (x.dim() - 2))


def check_channels(x: Tensor, num_features: int, layer: str) -> None:
    """Check that axis 1 has as many channels as the layer was built for."""
    if x.dim() < 2 or x.shape[1] != num_features:
        raise ShapeError(
            f"{layer} was built for inputs (n, {num_features}, …) of any rank ≥ 2: got shape {tuple(x.shape)}. "
            f"Put channels on axis 1, or build it with num_features equal to their number."
        )


class _SumOverProcesses(torch.autograd.Function):
    """All-reduce whose derivative is an all-reduce: each process's value enters the result of every process."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        total = local.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _SumOverProcesses.apply(gradient, ctx.group), None


class BatchStatistics(nn.Module):
    """Mean over batch and space, its running average, and a bias. Note [Statistics of several processes]."""

    running_mean: Tensor
    num_batches_tracked: Tensor
    bias: nn.Parameter | None
    least_values = 2  # of each channel, in a training batch

    def __init__(
        self,
        num_features: int,
        momentum: float | None = 0.1,
        *,
        bias: bool = True,
        sync: bool = True,
        process_group: dist.ProcessGroup | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if num_features < 1:
            raise ParameterError(f"{type(self).__name__} needs at least one channel: got num_features={num_features}.")
        if momentum is not None and not 0 <= momentum <= 1:
            raise ParameterError(
                f"{type(self).__name__} needs 0 ≤ momentum ≤ 1, the weight of a new batch in the running average: got "
                f"{momentum}. Use None for the average of all batches."
            )
        self.num_features = num_features
        self.momentum = momentum
        self.sync = sync
        self.process_group = process_group
        self.register_buffer("running_mean", torch.zeros(num_features, device=device, dtype=dtype))
        self.register_buffer("num_batches_tracked", torch.zeros((), dtype=torch.long, device=device))
        self.register_parameter(
            "bias", nn.Parameter(torch.zeros(num_features, device=device, dtype=dtype)) if bias else None
        )

    def reset_running_stats(self) -> None:
        """Forget every batch seen."""
        self.running_mean.zero_()
        self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Forget every batch seen, and the bias."""
        self.reset_running_stats()
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def _is_synced(self) -> bool:
        if not (self.sync and dist.is_available() and dist.is_initialized()):
            return False
        return dist.get_world_size(self.process_group) > 1

    def total(self, local: Tensor) -> Tensor:
        """Differentiable sum over processes."""
        if not self._is_synced():
            return local
        return _SumOverProcesses.apply(local, self.process_group)

    def batch_mean(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean of each channel over the (global) batch, and the number of values it was taken over."""
        local_count = x.numel() // self.num_features
        if local_count < self.least_values and not self._is_synced():
            raise ShapeError(
                f"{type(self).__name__} subtracts the mean of the batch in training, so it needs more than one value "
                f"per channel: got shape {tuple(x.shape)}. Use larger batches (drop_last=True), or eval mode."
            )
        local = self.channel_sum(x)
        total = self.total(torch.cat([local, local.new_full((1,), local_count)]))
        return total[:-1] / total[-1], total[-1]

    @staticmethod
    def channel_sum(x: Tensor) -> Tensor:
        """Sum of each channel over batch and space."""
        return x.sum(dim=[i for i in range(x.dim()) if i != 1], dtype=precise(x.dtype))

    def track(self, running: Tensor, value: Tensor) -> None:
        """Move a running average towards `value`. Call once per statistic, after counting the batch."""
        weight = self.momentum if self.momentum is not None else 1 / self.num_batches_tracked.to(value.dtype)
        with torch.no_grad():
            running.copy_(running + weight * (value.detach() - running))

    def extra_repr(self) -> str:
        """The channels, and whatever is not the default."""
        parts = [f"{self.num_features}"]
        parts += [] if self.momentum == 0.1 else [f"momentum={self.momentum}"]
        parts += [] if self.bias is not None else ["bias=False"]
        parts += [] if self.sync else ["sync=False"]
        return ", ".join(parts)
