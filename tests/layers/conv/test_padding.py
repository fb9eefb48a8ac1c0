"""Circular padding and its adjoint, against an index for every pixel."""

import pytest
import torch

from orthogonium.layers.conv.padding import unwrap, wrap

CASES = [
    ((2, 3, 5, 4), (1, 1), (1, 1)),
    ((2, 3, 5, 4), (0, 2), (3, 4)),
    ((3, 5, 4), (1, 2), (0, 1)),
    ((2, 3, 6), (2,), (1,)),
    ((1, 2, 3, 4, 5), (1, 0, 2), (1, 3, 0)),
    ((2, 3, 4), (4,), (4,)),
    ((2, 3, 4), (9,), (3,)),
    ((2, 1, 4), (0,), (0,)),
    ((2, 3, 5, 4), (2, 1), (-1, 0)),
]
cases = pytest.mark.parametrize(("shape", "left", "right"), CASES, ids=str)


@cases
def test_against_indices(shape, left, right):
    x = torch.randn(shape, dtype=torch.float64)
    expected = x
    for axis, (a, b) in enumerate(zip(left, right, strict=True)):
        dim = x.dim() - len(left) + axis
        n = x.shape[dim]
        expected = torch.cat([expected.select(dim, i % n).unsqueeze(dim) for i in range(-a, n + b)], dim)
    for image in (x, x.clone().requires_grad_()):
        padded = wrap(image, left, right)
        assert torch.equal(padded, expected)
    other = torch.randn_like(expected)
    for image in (other, other.clone().requires_grad_()):
        folded = unwrap(image, left, right)
        assert folded.is_contiguous()
        torch.testing.assert_close((folded * x).sum(), (other * expected).sum())


@cases
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # torch's own, at the first jvp
@pytest.mark.parametrize("function", [wrap, unwrap])
def test_derivatives_of_both_kinds_and_orders(shape, left, right, function):
    if function is unwrap:
        shape = wrap(torch.zeros(shape), left, right).shape
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)

    def padded(image):
        return function(image, left, right).sin()

    assert torch.autograd.gradcheck(padded, x, fast_mode=True, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(padded, x, fast_mode=True)
    (gradient,) = torch.autograd.grad(padded(x).sum(), x, create_graph=True)
    (curvature,) = torch.autograd.grad((gradient * x.detach()).sum(), x)
    transformed = torch.func.grad(lambda image: padded(image).sum())
    torch.testing.assert_close(torch.func.vmap(transformed)(x.detach()[None])[0], gradient)
    torch.testing.assert_close(torch.func.jvp(transformed, (x.detach(),), (x.detach(),))[1], curvature)
