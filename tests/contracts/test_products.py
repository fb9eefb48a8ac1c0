"""Weights where torch may round products: those of Note [Products], for every constrained layer."""

import pytest
import torch

from orthogonium.layers import LipschitzConv2d, LipschitzLinear, freeze
from orthogonium.methods.table import METHODS
from tests.contracts.test_contracts import layers, make, train_step
from tests.jacobians import jacobians
from tests.tf32 import TF32, tf32_allowed


@pytest.fixture
def tf32():
    """torch may round products, and the processor does."""
    with tf32_allowed():
        yield


def weight_and_gradients(layer):
    weight = layer.weight
    raw = list(layer.parametrizations.weight.parameters())
    upstream = torch.linspace(-1, 1, weight.numel()).view_as(weight)
    return [weight.detach(), *torch.autograd.grad((weight * upstream).sum(), raw)]


@layers
def test_weights_and_gradients_do_not_notice(name, request):
    layer, x = make(name)
    with TF32():  # which rounds nothing yet; but `matmul` folds batches of one in front of any such mode
        expected = weight_and_gradients(layer)
    request.getfixturevalue("tf32")
    with TF32() as mode:
        found = weight_and_gradients(layer)
        assert mode.rounded == 0
        layer.eval()
        with torch.no_grad():
            assert torch.equal(layer.weight, expected[0]) and mode.rounded == 0
            layer(x)
        assert mode.rounded > 0  # the precision of the layer itself is the choice of the user
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", ["OrthoLinear-BJORCK", "AOC-strided-columns", "SLL-AOC", "Sandwich"])
def test_compile_without_graph_breaks(name, tf32):
    torch.compiler.reset()
    layer, x = make(name)
    out = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    # Built in float64: bounds then need no room for the rounding of float32, up to 40 eps here.
    torch.testing.assert_close(out, layer(x), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kind", ["conv", "linear"])
@pytest.mark.parametrize("method", METHODS)
def test_singular_values(method, kind, tf32):
    """Of linear layers, and of Jacobians of blocks; before and after a training step that is done in TF32."""
    entry = METHODS[method]
    if not getattr(entry, kind):
        pytest.skip(f"{method} has no such layer")
    width = 16 if entry.square else 24
    if kind == "conv":
        layer, size = LipschitzConv2d(16, width, 3, padding_mode="circular", method=method), (16, 5, 5)
        layer(torch.zeros(1, *size))  # which some have a kernel of their own for
    else:
        layer, size = LipschitzLinear(16, width, method=method), (16,)
    for _ in range(2):
        with TF32(), torch.no_grad():
            plain = freeze(layer.eval()).double()  # the weight as it is built here
        sigma = torch.linalg.svdvals(jacobians(plain, torch.randn(1, *size, dtype=torch.float64)))
        assert sigma.max() <= 1 + 1e-5
        if entry.guarantee == "orthogonal":
            assert sigma.min() >= 1 - 1e-5
        with TF32() as mode:
            train_step(layer.train(), torch.randn(2, *size))
        assert mode.rounded > 0
