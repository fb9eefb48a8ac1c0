"""Attention with a proved constant, and token mixing by orthogonal matrices.

Note [Attention]
Products of tokens, as in dot-product attention, have no Lipschitz constant: their derivative grows with the tokens.
Here tokens x₁, …, xₙ move downhill on the energy `E(X) = (1/n) Σ_{i<j} ψ(xᵢ − xⱼ)`, `ψ(z) = −exp(−β‖z‖²/2)/β`:

    yᵢ = xᵢ + (η/n) Σⱼ wᵢⱼ (xⱼ − xᵢ),   wᵢⱼ = exp(−β‖xᵢ − xⱼ‖²/2)

With t = β‖z‖² the derivative of ψ is `∇²ψ = e^(−t/2)(I − βzzᵀ)`, with eigenvalues `e^(−t/2)` and `(1 − t)e^(−t/2)`: at
least `−2e^(−3/2)` (at t = 3), at most 1. So for every δ

    δᵀ∇²E δ = (1/n) Σ_{i<j} (δᵢ − δⱼ)ᵀ ∇²ψ(xᵢ − xⱼ) (δᵢ − δⱼ)

lies between `−2e^(−3/2)` and 1 times `(1/n) Σ_{i<j} ‖δᵢ − δⱼ‖² = ‖δ‖² − ‖Σδᵢ‖²/n ≤ ‖δ‖²`. The derivative of y is
`I − η∇²E`, symmetric with eigenvalues in `[1 − η, 1 + 2e^(−3/2)η]`: its norm is at most `max(1 + 2e^(−3/2)η, η − 1)`,
everywhere, for any number of tokens and channels and any β. For η ≤ 3.6 it is attained when half of the tokens are at a
distance of √(3/β) from the other half.
Heads act on disjoint parts of the channels: the constant of all is that of one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from orthogonium.errors import ParameterError, ShapeError
from orthogonium.layers.guarantee import Guarantee, check_constant
from orthogonium.layers.linear import OrthoLinear
from orthogonium.layers.whole import as_a_whole
from orthogonium.methods.kernel import Device

_STEEPEST = 2 * math.exp(-1.5)


def attention_constant(step: float) -> float:
    """The constant of `distance_attention`, for any number of tokens: `1 + 2e^(−3/2)·step`; `step − 1` above 3.6."""
    return max(1 + _STEEPEST * step, step - 1)


@as_a_whole
def distance_attention(
    x: Tensor,  # (batch, tokens, channels)
    sharpness: Tensor,  # (heads,), β of each, at least 0
    step: float = 1.0,
) -> Tensor:  # the same shape
    """Move each token towards those near it. The Lipschitz constant is `attention_constant(step)`."""
    if sharpness.dim() != 1:
        raise ShapeError(
            f"distance_attention takes one sharpness for each head, (heads,): got shape {tuple(sharpness.shape)}, "
            "which would make copies of the tokens."
        )
    heads = x.unflatten(-1, (len(sharpness), -1)).transpose(1, 2)  # (batch, heads, tokens, c)
    # By differences: computed from products of tokens, small distances far from 0 would be rounded away.
    distance = (heads[:, :, :, None] - heads[:, :, None]).square().sum(-1)
    weight = torch.exp(distance * (sharpness.view(-1, 1, 1) / -2)) / x.shape[1]
    moved = heads + step * (weight @ heads - weight.sum(-1, keepdim=True) * heads)
    return moved.transpose(1, 2).flatten(2)


class DistanceAttention(nn.Module):
    """Self-attention by distance, for tokens `(batch, tokens, channels)`, in place of `nn.MultiheadAttention`.

    Between two orthogonal matrices, each head moves its part of every token towards those near it,
    `xᵢ + (step/n) Σⱼ exp(−β‖xᵢ − xⱼ‖²/2) (xⱼ − xᵢ)`, with a trained sharpness β, divided by the constant of that map,
    `1 + 2e^(−3/2)·step` (the proof is at the top of `layers/attention.py`). The layer is equivariant to permutations
    of the tokens. Each sample takes `tokens²·embed_dim` numbers of memory.

    Guarantee: 1-Lipschitz on all inputs, for every number of tokens. For steps up to 3.6 the bound is attained by some
    inputs for every even number of tokens.

    Args:
        embed_dim: number of channels.
        num_heads: number of parts of the channels that attend independently; divides `embed_dim`.
        step: η of the proof, positive: how far tokens move.
        bias: whether the last matrix has a bias.
        device: where the parameters live.
        dtype: data type of the parameters.
        lipschitz: Lipschitz constant of the layer, any positive number; multiplies its output.

    >>> layer = DistanceAttention(8, num_heads=2)
    >>> x, y = torch.randn(2, 3, 5, 8)
    >>> bool((layer(x) - layer(y)).norm() <= (x - y).norm())
    True
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int = 1,
        *,
        step: float = 1.0,
        bias: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        lipschitz: float = 1.0,
    ) -> None:
        super().__init__()
        if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads:
            raise ParameterError(
                f"DistanceAttention: num_heads must divide embed_dim, got {num_heads} heads of {embed_dim} channels."
            )
        self.embed_dim, self.num_heads = embed_dim, num_heads
        if not 0 < step < math.inf:
            raise ParameterError(f"DistanceAttention: step must be a positive finite number, got {step!r}.")
        self.step, self.lipschitz = float(step), check_constant(lipschitz, "DistanceAttention")
        self.inward = OrthoLinear(embed_dim, embed_dim, bias=False, device=device, dtype=dtype)
        self.outward = OrthoLinear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        self.log_sharpness = nn.Parameter(torch.empty(num_heads, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """β = heads/channels: tokens with independent entries of size 1 get weights of about e^-1."""
        nn.init.constant_(self.log_sharpness, math.log(self.num_heads / self.embed_dim))

    @property
    def guarantee(self) -> Guarantee:
        """`lipschitz`-Lipschitz on all inputs."""
        return Guarantee("lipschitz", self.lipschitz)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        _check_tokens(x, self.embed_dim, "DistanceAttention")
        y = distance_attention(self.inward(x), self.log_sharpness.exp(), self.step)
        return self.outward(y * (self.lipschitz / attention_constant(self.step)))

    def extra_repr(self) -> str:
        """Sizes, and whatever is not the default."""
        text = f"{self.embed_dim}, num_heads={self.num_heads}"
        text += "" if self.step == 1 else f", step={self.step:g}"
        return text + ("" if self.lipschitz == 1 else f", lipschitz={self.lipschitz:g}")


class TokenMixing(nn.Module):
    """An orthogonal matrix along the tokens of `(batch, tokens, channels)`, the same for all channels.

    Guarantee: all singular values 1; with fewer outputs than inputs, 1-Lipschitz.

    Args:
        tokens: number of tokens.
        out_tokens: number of output tokens; `tokens` if None.
        bias: whether each output token has a bias.
        device: where the parameters live.
        dtype: data type of the parameters.
        lipschitz: Lipschitz constant of the layer, any positive number.

    >>> layer = TokenMixing(5, bias=False)
    >>> x = torch.randn(3, 5, 8)
    >>> torch.allclose(layer(x).norm(), x.norm())
    True
    """

    def __init__(
        self,
        tokens: int,
        out_tokens: int | None = None,
        *,
        bias: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        lipschitz: float = 1.0,
    ) -> None:
        super().__init__()
        outputs = tokens if out_tokens is None else out_tokens
        self.matrix = OrthoLinear(tokens, outputs, bias=bias, device=device, dtype=dtype, lipschitz=lipschitz)

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the matrix."""
        return self.matrix.guarantee

    def forward(self, x: Tensor) -> Tensor:
        """Combine tokens, not channels."""
        _check_tokens(x.mT, self.matrix.in_features, "TokenMixing", "tokens")
        return self.matrix(x.mT).mT


def _check_tokens(x: Tensor, size: int, name: str, what: str = "channels") -> None:
    if x.dim() != 3 or x.shape[-1] != size:
        shape = tuple(x.shape) if what == "channels" else tuple(x.mT.shape)
        raise ShapeError(f"{name} takes (batch, tokens, channels) with {size} {what}, got {shape}.")
