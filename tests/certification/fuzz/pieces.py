"""Layers, hooks and functions as people write them, for the programs of the fuzzer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from orthogonium import layers as ol


class LoRA(nn.Linear):
    """A dense layer with a low-rank addition that `weight` does not show."""

    def __init__(self, inputs: int, outputs: int, rank: int = 1, scale: float = 1.5) -> None:
        super().__init__(inputs, outputs)
        self.down, self.up = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)
        self.scale = scale

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + self.scale * self.up(self.down(input))


class ScaledLinear(nn.Linear):
    """A dense layer that applies a multiple of its weight."""

    factor = 4.0

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.factor * self.weight, self.bias)


class ScaledOrtho(ol.OrthoLinear):
    """One of our layers whose forward is not the one that is guaranteed."""

    def forward(self, input: Tensor) -> Tensor:
        return 3 * super().forward(input)


class Swapping(nn.Linear):
    """Applies two weights in turn through the same layer, by exchanging its data."""

    def __init__(self, features: int) -> None:
        super().__init__(features, features)
        self.register_buffer("other", 2 * torch.randn(features, features))

    def forward(self, input: Tensor) -> Tensor:
        first = super().forward(input)
        own = self.weight.data
        self.weight.data = self.other
        second = super().forward(first)
        self.weight.data = own
        return second


class Called(nn.Module):
    """One layer called with two sets of weights by `functional_call`."""

    def __init__(self, layer: nn.Module, factor: float) -> None:
        super().__init__()
        self.layer, self.factor = layer, factor

    def forward(self, x: Tensor) -> Tensor:
        other = {name: self.factor * p for name, p in self.layer.named_parameters()}
        return torch.cat([self.layer(x), torch.func.functional_call(self.layer, other, (x,))], dim=1)


class NewWeights(nn.Module):
    """A layer that is only ever called with other weights than its own."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.other = {n: 2 * torch.randn_like(p) / len(p) ** 0.5 for n, p in layer.named_parameters()}

    def forward(self, x: Tensor) -> Tensor:
        return torch.func.functional_call(self.layer, self.other, (x,))


class Multiplied(torch.autograd.Function):
    """Triples, with a gradient that says it does nothing."""

    @staticmethod
    def forward(ctx, x):
        return 3 * x

    @staticmethod
    def backward(ctx, grad):
        return grad


class Bent(torch.autograd.Function):
    """A leaky step with an honest gradient, written for both kinds of differentiation."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return torch.where(x > 0, x, -2 * x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.where(x > 0, grad, -2 * grad)


def scripted(x: Tensor) -> Tensor:
    """A function for `torch.jit.script`."""
    for _ in range(2):
        x = torch.relu(1.5 * x) - 0.25 * x
    return x


def doubled(module, args, output):
    """Forward hook: another output."""
    return 2 * output


def doubled_in_place(module, args, output):
    """Forward hook that returns nothing and writes into the output."""
    output.mul_(2)


def shifted_input(module, args):
    """Pre-hook: another input."""
    return (3 * args[0] - 1,)


def edited_input(module, args):
    """Pre-hook that writes into the input."""
    args[0].mul_(1.5)


def bf16(layer: nn.Module) -> nn.Module:
    """A layer in half precision between casts."""

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = layer.to(torch.bfloat16)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.to(torch.bfloat16)).to(x.dtype)

    return Half()


def edited(layer: nn.Module, factor: float = 3.0) -> nn.Module:
    """A frozen layer whose weights someone has changed."""
    layer = ol.freeze(layer)
    with torch.no_grad():
        for p in layer.parameters():
            p.view(-1)[: max(1, p.numel() // 2)] *= factor
    return layer


def trained(layer: nn.Module, amount: float = 0.5) -> nn.Module:
    """A layer whose parameters have moved."""
    with torch.no_grad():
        for p in layer.parameters():
            p.add_(amount * torch.randn_like(p))
    return layer


def swapped_activation(block: nn.Module, activation: nn.Module) -> nn.Module:
    """A block with another activation than it was built for."""
    block.activation = activation
    return block


def running(norm: nn.Module) -> nn.Module:
    """A normalization with running statistics and weights that are not those of a new one."""
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.2, 3.0)
        if norm.weight is not None:
            norm.weight.normal_()
            norm.bias.normal_()
    return norm


def own_forward(layer: nn.Module, factor: float) -> nn.Module:
    """A layer whose instance has a forward of its own."""
    inner = layer.forward
    layer.forward = lambda x: factor * inner(x)
    return layer


def hooked(layer: nn.Module, *, pre=None, post=None) -> nn.Module:
    """A layer with hooks."""
    if pre is not None:
        layer.register_forward_pre_hook(pre)
    if post is not None:
        layer.register_forward_hook(post)
    return layer


def ball(x: Tensor, dim: int) -> Tensor:
    """Radial projection on the unit ball."""
    return x / x.norm(dim=dim, keepdim=True).clamp_min(1.0)
