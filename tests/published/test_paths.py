"""Every import path and name of 0.0.4, deep ones too, by any of the ways to import."""

import importlib
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from orthogonium.published.paths import PATHS

DEEP = {
    "orthogonium.model_factory.classparam": "ClassParam flatten_config",
    "orthogonium.layers.conv.AOC.ortho_conv": "AdaptiveOrthoConv2d AdaptiveOrthoConvTranspose2d",
    "orthogonium.layers.conv.AOC.fast_block_ortho_conv": (
        "FastBlockConv2d FastBlockConvTranspose2D fast_matrix_conv fast_batched_matrix_conv transpose_kernel block_orth"
    ),
    "orthogonium.layers.conv.AOC.rko_conv": "RKOConv2d RkoConvTranspose2d",
    "orthogonium.layers.conv.AOC.bcop_x_rko_conv": "BcopRkoConv2d BcopRkoConvTranspose2d",
    "orthogonium.layers.conv.AOL.aol": (
        "AOLConv2D AOLConvTranspose2D conv_orthogonal_ fast_matrix_conv transpose_kernel"
    ),
    "orthogonium.layers.conv.SLL.sll_layer": (
        "SDPBasedLipschitzResBlock SDPBasedLipschitzDense SLLxAOCLipschitzResBlock AOCLipschitzResBlock "
        "AdaptiveOrthoConv2d OrthoParams fast_matrix_conv transpose_kernel"
    ),
    "orthogonium.layers.conv.adaptiveSOC.ortho_conv": (
        "AdaptiveSOCConv2d AdaptiveSOCConvTranspose2d FastSOC SOCRkoConv2d RKOConv2d"
    ),
    "orthogonium.layers.conv.adaptiveSOC.fast_skew_ortho_conv": (
        "FastSOC SOCTranspose fast_matrix_conv transpose_kernel"
    ),
    "orthogonium.layers.conv.adaptiveSOC.soc_x_rko_conv": "SOCRkoConv2d SOCRkoConvTranspose2d fast_matrix_conv",
    "orthogonium.layers.conv.singular_values.get_sv": "get_conv_sv compute_delattre2023 compute_delattre2024",
    "orthogonium.layers.conv.singular_values.delattre24": "compute_delattre2023 compute_delattre2024",
    "orthogonium.layers.linear.ortho_linear": "OrthoLinear UnitNormLinear",
}


@pytest.mark.parametrize("path", DEEP)
def test_a_script_that_imports_nothing_else_finds_it(path):
    module = importlib.import_module(path)
    assert set(DEEP[path].split()) <= set(module.__all__)
    assert all(callable(getattr(module, name)) for name in module.__all__)
    parent, _, last = path.rpartition(".")
    assert getattr(importlib.import_module(parent), last) is module


def test_the_table_has_no_path_that_was_not_published():
    assert PATHS.keys() == DEEP.keys()


def test_in_a_fresh_interpreter():
    code = "\n".join(f"from {path} import {', '.join(names.split())}" for path, names in DEEP.items())
    code += "\nimport orthogonium.layers, pickle"
    code += "\nassert AdaptiveOrthoConv2d is orthogonium.layers.AdaptiveOrthoConv2d"
    code += "\nassert pickle.loads(pickle.dumps(OrthoLinear)) is orthogonium.layers.OrthoLinear"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_what_is_not_in_the_table_is_not_found():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("orthogonium.layers.conv.AOC.attach")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("orthogonium.layers.linear.attach")


def test_kernel_helpers():
    from orthogonium.layers.conv.AOC.fast_block_ortho_conv import (
        block_orth,
        fast_batched_matrix_conv,
        fast_matrix_conv,
        transpose_kernel,
    )

    x, m1, m2 = torch.randn(1, 8, 9, 9), torch.randn(5, 6, 4, 3, 3), torch.randn(5, 8, 3, 2, 2)
    composed = fast_matrix_conv(m1=m1[0], m2=m2[0], groups=2)
    torch.testing.assert_close(
        F.conv2d(x, composed, groups=2), F.conv2d(F.conv2d(x, m1[0], groups=2), m2[0], groups=2), rtol=1e-4, atol=1e-4
    )
    batched = fast_batched_matrix_conv(m1, m2, groups=2)
    torch.testing.assert_close(batched, torch.stack([fast_matrix_conv(a, b, 2) for a, b in zip(m1, m2, strict=True)]))

    kernel = torch.randn(6, 2, 3, 3)
    x, y = torch.randn(1, 4, 7, 7), torch.randn(1, 6, 5, 5)
    inner = (F.conv2d(x, kernel, groups=2) * y).sum()
    adjoint = F.conv2d(F.pad(y, (2, 2, 2, 2)), transpose_kernel(kernel, 2), groups=2)
    torch.testing.assert_close(inner, (adjoint * x).sum(), rtol=1e-4, atol=1e-4)
    assert torch.equal(transpose_kernel(kernel, 2, flip=False).flip(2, 3), transpose_kernel(kernel, 2))

    bases = torch.linalg.qr(torch.randn(2, 2, 3, 4, 2)).Q  # two factors, two groups, a batch of three
    p, q = bases @ bases.mT
    blocks = block_orth(p, q)
    assert blocks.shape == (3, 8, 4, 2, 2)
    one = blocks[1, 4:]  # of the second group
    torch.testing.assert_close(one[..., 0, 1], p[1, 1] @ (torch.eye(4) - q[1, 1]))
    torch.testing.assert_close(one.sum((-1, -2)), torch.eye(4))


def test_bounds_of_kernels():
    from orthogonium.layers.conv.singular_values.delattre24 import compute_delattre2023, compute_delattre2024

    kernel = torch.randn(4, 3, 3, 3)
    norms = torch.linalg.svdvals(torch.fft.fft2(kernel, s=(16, 16)).movedim((0, 1), (-2, -1)))
    assert norms.max() <= compute_delattre2023(kernel, n=16, n_iter=6) <= 1.05 * norms.max()
    assert norms.max() <= compute_delattre2023(kernel, n_iter=6) <= 1.1 * norms.max()
    assert norms.max() <= compute_delattre2024(kernel, n_iter=3) <= 1.5 * norms.max()
