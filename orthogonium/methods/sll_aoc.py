"""SLL between two orthogonal convolutions.

Araujo, Havens, Delattre, Allauzen, Hu (2023), "A unified algebraic perspective on Lipschitz neural networks"; fused
with orthogonal kernels after Boissin et al. (2025), "An adaptive orthogonal convolution scheme for efficient and
flexible CNN architectures".

Note [Fusion]
`K_post ∘ block ∘ K_pre` is `Sx − 2Cσ(Ax + b)` with the kernels `A = W ⊛ K_pre`, `C = K_post ⊛ Uᵀ` and the skip
`S = K_post ⊛ K_pre`, composed once per step. A stride of K_post becomes the stride of C and S.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from orthogonium.kernels import adjoint, block_conv
from orthogonium.methods.aoc import OrthogonalKernel
from orthogonium.methods.kernel import Device, Kernels
from orthogonium.methods.sll import ResidualKernels


class FusedKernels(Kernels):
    """`(A, −2C, S)` of a residual block between orthogonal convolutions (Note [Fusion])."""

    group_axes = (0,)

    def __init__(
        self,
        residual: ResidualKernels,
        pre: OrthogonalKernel | None,  # in → channels, stride 1; None for the identity
        post: OrthogonalKernel,  # channels → out, may stride
    ) -> None:
        super().__init__()
        self.residual, self.pre, self.post = residual, pre, post
        core, last = residual.geometry, post.geometry
        one_tap = replace(core, out_channels=core.in_channels, kernel_size=(1,) * core.dims)
        first = one_tap if pre is None else pre.geometry
        self.shapes = tuple(g.weight_shape for g in (first.then(core), core.adjoint().then(last), first.then(last)))

    def initial(self, device: Device, dtype: torch.dtype) -> tuple[Tensor, ...]:
        pre = () if self.pre is None else self.pre.initial(device, dtype)
        post = self.post.initial(device, dtype) if self.post.trainable else ()
        return (*pre, *post, *self.residual.initial(device, dtype))

    def unfused(self, *raw: Tensor) -> tuple[Tensor | None, Tensor, Tensor, Tensor]:
        """K_pre (None for the identity), W, U and K_post."""
        first = 0 if self.pre is None else len(self.pre.raw_shapes)
        last = first + len(self.post.raw_shapes) * self.post.trainable
        # With one channel per group K_post may be constant: its raw parameters are empty and not among ours.
        empty = [raw[-1].new_empty(shape) for shape in self.post.raw_shapes]
        post = self.post.build(*(raw[first:last] if self.post.trainable else empty))
        pre = None if self.pre is None else self.pre.build(*raw[:first])
        return pre, *self.residual.pair(*raw[last:]), post

    def build(self, *raw: Tensor) -> tuple[Tensor, ...]:
        groups = self.residual.geometry.groups
        pre, w, u, post = self.unfused(*raw)
        outer = block_conv(-2 * adjoint(u, groups), post, groups)
        if pre is None:
            return w, outer, post
        return block_conv(pre, w, groups), outer, block_conv(pre, post, groups)
