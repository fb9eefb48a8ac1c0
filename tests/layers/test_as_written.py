"""What a class states of its modules holds for those that do what the class says; others are refused."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune

from orthogonium.errors import ParameterError
from orthogonium.layers import (
    AdaptiveOrthoConv2d,
    AdaptiveOrthoConvTranspose2d,
    AdaptiveSOCConv2d,
    AOLConv2d,
    AOLLinear,
    CayleyConv2d,
    ChannelShift,
    ChannelShuffle,
    ConcatResidual,
    CReLU,
    Guarantee,
    Inverse,
    InversionError,
    InvertibleDownsampling,
    InvertibleUpsampling,
    OrthoLinear,
    SandwichLinear,
    Scale,
    freeze,
    inverse,
    iResidual,
)
from orthogonium.layers.promises import promised_constant


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


class Mine(OrthoLinear):
    def forward(self, x):
        return 2 * super().forward(x)


class Stated(Mine):
    guarantee = Guarantee("lipschitz", 2.0)

    def inverse(self):
        return nn.Sequential(Scale(0.5), Inverse(OrthoLinear(4, 4)))


class Renamed(OrthoLinear):
    """Nothing but another name and arguments."""

    def __init__(self):
        super().__init__(4, 4)

    def extra_repr(self):
        return "mine"


class MySequential(nn.Sequential):
    def forward(self, x):
        return 2 * super().forward(x)


def hooked(module):
    module.register_forward_hook(lambda module, args, output: 3 * output)
    return module


def pre_hooked(module):
    module.register_forward_pre_hook(lambda module, args: (3 * args[0],))
    return module


def replaced(module):
    module.forward = lambda x: 3 * x
    return module


def parametrized_twice(module):
    parametrize.register_parametrization(module, "weight", Doubled())
    return module


def hooked_weight(module):
    module.parametrizations.weight[0].register_forward_hook(lambda module, args, output: 3 * output)
    return module


def trained(module):
    frozen = freeze(module)
    optimizer = torch.optim.SGD(frozen.parameters(), lr=0.1, maximize=True)
    frozen(torch.randn(2, 4)).square().sum().backward()
    optimizer.step()
    return frozen


CHANGED = [
    lambda: Mine(4, 4),
    lambda: hooked(OrthoLinear(4, 4)),
    lambda: pre_hooked(OrthoLinear(4, 4)),
    lambda: replaced(OrthoLinear(4, 4)),
    lambda: parametrized_twice(OrthoLinear(4, 4)),
    lambda: hooked_weight(OrthoLinear(4, 4)),
    lambda: trained(OrthoLinear(4, 4)),
]


@pytest.mark.parametrize("make", CHANGED)
def test_changed_layers_have_no_inverse_and_no_constant(make):
    for undo in (inverse, lambda module: module.inverse(), lambda module: inverse(nn.Sequential(module))):
        with pytest.raises(InversionError):
            undo(make())
    for module in (make(), nn.Sequential(nn.ReLU(), make()), ConcatResidual(make())):
        assert promised_constant(module) is None
    with pytest.raises(ParameterError, match="promise their constant"):
        iResidual(make())


@pytest.mark.parametrize("change", [hooked, pre_hooked, replaced])
@pytest.mark.parametrize(
    "make",
    [
        CReLU,
        ChannelShift,
        nn.Identity,
        lambda: ChannelShuffle(2, 2),
        lambda: InvertibleDownsampling(2),
        lambda: InvertibleUpsampling(2),
        lambda: Scale(2.0),
        lambda: ConcatResidual(OrthoLinear(2, 2)),
        lambda: iResidual(OrthoLinear(2, 2)),
        lambda: nn.LeakyReLU(0.5),
        lambda: nn.PixelShuffle(2),
        lambda: nn.Sequential(nn.Identity()),
        lambda: AdaptiveOrthoConv2d(4, 4, 3),
    ],
)
def test_hooks_are_not_undone(make, change):
    module = make()
    inverse(module)
    with pytest.raises(InversionError, match="hooks|replaces"):
        inverse(change(module))


def test_what_changes_after_the_inverse_was_made():
    layer = OrthoLinear(4, 4)
    undoing, block = layer.inverse(), iResidual(layer)
    y = torch.randn(2, 4)
    undoing(y), block.inverse()(y)
    handle = layer.register_forward_hook(lambda module, args, output: 3 * output)
    with pytest.raises(InversionError, match="hooks"):
        undoing(y)
    for call in (block.solve, block.log_det):
        with pytest.raises(ParameterError, match="hooks"):
            call(y)
    assert block(y).shape == (2, 4)  # a forward pass rests on nothing
    handle.remove()
    undoing(y), block.solve(y)


def test_statements_of_subclasses():
    """A class that overrides the forward pass may state a constant and an inverse of its own."""
    assert promised_constant(Stated(4, 4)) == 2 and isinstance(inverse(Stated(4, 4)), nn.Sequential)
    layer, x = Renamed(), torch.randn(2, 4)
    torch.testing.assert_close(inverse(layer)(layer(x)), x, rtol=0, atol=1e-5)
    assert promised_constant(layer) == 1
    with pytest.raises(InversionError):
        inverse(MySequential(nn.Identity()))


ISOMETRIES = {
    "dense": (lambda: OrthoLinear(4, 7, lipschitz=3.0), (4,)),
    "conv": (lambda: AdaptiveOrthoConv2d(2, 8, 3, stride=2, lipschitz=0.5), (2, 6, 4)),
    "dilated": (lambda: AdaptiveOrthoConv2d(4, 4, 3, dilation=2, groups=2), (4, 6, 5)),
    "tiles": (lambda: AdaptiveOrthoConv2d(2, 8, 2, stride=2, padding=0, padding_mode="zeros"), (2, 6, 8)),
    "transposed": (
        lambda: AdaptiveOrthoConvTranspose2d(8, 2, 3, stride=2, padding="same", padding_mode="circular"),
        (8, 3, 4),
    ),
    "circle": (lambda: CayleyConv2d(2, 8, 3, stride=2, image_size=6), (2, 6, 6)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ISOMETRIES)
def test_frozen_layers_are_measured(name, dtype):
    make, shape = ISOMETRIES[name]
    layer = make()
    x = torch.randn(2, *shape)
    undoing = freeze(inverse(layer)).to(dtype)
    frozen = undoing.module
    tolerance = 0.05 if dtype == torch.bfloat16 else 1e-5
    assert (undoing(frozen(x.to(dtype))) - x).norm() <= tolerance * x.norm()
    assert promised_constant(frozen) == layer.lipschitz
    y = frozen(x.to(dtype))
    with torch.no_grad():
        frozen.weight[0] *= 1.1
    with pytest.raises(InversionError, match="left its constraint"):
        undoing(y)
    assert promised_constant(frozen) is None
    with torch.no_grad():
        frozen.weight[0] *= 0.5
    with pytest.raises(InversionError, match="left its constraint"):
        frozen.inverse()


def test_frozen_layers_that_are_no_isometries():
    for layer in (AOLLinear(4, 4), AOLConv2d(2, 2, 3, padding=1), AdaptiveSOCConv2d(4, 4, 3)):
        frozen = freeze(layer)
        assert promised_constant(frozen) == 1
        with pytest.raises(InversionError, match="smallest singular value"):
            inverse(frozen)
        with torch.no_grad():
            frozen.weight *= 1.5
        assert promised_constant(frozen) is None
    assert promised_constant(freeze(SandwichLinear(4, 4))) is None  # of blocks nothing but the theorem is known


def test_frozen_blocks_are_undone():
    fn = nn.Sequential(OrthoLinear(4, 4), nn.Tanh(), OrthoLinear(4, 4, lipschitz=3.0))
    block = iResidual(fn, lipschitz=0.7)
    frozen, x = freeze(block), torch.randn(3, 4)
    torch.testing.assert_close(frozen(x), block(x))
    torch.testing.assert_close(frozen.inverse()(frozen(x)), x, rtol=0, atol=1e-5)
    with torch.no_grad():
        frozen.fn[0].weight *= 2
    with pytest.raises(ParameterError, match="left its constraint"):
        frozen.solve(x)


def test_frozen_layers_in_inference_mode():
    layer, x = freeze(OrthoLinear(4, 4)), torch.randn(2, 4)
    with torch.inference_mode():
        for module in (layer, freeze(OrthoLinear(4, 4))):
            undoing = module.inverse()
            for _ in range(2):
                torch.testing.assert_close(undoing(module(x)), x, rtol=0, atol=1e-5)
            module.weight *= 2
            with pytest.raises(InversionError, match="left its constraint"):
                undoing(x)


def test_pruned_raw_parameters_keep_the_promise():
    """Masks of raw parameters come before the constraint, and so do the caches of torch."""
    layer = OrthoLinear(4, 4)
    prune.random_unstructured(layer.parametrizations.weight, "original", 0.2)
    assert promised_constant(layer) == 1
    with parametrize.cached():
        assert promised_constant(OrthoLinear(4, 4)) == 1
