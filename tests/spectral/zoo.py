"""Random layers of every geometry, kernels of every character, and an oracle that knows nothing of the package."""

import copy
import random

import torch
from torch import nn

CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
MODES = ("zeros", "circular", "reflect", "replicate")


def oracle_matrix(fn, input_shape, dtype=torch.float64):
    """fn(x) = A x + b: the matrix A, column by column."""
    eye = torch.eye(torch.Size(input_shape).numel(), dtype=dtype).reshape(-1, *input_shape)
    with torch.no_grad():
        return (fn(eye) - fn(torch.zeros_like(eye[:1]))).flatten(1).T


def oracle_values(fn, input_shape, dtype=torch.float64):
    return torch.linalg.svdvals(oracle_matrix(fn, input_shape, dtype))


def oracle_norms_of_groups(layer, input_shape):
    """(groups,) norms of the blocks of the operator."""
    matrix = oracle_matrix(copy.deepcopy(layer).double(), input_shape)
    blocks = matrix.reshape(layer.groups, matrix.shape[0] // layer.groups, layer.groups, -1)
    blocks = blocks[torch.arange(layer.groups), :, torch.arange(layer.groups)]
    return torch.linalg.svdvals(blocks)[:, 0]


def random_conv(rng, *, groups=None, dims=None, dtype=torch.float64, bias=False):
    """(layer, spatial size): any number of dimensions, stride, dilation, padding, padding mode, transposed or not."""
    dims = dims or rng.choice((1, 1, 2, 2, 2, 3))
    groups = groups or rng.choice((1, 1, 2, 3))
    largest = {1: 4, 2: 3, 3: 2}[dims]
    ci, co = groups * rng.randint(1, largest), groups * rng.randint(1, largest)
    k = [rng.randint(1, {1: 5, 2: 4, 3: 3}[dims]) for _ in range(dims)]
    s = [rng.randint(1, 3) for _ in range(dims)]
    d = [rng.randint(1, 3) for _ in range(dims)]
    n = [rng.randint(1, {1: 12, 2: 5, 3: 3}[dims]) for _ in range(dims)]
    reach = [di * (ki - 1) + 1 for di, ki in zip(d, k, strict=True)]
    if rng.random() < 0.25:
        extra = [rng.randrange(max(si, di)) for si, di in zip(s, d, strict=True)]
        full = [(ni - 1) * si + ri + ei for ni, si, ri, ei in zip(n, s, reach, extra, strict=True)]
        p = [min(rng.randint(0, 3), (f - 1) // 2) for f in full]  # something must be left
        return TRANSPOSED[dims](ci, co, k, s, p, extra, groups, bias, d, dtype=dtype), tuple(n)
    mode = rng.choice(MODES)
    padding = p = [rng.randint(0, 4) for _ in range(dims)]
    if rng.random() < 0.2:
        padding, s, p = "same", [1] * dims, [ri // 2 for ri in reach]
    elif rng.random() < 0.1:
        padding, p = "valid", [0] * dims
    n = [max(ni, ri - 2 * pi) for ni, ri, pi in zip(n, reach, p, strict=True)]
    if mode in ("circular", "reflect"):
        n = [max(ni, pi + (mode == "reflect")) for ni, pi in zip(n, p, strict=True)]
    return CONV[dims](ci, co, k, s, padding, d, groups, bias, mode, dtype=dtype), tuple(n)


class WrappedConv(nn.Conv2d):
    """Circular "same" convolution with any stride: zero-extended to a multiple of it, wrapped on that circle."""

    def __init__(self, ci, co, k, s=1, d=1, groups=1, dtype=torch.float64):
        super().__init__(ci, co, k, s, 0, d, groups, bias=False, padding_mode="circular", dtype=dtype)
        self.padding = "same"

    def forward(self, x):
        for axis in (2, 3):
            s, reach = self.stride[axis - 2], self.dilation[axis - 2] * (self.kernel_size[axis - 2] - 1) + 1
            n = -(-x.shape[axis] // s) * s
            total = max(reach - s, 0)
            x = torch.cat([x, x.new_zeros([n - x.shape[a] if a == axis else x.shape[a] for a in range(4)])], axis)
            x = x.index_select(axis, torch.arange(-(total // 2), n + total - total // 2) % n)
        return nn.functional.conv2d(x, self.weight, None, self.stride, 0, self.dilation, self.groups)

    def spectral_geometry(self):
        return {}


class WrappedConvTranspose(nn.ConvTranspose2d):
    """The adjoint of `WrappedConv` on circles of a whole number of strides, which torch does not have."""

    def __init__(self, ci, co, k, s=1, d=1, groups=1, dtype=torch.float64):
        super().__init__(ci, co, k, s, 0, 0, groups, False, d, dtype=dtype)

    def forward(self, x):
        ci, co = self.out_channels, self.in_channels
        conv = WrappedConv(ci, co, self.kernel_size, self.stride, self.dilation, self.groups)
        conv.weight = self.weight
        image = x.new_zeros(len(x), ci, x.shape[2] * self.stride[0], x.shape[3] * self.stride[1])
        return torch.func.vjp(conv, image)[1](x)[0]

    def spectral_geometry(self):
        return {"padding": "same", "padding_mode": "circular"}


def _gaussian(shape):
    return torch.randn(shape)


def _rank_one(shape):
    out = torch.ones(())
    for n in shape:
        out = out[..., None] * torch.randn(n)
    return out


def _delta(shape):
    out = torch.zeros(shape)
    out[(0, 0, *(torch.randint(n, ()).item() for n in shape[2:]))] = 1
    return out


def _orthogonal_taps(shape):
    """One orthogonal tap: an orthogonal convolution at stride 1."""
    out = torch.zeros(shape)
    out[(slice(None), slice(None), *(n // 2 for n in shape[2:]))] = nn.init.orthogonal_(torch.empty(shape[:2]))
    return out


def _alternating(shape):
    """Signs that alternate with the position: the norm is attained at the Nyquist frequency, which odd circles miss."""
    sign = torch.ones(())
    for n in shape[2:]:
        sign = sign[..., None] * (-1.0) ** torch.arange(n)
    return torch.rand(shape) * sign


def _block_diagonal(shape):
    return torch.randn(shape) * torch.eye(*shape[:2]).reshape(*shape[:2], *(1,) * (len(shape) - 2))


def _sparse(shape):
    return torch.randn(shape) * (torch.rand(shape) < 0.2)


KERNELS = {
    "gaussian": _gaussian,
    "constant": lambda shape: torch.ones(shape),
    "zero": lambda shape: torch.zeros(shape),
    "rank one": _rank_one,
    "delta": _delta,
    "orthogonal": _orthogonal_taps,
    "alternating": _alternating,
    "block diagonal": _block_diagonal,
    "sparse": _sparse,
    "huge": lambda shape: torch.randn(shape) * 1e30,
    "tiny": lambda shape: torch.randn(shape) * 1e-30,
    "ill scaled": lambda shape: torch.randn(shape) * 10.0 ** torch.randint(-6, 7, shape),
    "cancelling": lambda shape: torch.ones(shape) + 1e-6 * torch.randn(shape),
}


def fill(layer, kind):
    """Another kernel of this kind in each group."""
    with torch.no_grad():
        for block in layer.weight.unflatten(0, (layer.groups, -1)):
            block.copy_(KERNELS[kind](block.shape))
    return layer


def rng(seed):
    torch.manual_seed(seed)
    return random.Random(seed)
