"""The kernel composed axis by axis against the 2 × 2 block convolutions of the legacy, from the same projectors."""

import pytest
import torch

from orthogonium.legacy.block_ortho_conv import bcop_kernel
from orthogonium.linalg import cholesky
from orthogonium.methods.bcop.composition import compose, count_bases
from orthogonium.methods.bcop.composition import rotation as first_columns


def bases(count, c):
    return torch.linalg.qr(torch.randn(count, c, c // 2).double()).Q.mT


def projector(m):
    return m.T @ m


def rotation(first, second):
    eye = torch.eye(first.shape[1], dtype=first.dtype)
    return (eye - 2 * projector(first)) @ (eye - 2 * projector(second))


@pytest.mark.parametrize("c", [2, 5, 6])
def test_one_block_is_the_same_kernel(c):
    """A 2 × 2 kernel has one factor on each axis: vertical P times horizontal Q in both."""
    p, q = bases(2, c)
    start = torch.linalg.qr(torch.randn(c, c).double()).Q
    ours = compose(torch.stack((p, q))[None], (2, 2), start.view(1, c, c, 1, 1))[0]
    # There the orthogonal matrix stands left of the factors, here right of them.
    legacy = bcop_kernel(torch.stack((p, q)).mT, torch.eye(c).double())
    torch.testing.assert_close(ours, torch.einsum("abxy,bc->acxy", legacy, start))
    rotated = bcop_kernel(torch.stack((p @ start, q @ start)).mT, start)
    torch.testing.assert_close(ours, rotated)


@pytest.mark.parametrize("c", [2, 4, 5])
def test_larger_kernels_agree_where_the_factors_commute(c):
    """Axis by axis or block by block only differs in the order of factors: projectors of one eigenbasis commute."""
    eigenbasis = torch.linalg.qr(torch.randn(c, c).double()).Q
    chosen = [eigenbasis[torch.randperm(c)[: c // 2]] for _ in range(4)]
    r1, r2 = bases(2, c)
    legacy = bcop_kernel(torch.stack(chosen).mT, torch.eye(c).double())
    p1, q1, p2, q2 = chosen
    # Ours: the pair of the rotation, the pair of the vertical axis, the pair of the horizontal one.
    ours = compose(torch.stack((r1, r2, p1, p2, q1, q2))[None], (3, 3))[0]
    torch.testing.assert_close(ours, torch.einsum("abxy,bc->acxy", legacy, rotation(r1, r2)))


def test_factors_of_any_projectors_at_every_frequency():
    """The symbol is the product of ours, factor by factor: vertical ones, horizontal ones, rotation."""
    c = 6
    r1, r2, p1, p2, q1, q2 = m = bases(6, c)
    kernel = compose(m[None], (3, 3))[0]
    eye = torch.eye(c).double()
    for a, b in [(0.0, 0.0), (0.3, 1.1), (2.0, -0.7)]:
        u, v = torch.exp(torch.tensor([1j * a, 1j * b]))
        taps = torch.outer(u ** torch.arange(3), v ** torch.arange(3))
        symbol = (kernel * taps).sum((-2, -1))
        factors = [projector(p) + (eye - projector(p)) * z for p, z in ((p1, u), (p2, u), (q1, v), (q2, v))]
        expected = torch.linalg.multi_dot([f.to(symbol.dtype) for f in (*factors, rotation(r1, r2))])
        torch.testing.assert_close(symbol, expected)


@pytest.mark.parametrize("sizes", [(3,), (3, 3), (4, 2), (5, 3), (3, 1, 7)], ids=str)
@pytest.mark.parametrize("c,columns", [(2, 2), (6, 6), (5, 3), (7, 1), (3, 24)])
def test_thin_and_dense_products_build_the_same_kernel(sizes, c, columns):
    """A start with many columns asks for dense products, each of its columns by itself for thin ones."""
    raw = torch.randn(3, count_bases(sizes, rotate=False), c // 2, c, dtype=torch.float64, requires_grad=True)
    start = torch.randn(3, c, columns, *(1,) * len(sizes), dtype=torch.float64)
    results = []
    for parts in ([start], start.split(1, 2)):
        kernel = torch.cat([compose(cholesky(raw), sizes, part) for part in parts], 2)
        results.append((kernel, *torch.autograd.grad(kernel.sin().sum(), raw)))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("sizes", [(3,), (3, 3), (3, 1, 3), (1, 1), (5, 3), (3, 1, 7)], ids=str)
@pytest.mark.parametrize("c,columns", [(2, 2), (6, 6), (5, 3), (7, 1)])
def test_all_taps_at_once_build_the_same_kernel(sizes, c, columns):
    """Or axis by axis, from a rotation that is given."""
    raw = torch.randn(3, count_bases(sizes, rotate=True), c // 2, c, dtype=torch.float64, requires_grad=True)
    m = cholesky(raw)
    start = first_columns(m[:, :2], columns).reshape(3, c, columns, *(1,) * len(sizes))
    kernels = compose(m, sizes, columns=columns), compose(m[:, 2:], sizes, start)
    results = [(k, *torch.autograd.grad(k.sin().sum(), raw, retain_graph=True)) for k in kernels]
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("sizes", [(3, 3), (1, 3), (1, 1), (5, 3)], ids=str)
def test_kernels_may_be_changed_in_place(sizes):
    m = cholesky(torch.randn(2, count_bases(sizes, rotate=True), 3, 6, dtype=torch.float64)).requires_grad_()
    kernel = compose(m, sizes)
    expected = torch.autograd.grad((2 * kernel).sin().sum(), m)
    torch.testing.assert_close(torch.autograd.grad(compose(m, sizes).mul_(2).sin().sum(), m), expected)


@pytest.mark.parametrize("sizes", [(3,), (3, 3), (2, 3), (5, 1)])
def test_one_channel_is_shifted(sizes):
    """Its projectors have rank 0."""
    kernel = compose(torch.zeros(2, count_bases(sizes, rotate=True), 0, 1), sizes)
    expected = torch.zeros(2, 1, 1, *sizes)
    expected.flatten(1)[:, -1] = 1
    assert torch.equal(kernel, expected)
