"""Whole models: known constants, soundness on random ones, our layers measured and not trusted, nothing changed."""

import math

import pytest
import torch
from torch import nn

import orthogonium
from orthogonium import layers as ol
from orthogonium import lipschitz_bound
from orthogonium.certification import RefutedError
from orthogonium.certification.rules.entrywise import SLOPES, fixed
from tests.certification.networks import Fn, steepest

ACTIVATIONS = [nn.ReLU, nn.GELU, nn.Tanh, nn.SiLU, ol.MaxMin, ol.Abs, lambda: nn.Softplus(threshold=40)]


def test_top_level_verbs_are_lazy():
    assert orthogonium.lipschitz_bound is lipschitz_bound
    assert {"audit", "certify", "lipschitz_bound"} <= set(dir(orthogonium))
    with pytest.raises(AttributeError, match="no_such_verb"):
        _ = orthogonium.no_such_verb


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_orthogonal_network_is_one_lipschitz(dtype):
    model = nn.Sequential(
        ol.AdaptiveOrthoConv2d(3, 8, 3),
        ol.MaxMin(),
        ol.AdaptiveOrthoConv2d(8, 16, 3, stride=2),
        ol.BatchCentering(16),
        ol.GroupSort(2),
        ol.ConcatResidual(nn.Sequential(ol.AdaptiveOrthoConv2d(8, 8, 3, padding=1, padding_mode="zeros"), ol.MaxMin())),
        ol.AdditiveResidual(ol.AdaptiveOrthoConv2d(16, 16, 3)),
        ol.PrescaledAdditiveResidual(ol.AdaptiveOrthoConv2d(16, 16, 3), init_val=-2.0),
        ol.L2NormResidual(ol.AdaptiveOrthoConv2d(16, 16, 3)),
        ol.AdaptiveOrthoConvTranspose2d(16, 8, 2, stride=2),
        ol.InvertibleDownsampling(2),
        ol.L2NormPool2d(2),
        nn.Flatten(),
        ol.OrthoLinear(128, 10),
    ).to(dtype)
    found = lipschitz_bound(model.eval(), (3, 8, 8))
    assert 0.999 < found.value < 1 + 1e-4
    assert found.steepest <= found.value
    shown = float(str(found).partition("-Lipschitz")[0])
    assert float(found) == found.value <= shown <= found.value + 1e-6


class HandWritten(nn.Module):
    """Input normalization, a coupling by hand, a plain residual: 1/0.2 · max(1, 3) · (1 + 2)."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.1, 0.2, 0.3, 0.4]).double())
        self.register_buffer("std", torch.tensor([0.5, 0.2, 0.25, 0.2]).double())
        self.dense = ol.OrthoLinear(4, 4, dtype=torch.float64)

    def forward(self, x):
        x = (x - self.mean) / self.std
        kept, changed = x.chunk(2, dim=1)
        x = torch.cat([kept, 3 * changed.abs()], dim=1)
        return x + 2 * self.dense(x)


def test_hand_written_graph():
    found = lipschitz_bound(HandWritten(), (4,))
    assert math.isclose(found.value, 5 * 3 * 3, rel_tol=1e-5)
    warned = [step for step in found.steps if step.warnings]
    assert [step.operation for step in warned] == ["add"] and "AdditiveResidual" in warned[0].warnings[0]


@pytest.mark.parametrize(("wrapper", "expected"), [
    (ol.ConcatResidual, 3.0),
    (ol.L2NormResidual, math.sqrt(5)),
    (lambda fn: ol.AdditiveResidual(fn, init_val=0.0), 2.0),
    (lambda fn: ol.PrescaledAdditiveResidual(fn, init_val=1.0), 2.0),
])  # fmt: skip
@pytest.mark.parametrize("as_module", [False, True])
def test_residual_wrappers_of_expanding_branches(wrapper, expected, as_module):
    def fn(x):
        return 3 * x

    model = nn.Sequential(wrapper(Fn(fn) if as_module else fn))
    assert math.isclose(lipschitz_bound(model, (6,)).value, expected, rel_tol=1e-6)


def random_network(seed):
    generator = torch.Generator().manual_seed(seed)

    def pick(options):
        return options[int(torch.randint(len(options), (1,), generator=generator))]

    def activation():
        return pick(ACTIVATIONS)()

    def conv(a, b):
        mode = pick(["zeros", "circular", "reflect", "replicate"])
        return nn.Conv1d(a, b, pick([1, 3]), padding=1, stride=1, padding_mode=mode)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = conv(2, 4), pick([nn.BatchNorm1d, ol.BatchCentering, lambda c: nn.Identity()])(4)
            self.wrap = pick([ol.ConcatResidual, ol.AdditiveResidual, ol.L2NormResidual])
            self.third = self.wrap(nn.Sequential(nn.Identity(), activation()))
            self.act = activation()
            self.pool = pick(
                [nn.AvgPool1d(2, 1), nn.MaxPool1d(3, 2), nn.AdaptiveAvgPool1d(3), nn.Upsample(scale_factor=2)]
            )
            self.cut = int(torch.randint(1, 4, (1,), generator=generator))
            self.mode = pick(["cut", "sum", "cat", "none"])

        def forward(self, x):
            x = self.act(self.second(self.first(x)))
            x = self.third(x)
            if self.mode == "cut":
                a, b = x[:, : self.cut], x[:, self.cut :]
                x = torch.cat([2 * torch.tanh(b), a, b - b.mean(2, keepdim=True)], 1)
            elif self.mode == "sum":
                x = x - 0.5 * self.act(x)
            elif self.mode == "cat":
                x = torch.cat([x, torch.sigmoid(x)], 2)
            return self.pool(x)

    torch.manual_seed(seed)
    model = Net().double()
    if isinstance(model.second, nn.BatchNorm1d):
        model.second.running_var.uniform_(0.2, 3)
    return model.eval()


@pytest.mark.parametrize("seed", range(40))
def test_random_networks_never_exceed_their_bound(seed):
    model = random_network(seed)
    bound, found = lipschitz_bound(model, (2, 6)).value, steepest(model, (2, 6), points=8, rounds=4)
    assert found <= bound * (1 + 1e-9)
    assert bound <= 40 * max(found, 1e-3)  # not vacuous


class Scaled(ol.OrthoLinear):
    def forward(self, input):
        return 1.05 * super().forward(input)


def hooked(layer):
    layer.register_forward_hook(lambda module, inputs, output: 1.05 * output)
    return layer


def pre_hooked(layer):
    layer.register_forward_pre_hook(lambda module, inputs: (1.05 * inputs[0],))
    return layer


def replaced(layer):
    forward = layer.forward
    layer.forward = lambda x: 1.05 * forward(x)
    return layer


def rescaled(layer):
    nn.utils.parametrize.remove_parametrizations(layer, "weight")
    with torch.no_grad():
        layer.weight *= 1.05
    return layer


BREAKERS = [hooked, pre_hooked, replaced, rescaled]


@pytest.mark.parametrize("breaker", BREAKERS)
@pytest.mark.parametrize(("make", "shape"), [
    (lambda: ol.OrthoLinear(6, 6), (6,)),
    (lambda: ol.AdaptiveOrthoConv2d(2, 4, 3, stride=2), (2, 6, 6)),
    (lambda: ol.AdaptiveOrthoConvTranspose2d(4, 2, 2, stride=2), (4, 3, 3)),
])  # fmt: skip
def test_a_layer_scaled_behind_the_back_is_seen(breaker, make, shape):
    model = nn.Sequential(breaker(make())).eval()
    assert math.isclose(lipschitz_bound(model, shape).value, 1.05, rel_tol=1e-3)


def test_a_scaled_subclass_is_measured():
    assert math.isclose(lipschitz_bound(nn.Sequential(Scaled(5, 5)), (5,)).value, 1.05, rel_tol=1e-3)


@pytest.mark.parametrize("breaker", [hooked, pre_hooked])
def test_a_scaled_activation_is_seen(breaker):
    model = nn.Sequential(breaker(ol.Abs()))
    assert math.isclose(lipschitz_bound(model, (4,)).value, 1.05, rel_tol=1e-6)


def test_an_activation_with_another_forward_is_followed():
    assert math.isclose(lipschitz_bound(nn.Sequential(replaced(ol.Abs())), (4,)).value, 1.05, rel_tol=1e-6)


def test_a_broken_guarantee_is_seen():
    layer = ol.ScaledAvgPool2d(2)
    layer.scale *= 1.05
    report = orthogonium.audit(nn.Sequential(layer), (2, 4, 4))
    assert math.isclose(report.lipschitz_bound, 1.05, rel_tol=1e-6) and "guarantee is broken" in report.warnings[0]


class Times100(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 100.0

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 100.0


def test_custom_autograd_functions_and_checkpoints_are_followed():
    def checkpointed(x):
        return torch.utils.checkpoint.checkpoint(lambda z: 3 * z, x, use_reentrant=False)

    assert math.isclose(lipschitz_bound(Fn(Times100.apply), (3,)).value, 100, rel_tol=1e-6)
    assert math.isclose(lipschitz_bound(Fn(checkpointed), (3,)).value, 3, rel_tol=1e-6)


def test_a_rule_that_is_wrong_is_refuted(monkeypatch):
    monkeypatch.setitem(SLOPES, torch.ops.aten.sin.default, (fixed(0.0, 0.25), 0.0))
    with pytest.raises(RefutedError, match="moved apart"):
        lipschitz_bound(Fn(torch.sin), (3,))


def test_the_model_is_left_unchanged():
    model = nn.Sequential(hooked(ol.OrthoLinear(4, 4)), ol.BatchCentering(4), nn.Dropout(0.0)).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    attributes = [set(module.__dict__) for module in model.modules()]
    random_state = torch.get_rng_state()
    lipschitz_bound(model.eval(), (4,))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert [set(module.__dict__) for module in model.modules()] == attributes
    assert torch.equal(random_state, torch.get_rng_state())
    assert nn.Module.__call__ is nn.Module._wrapped_call_impl


def test_wrapped_models():
    model = nn.Sequential(ol.OrthoLinear(4, 4), nn.ReLU())
    wrapped = nn.DataParallel(model)
    assert lipschitz_bound(wrapped, (4,)).value == lipschitz_bound(model, (4,)).value
