"""In eval a constrained layer is served the weight of its raw parameters as they are: see `layers/eval_cache.py`."""

import copy

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.nn.utils import prune

from tests.contracts.test_contracts import layers, make


def count_builds(layer):
    """Count the evaluations of the constraint from now on."""
    kernel = layer.parametrizations.weight[0].kernel
    count = []
    build = kernel.build
    kernel.build = lambda *raw: count.append(1) or build(*raw)
    return count


@layers
def test_eval_builds_once(name):
    layer, x = make(name)
    layer.eval()
    count = count_builds(layer)
    with torch.no_grad():
        for _ in range(3):
            layer(x)
    assert len(count) == 1
    with torch.inference_mode():
        layer(x)
    assert len(count) == 1


@layers
def test_frozen_layers_build_once_also_with_gradients(name):
    layer, x = make(name)
    layer.eval().requires_grad_(False)
    count = count_builds(layer)
    for _ in range(3):
        layer(x.requires_grad_()).sum().backward()
    assert len(count) == 1 and x.grad is not None


def _double_in_place(layer):
    for p in layer.parametrizations.parameters():
        p.mul_(torch.linspace(0.5, 2, p.numel(), dtype=p.dtype).view_as(p))


def _double_data(layer):
    for p in layer.parametrizations.parameters():
        p.data.mul_(torch.linspace(0.5, 2, p.numel(), dtype=p.dtype).view_as(p))


def _swap_data(layer):
    for p in layer.parametrizations.parameters():
        p.data = p.data * torch.linspace(0.5, 2, p.numel(), dtype=p.dtype).view_as(p)


def _load(layer):
    layer.load_state_dict({k: v * torch.linspace(0.5, 2, v.numel()).view_as(v) for k, v in layer.state_dict().items()})


def _optimize(layer):
    optimizer = torch.optim.SGD(layer.parametrizations.parameters(), lr=1.0)
    for p in layer.parametrizations.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()


def assert_noticed(layer, x, edit):
    """In eval the layer applies another weight after the edit, and the one that training would build."""
    layer.eval()
    with torch.no_grad():
        before = layer(x)
        edit(layer)
        after = layer(x)
        expected = copy.deepcopy(layer).train()(x)
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, expected)


@layers
@pytest.mark.parametrize("edit", [_double_in_place, _double_data, _swap_data, _load, _optimize])
def test_eval_never_serves_a_stale_weight(name, edit):
    assert_noticed(*make(name), edit)


@layers
def test_cache_survives_edits_of_what_it_served(name):
    layer, x = make(name)
    layer.eval()
    with torch.no_grad():
        before = layer(x)
        layer.weight.mul_(3)
        torch.testing.assert_close(layer(x), before)


@layers
def test_eval_does_not_keep_fake_weights(name):
    layer, x = make(name)
    layer.eval()
    with torch.no_grad():
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            assert isinstance(layer(mode.from_tensor(x)), FakeTensor)
        assert torch.isfinite(layer(x)).all()


@layers
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("place", ["weight.0", "weight"])
def test_hooks_of_the_constraint_are_called(name, place, training):
    layer, x = make(name)
    layer.train(training)
    layer.parametrizations.get_submodule(place).register_forward_hook(lambda _, raw, weight: weight * 0)
    with torch.no_grad():
        before = layer(x)
        for p in layer.parametrizations.parameters():
            p.mul_(torch.linspace(0.5, 2, p.numel()).view_as(p))
        assert torch.equal(layer(x), before)


@layers
@pytest.mark.parametrize("training", [True, False])
def test_pruned_raw_parameters(name, training):
    """`torch.nn.utils.prune` keeps a parameter of another name, and sets what is left of it at each call."""
    layer, x = make(name)
    other, chain = copy.deepcopy(layer.train(training)), layer.parametrizations.weight
    first = next(iter(chain._parameters))
    with torch.no_grad():
        layer(x)
        prune.random_unstructured(chain, first, amount=1)
        other.parametrizations.weight._parameters[first].mul_(getattr(chain, f"{first}_mask"))
        assert torch.equal(layer(x), other(x))


@layers
@pytest.mark.parametrize("training", [True, False])
def test_tensors_in_the_place_of_parameters(name, training):
    """As replicas of other devices and dual numbers are set, each at a time."""
    layer, x = make(name)
    chain = layer.train(training).parametrizations.weight
    with torch.no_grad():
        for key in list(chain._parameters):
            raw = chain._parameters[key].detach() * 1.5
            getattr(chain, key).copy_(raw)
            expected = layer(x)
            delattr(chain, key)
            setattr(chain, key, raw)
            assert torch.equal(layer(x), expected)


@layers
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own
def test_eval_does_not_lose_forward_derivatives(name):
    """no_grad leaves them on. Most constraints refuse them; none may serve the kept weight without its tangent."""
    layer, x = make(name)
    layer.eval()
    raw = {k: p.detach() for k, p in layer.named_parameters() if "original" in k}
    with torch.no_grad(), forward_ad.dual_level():
        layer(x)
        dual = {k: forward_ad.make_dual(p, torch.randn_like(p)) for k, p in raw.items()}
        try:
            y = functional_call(layer, dual, (x,))
        except (RuntimeError, NotImplementedError) as refusal:
            assert "forward" in str(refusal)
        else:
            assert forward_ad.unpack_dual(y).tangent is not None
