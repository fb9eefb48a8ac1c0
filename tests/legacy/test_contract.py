"""What every published method must do: keep its guarantee before and after training, train, save, repeat itself."""

import copy
import io
from dataclasses import dataclass

import pytest
import torch

from orthogonium import legacy
from tests.legacy.oracle import jacobian_norm, singular_values, steepest_secant, train

DTYPES = [torch.float32, torch.float64]


@dataclass(frozen=True)
class Case:
    name: str
    args: tuple
    shape: tuple  # of one input
    kind: str  # isometry: all σ = 1; contraction: linear, σ ≤ 1; lipschitz: not linear
    keywords: tuple = ()
    excess: float = 0.0  # by which the published method really exceeds 1, beside rounding
    defect: float = 0.0  # by which σ_min of an isometry really falls below 1

    def build(self, dtype):
        return getattr(legacy, self.name)(*self.args, **dict(self.keywords)).to(dtype)

    def __str__(self):
        return f"{self.name}{self.args}{dict(self.keywords) or ''}"


IMAGE = (4, 6, 6)
CASES = [
    Case("BCOP", (4, 4), IMAGE, "isometry"),
    Case("BCOP", (4, 7, 2), IMAGE, "isometry"),
    Case("BCOP", (4, 3, 5), IMAGE, "isometry"),
    Case("BCOP", (4, 5, 3, 2), IMAGE, "isometry"),
    Case("BCOP", (4, 4), IMAGE, "contraction", (("padding_mode", "zeros"),)),
    Case("BCOP", (4, 6), IMAGE, "contraction", (("padding_mode", "zeros"), ("padding", 2))),
    Case("BCOP", (4, 4), IMAGE, "isometry", (("bjorck_order", 2), ("padding", "same"))),
    Case("SOC", (4, 4), IMAGE, "isometry", defect=1e-5),
    Case("SOC", (4, 7), IMAGE, "isometry", (("padding_mode", "circular"),), defect=1e-5),
    Case("SOC", (4, 3, 1), IMAGE, "isometry", defect=1e-5),
    Case("SOC", (4, 5, 3, 2), IMAGE, "isometry", defect=1e-5),
    Case("Cayley", (4, 4, 3), IMAGE, "isometry"),
    Case("Cayley", (4, 7, 2), (4, 5, 6), "isometry"),
    Case("Cayley", (4, 3, 5), (4, 6, 5), "isometry"),
    Case("Cayley", (4, 5, 4, 2), IMAGE, "isometry"),
    Case("CayleyLinear", (9, 9), (9,), "isometry"),
    Case("CayleyLinear", (9, 5), (9,), "isometry"),
    Case("CayleyLinear", (5, 9), (5,), "isometry"),
    Case("RKO", (4, 5, 3, 1, 1), IMAGE, "contraction"),
    Case("RKO", (4, 5, 3, 2, 1), IMAGE, "contraction"),
    Case("RKO", (4, 5, 2, 2), IMAGE, "isometry"),
    Case("RKO", (2, 9, 2, 2), (2, 6, 6), "isometry"),
    Case("RKO", (4, 3, 1, 2), IMAGE, "isometry"),
    Case("AOLConv2d", (4, 5, 3), IMAGE, "contraction", (("padding", 1),)),
    Case("AOLConv2d", (4, 5, (3, 2), (2, 1), (2, 1), (1, 2)), IMAGE, "contraction"),
    Case("AOLConv2d", (4, 4, 3), IMAGE, "contraction", (("padding", 1), ("groups", 2), ("padding_mode", "circular"))),
    Case("AOLLinear", (9, 5), (9,), "contraction"),
    Case("AOLLinear", (5, 9), (5,), "contraction"),
    Case("SDPBasedLipschitzConvLayer", (4, 6), IMAGE, "lipschitz"),
    Case("SDPBasedLipschitzConvLayer", (4, 3, 2), IMAGE, "lipschitz"),
    Case("SDPBasedLipschitzLinearLayer", (9, 12), (9,), "lipschitz"),
    Case("SandwichConv", (4, 5, 3), IMAGE, "lipschitz"),
    Case("SandwichConv", (4, 5, 4, 2), IMAGE, "lipschitz"),
    Case("SandwichFc", (9, 12), (9,), "lipschitz"),
    Case("ConvexPotentialLayerConv", (4, 6), IMAGE, "lipschitz", (("input_size", 6),), excess=3e-2),
    Case("ConvexPotentialLayerLinear", (9, 12), (9,), "lipschitz", excess=5e-3),
]
every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])


def test_the_table_covers_every_class():
    assert {case.name for case in CASES} == set(legacy.__all__)


def check_guarantee(layer, case, dtype):
    rounding = {torch.float32: 5e-6, torch.float64: 1e-12}[dtype]
    if case.kind == "lipschitz":
        layer.requires_grad_(False)
        points = torch.cat([scale * torch.randn(3, *case.shape, dtype=dtype) for scale in (0.1, 1, 10)])
        norm = max(jacobian_norm(layer, points), steepest_secant(layer, case.shape, dtype))
        layer.requires_grad_(True)
        assert norm <= 1 + case.excess + rounding
        return
    sigma = singular_values(layer, case.shape, dtype)
    assert sigma.max() <= 1 + case.excess + rounding
    if case.kind == "isometry":
        assert sigma.min() >= 1 - case.defect - rounding


@every_dtype
@every_case
def test_guarantee_before_and_after_training(case, dtype):
    layer = case.build(dtype).eval()
    check_guarantee(layer, case, dtype)
    before = [p.detach().clone() for p in layer.parameters()]
    train(layer, case.shape)
    assert all(not torch.equal(p, q) for p, q in zip(layer.parameters(), before, strict=True))
    check_guarantee(layer.eval(), case, dtype)


@every_case
def test_loss_decreases(case):
    losses = train(case.build(torch.float32), case.shape, steps=40)
    assert losses[-1] < losses[0]


@every_dtype
@every_case
def test_state_dict_round_trip(case, dtype):
    layer, other = case.build(dtype), case.build(dtype)
    train(layer, case.shape, steps=2)
    x = torch.randn(2, *case.shape, dtype=dtype)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(layer.eval()(x), other.eval()(x))
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))


@every_case
def test_evaluation_is_deterministic_and_leaves_the_state_alone(case):
    layer = case.build(torch.float32).eval()
    x = torch.randn(2, *case.shape)
    state = copy.deepcopy(layer.state_dict())
    first = layer(x)
    assert first.dtype == x.dtype
    assert torch.equal(first, layer(x))
    assert all(torch.equal(value, state[name]) for name, value in layer.state_dict().items())


@every_case
def test_two_calls_before_one_backward(case):
    layer = case.build(torch.float32)
    x = torch.randn(2, *case.shape)
    (layer(x).sum() + layer(2 * x).sum()).backward()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters())
