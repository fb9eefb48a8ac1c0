import pytest
import torch

from orthogonium.errors import ParameterError
from orthogonium.legacy import SDPBasedLipschitzConvLayer, SDPBasedLipschitzLinearLayer
from tests.legacy.oracle import jacobian_norm, train

LAYERS = [
    (SDPBasedLipschitzConvLayer, (3, 5), (3, 5, 5)),
    (SDPBasedLipschitzConvLayer, (3, 5, 4), (3, 5, 5)),
    (SDPBasedLipschitzLinearLayer, (6, 9), (6,)),
]


@pytest.mark.parametrize("build, args, shape", LAYERS)
@pytest.mark.parametrize("q_scale", [1e-7, 1.0, 100.0])
def test_bound_holds_for_any_q_and_any_slopes(build, args, shape, q_scale):
    layer = build(*args).double()
    for bias in (-1e3, 0.0, 1e3):  # all closed, mixed, all open
        with torch.no_grad():
            layer.q.copy_(q_scale * torch.randn_like(layer.q))
            layer.weight.copy_(2 * torch.randn_like(layer.weight))
            layer.bias.copy_(bias + torch.randn_like(layer.bias))
        assert jacobian_norm(layer, torch.randn(3, *shape).double()) <= 1 + 1e-9


@pytest.mark.parametrize("build, args, shape", LAYERS)
def test_q_trains(build, args, shape):
    layer = build(*args).double()
    layer(torch.randn(4, *shape).double()).square().sum().backward()
    assert layer.q.grad.abs().min() > 0


@pytest.mark.parametrize("build, args, shape", LAYERS)
def test_bound_is_used(build, args, shape):
    # W a single unit tap per channel, all units open: the layer reflects, J = I − 2I
    layer = build(shape[0], shape[0], *args[2:]).double()
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight.view(shape[0], shape[0], -1)[:, :, layer.weight[0, 0].numel() // 2] = torch.eye(shape[0])
        layer.bias.fill_(100)
        layer.q.fill_(1)
    x = torch.randn(1, *shape).double()
    jacobian = torch.autograd.functional.jacobian(layer, x).reshape(x.numel(), x.numel())
    inner = slice(None) if len(shape) == 1 else torch.arange(x.numel()).view(shape)[:, 1:-1, 1:-1].flatten()
    expected = -torch.eye(x.numel()).double()
    assert torch.allclose(jacobian[inner], expected[inner], atol=1e-9)


def test_zero_weight_is_the_identity():
    layer = SDPBasedLipschitzConvLayer(2, 3)
    with torch.no_grad():
        layer.weight.zero_()
    x = torch.randn(1, 2, 4, 4)
    assert torch.equal(layer(x), x)
    assert all(torch.isfinite(torch.tensor(train(layer, (2, 4, 4), steps=3))))


def test_refusals():
    with pytest.raises(ParameterError, match="epsilon"):
        SDPBasedLipschitzLinearLayer(3, 3, epsilon=0)
    with pytest.raises(ParameterError, match="kernel_size"):
        SDPBasedLipschitzConvLayer(3, 3, (3, 3))
