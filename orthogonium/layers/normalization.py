"""Normalization that keeps a Lipschitz bound: centering by batch or by sample, and division by one common scale.

BatchNorm divides each channel by its own running deviation, which may be tiny, so no bound survives. Subtracting means
costs nothing: in eval it is a translation.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from orthogonium.errors import ParameterError, ShapeError
from orthogonium.layers.batch_statistics import BatchStatistics, check_channels, per_channel, precise
from orthogonium.layers.guarantee import Guarantee


class BatchCentering(BatchStatistics):
    """Subtracts the mean of each channel and adds a trainable bias: `x − μ_c + b_c`, for inputs (n, c, …) of any rank.

    In eval `μ` is the running mean, a buffer. In training it depends on `subtract`:

    - "batch": the mean of the batch, including space, and gradients flow through it;
    - "running": the running mean, including this batch, as a constant: training and eval compute the same, a single
      value is enough, and the derivative is the identity (0.0.4).

    In distributed training the batch is the global one (`sync`).

    Guarantee: in eval and for "running" a translation, hence an isometry; for "batch", in training, an orthogonal
    projection of the batch (plus the bias), hence 1-Lipschitz.

    Args:
        num_features: number of channels `c`.
        momentum: weight of a new batch in the running mean; None averages all batches equally.
        bias: whether to add `b`, initially 0.
        sync: whether training uses the statistics of all processes, if `torch.distributed` is initialised.
        process_group: the processes to synchronise; None means all.
        device: where parameters and buffers live.
        dtype: data type of parameters and buffers.
        subtract: which mean training subtracts, "batch" or "running".

    >>> from orthogonium.layers.normalization import BatchCentering
    >>> center = BatchCentering(3, momentum=None)
    >>> y = center(torch.randn(16, 3, 8, 8) + 5)
    >>> bool(y.mean(dim=(0, 2, 3)).abs().max() < 1e-5)
    True
    >>> x = torch.randn(1, 3)
    >>> torch.allclose(center.eval()(x), x - center.running_mean)
    True
    """

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
        subtract: Literal["batch", "running"] = "batch",
    ) -> None:
        if subtract not in ("batch", "running"):
            raise ParameterError(
                f"BatchCentering subtracts the mean of the 'batch' or the 'running' one: got {subtract!r}."
            )
        super().__init__(
            num_features, momentum, bias=bias, sync=sync, process_group=process_group, device=device, dtype=dtype
        )
        self.subtract = subtract
        self.least_values = 2 if subtract == "batch" else 1  # one value is its own mean: nothing would be left

    @property
    def guarantee(self) -> Guarantee:
        """An isometry, except for the projection of a batch in training."""
        if self.subtract == "running":
            return Guarantee("orthogonal", note="always (a translation)")
        note = "in eval (a translation); in training 1-Lipschitz (an orthogonal projection)"
        return Guarantee("orthogonal", note=note)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        check_channels(x, self.num_features, type(self).__name__)
        mean: Tensor | None = None
        if self.training:
            mean, _ = self.batch_mean(x if self.subtract == "batch" else x.detach())
            self.num_batches_tracked.add_(1)
            self.track(self.running_mean, mean)
        if mean is None or self.subtract == "running":
            # A copy, so the next step does not write to it.
            mean = self.running_mean.to(precise(x.dtype), copy=self.training)
        shift = -mean if self.bias is None else self.bias - mean
        return (x + per_channel(shift, x)).to(x.dtype)


class BatchLipNorm(BatchStatistics):
    """Subtracts the mean of each channel and divides all of them by **one** scale: `(x − μ_c)/s + b_c`.

    `s² = max_c Var_c`, where `Var_c` is the unbiased variance of channel `c`, taken as 1 if below `eps`. In training,
    statistics are those of the (global) batch and gradients flow through them; in eval, the running ones are used.

    Guarantee: none of its own. In eval it multiplies distances by exactly `lipschitz_constant = 1/s`, which may exceed
    1 and must be multiplied into the bound of the network.

    Args:
        num_features: number of channels `c`.
        momentum: weight of a new batch in the running statistics; None averages all batches equally.
        eps: channels with a smaller variance count as having variance 1.
        bias: whether to add `b`, initially 0.
        sync: whether training uses the statistics of all processes, if `torch.distributed` is initialised.
        process_group: the processes to synchronise; None means all.
        device: where parameters and buffers live.
        dtype: data type of parameters and buffers.

    >>> from orthogonium.layers.normalization import BatchLipNorm
    >>> norm = BatchLipNorm(3, momentum=None)
    >>> y = norm(4 * torch.randn(256, 3, 8, 8))
    >>> f"{norm.eval().lipschitz_constant:.2f}"
    '0.25'
    """

    running_var: Tensor

    def __init__(
        self,
        num_features: int,
        momentum: float | None = 0.1,
        eps: float = 1e-5,
        *,
        bias: bool = True,
        sync: bool = True,
        process_group: dist.ProcessGroup | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if not eps > 0:
            raise ParameterError(f"BatchLipNorm needs a positive eps: got {eps}.")
        super().__init__(
            num_features, momentum, bias=bias, sync=sync, process_group=process_group, device=device, dtype=dtype
        )
        self.eps = eps
        self.register_buffer("running_var", torch.ones(num_features, device=device, dtype=dtype))

    def reset_running_stats(self) -> None:
        """Forget every batch seen."""
        super().reset_running_stats()
        self.running_var.fill_(1)

    def _scale(self, var: Tensor) -> Tensor:
        """`1/√max_c Var_c`."""
        return torch.where(var < self.eps, 1.0, var).amax(dim=0).rsqrt()

    @property
    def lipschitz_constant(self) -> float:
        """Factor by which distances are multiplied in eval."""
        return self._scale(self.running_var.double()).item()

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        check_channels(x, self.num_features, type(self).__name__)
        if self.training:
            mean, count = self.batch_mean(x)
            squares = (x - per_channel(mean, x)).square()
            var = self.total(self.channel_sum(squares)) / (count - 1)
            self.num_batches_tracked.add_(1)
            self.track(self.running_mean, mean)
            self.track(self.running_var, var)
        else:
            mean, var = self.running_mean.to(precise(x.dtype)), self.running_var.to(precise(x.dtype))
        y = (x - per_channel(mean, x)) * self._scale(var)
        return (y if self.bias is None else y + per_channel(self.bias, x)).to(x.dtype)


class LayerCentering(nn.Module):
    """Subtracts from each sample its own mean over space, channel by channel, and adds a bias: `x − mean(x) + b_c`.

    There are no running statistics: training and eval compute the same. Inputs (n, c) have no spatial axes; for them
    the mean over the channels is subtracted.

    Guarantee: an orthogonal projection plus a translation, hence 1-Lipschitz. Not an isometry: the mean is lost.

    Args:
        num_features: number of channels `c`.
        dim: the axes to average over instead, e.g. (1, 2, 3) for the mean LayerNorm uses on images. Not the batch axis.
        axis: the axis that holds the channels. For tokens (batch, time, channels) it is -1: then the mean over time is
            subtracted or, with `dim=-1` as well, that of each token over its channels, as in `nn.LayerNorm`.
        bias: whether to add `b`, initially 0.
        device: where the bias lives.
        dtype: data type of the bias.

    >>> from orthogonium.layers.normalization import LayerCentering
    >>> y = LayerCentering(3)(torch.randn(2, 3, 8, 8) + 5)
    >>> bool(y.mean(dim=(2, 3)).abs().max() < 1e-5)
    True
    >>> tokens = LayerCentering(6, dim=-1, axis=-1)(torch.randn(2, 5, 6) + 5)
    >>> bool(tokens.mean(dim=-1).abs().max() < 1e-5)
    True
    """

    guarantee = Guarantee("lipschitz", note="always (an orthogonal projection plus a translation)")
    bias: nn.Parameter | None

    def __init__(
        self,
        num_features: int,
        dim: int | tuple[int, ...] | None = None,
        *,
        axis: int = 1,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if axis == 0:
            raise ParameterError(
                "LayerCentering: axis 0 holds the samples. Channels are on another: axis=1, or axis=-1."
            )
        if num_features < 1:
            raise ParameterError(f"LayerCentering needs at least one channel: got num_features={num_features}.")
        axes = (dim,) if isinstance(dim, int) else dim
        if axes is not None and (not axes or 0 in axes):
            raise ParameterError(f"LayerCentering averages within a sample: dim={dim} must name axes other than 0.")
        self.num_features = num_features
        self.dim = axes
        self.axis = axis
        self.register_parameter(
            "bias", nn.Parameter(torch.zeros(num_features, device=device, dtype=dtype)) if bias else None
        )

    def reset_parameters(self) -> None:
        """Zero the bias."""
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        channels = self._channel_axis(x)
        axes = self.dim or tuple(a for a in range(1, x.dim()) if a != channels) or (channels,)
        if any(not -x.dim() < a < x.dim() for a in axes):
            raise ShapeError(f"LayerCentering averages over axes {axes}; an input of shape {tuple(x.shape)} lacks one.")
        y = x - x.mean(dim=axes, keepdim=True, dtype=precise(x.dtype))
        if self.bias is not None:
            y = y + self.bias.reshape(-1, *[1] * (x.dim() - 1 - channels))
        return y.to(x.dtype)

    def _channel_axis(self, x: Tensor) -> int:
        """The axis of the channels, counted from the first."""
        inside = x.dim() >= 2 and -x.dim() < self.axis < x.dim()
        if not inside or x.shape[self.axis] != self.num_features:
            raise ShapeError(
                f"LayerCentering was built for {self.num_features} channels on axis {self.axis} of two or more: got "
                f"shape {tuple(x.shape)}. Name the axis that holds them (axis=-1 for tokens: batch, time, channels), "
                "or build it with num_features equal to their number."
            )
        return self.axis % x.dim()

    def extra_repr(self) -> str:
        """The channels, and whatever is not the default."""
        parts = [f"{self.num_features}"]
        parts += [] if self.dim is None else [f"dim={self.dim}"]
        parts += [] if self.axis == 1 else [f"axis={self.axis}"]
        parts += [] if self.bias is not None else ["bias=False"]
        return ", ".join(parts)


BatchCentering2D = BatchCentering
LayerCentering2D = LayerCentering
