"""The oracle of all tests: the matrix that a module applies, from its responses to unit impulses."""

import torch
from torch import nn


def operator(module, *size):
    """Matrix (outputs × inputs), float64, of an affine map on inputs of this size (without batch)."""
    probe = next((p for p in module.parameters() if p.is_floating_point()), torch.zeros(()))
    inputs = torch.Size(size).numel()
    impulses = torch.eye(inputs, dtype=probe.dtype).view(inputs, *size)
    with torch.no_grad():
        response = module(impulses) - module(torch.zeros(1, *size, dtype=probe.dtype))
    return response.flatten(1).T.double()


def singular_values(module, *size):
    return torch.linalg.svdvals(operator(module, *size))


def plain_conv(dims, transposed=False):
    kinds = (
        (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
        if transposed
        else (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    )
    return kinds[dims - 1]
