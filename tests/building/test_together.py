"""`build_together` changes where weights are built, and nothing else."""

import copy
import io
import threading
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from orthogonium import build_once, build_together
from orthogonium.layers import OrthoLinear
from tests.building.passes import accumulate, assert_same_gradients, gradients, loss_of, plain_gradients
from tests.building.test_gradients import CASES, three


def count_builds(layers, monkeypatch):
    kernel = type(layers[0].parametrizations.weight[0].kernel)
    built, build = [], kernel.build
    monkeypatch.setattr(kernel, "build", lambda self, *raw: built.append(1) or build(self, *raw))
    return built


@pytest.mark.parametrize("name", CASES)
def test_gradients(name):
    layers, inputs = three(name, torch.float64)
    expected = plain_gradients(layers, inputs)
    build_together(layers)
    accumulate(layers, inputs)
    assert_same_gradients(gradients(layers), expected, 1e-12)


def test_one_build_for_each_call_until_it_is_removed(monkeypatch):
    layers, inputs = three("AOC", torch.float64)
    built = count_builds(layers, monkeypatch)
    handle = build_together(layers)
    accumulate(layers, inputs)
    assert len(built) == 4
    layers[0](inputs[0])  # no call of the whole
    assert len(built) == 5
    handle.remove()
    layers(inputs[0])
    assert len(built) == 8


class _Editing(nn.Module):
    """Writes to the second layer, in a way that leaves no trace, between its two uses."""

    def __init__(self, of):
        super().__init__()
        self.first, self.second = OrthoLinear(4, 4, bias=False), OrthoLinear(4, 4, bias=False)
        self.of = of

    def forward(self, x):
        x = self.second(self.first(x))
        if self.of == "raw":
            self.second.parametrizations.weight.original.data.copy_(torch.eye(4))
        else:
            self.second.weight.data.mul_(3)
        return self.second(x)


@pytest.mark.parametrize("of", ["raw", "weight"])
def test_edits_of_data_within_a_call(of):
    model, x = _Editing(of), torch.randn(3, 4)
    plain = copy.deepcopy(model)
    build_together(model)
    torch.testing.assert_close(model(x), plain(x))


def test_compiled_parts_build_as_usual():
    torch.compiler.reset()
    layers, x = nn.ModuleList([OrthoLinear(4, 4) for _ in range(3)]), torch.randn(3, 4)
    compiled = [torch.compile(layers[0], backend="eager", fullgraph=True), *layers[1:]]
    layers.forward = lambda x: compiled[2](compiled[1](compiled[0](x)))
    expected = layers(x)
    build_together(layers)
    for _ in range(2):
        y = layers(x)
        torch.testing.assert_close(y, expected)
        y.sum().backward()


def test_calls_before_one_backward_pass():
    layers, inputs = three("AOC", torch.float64)
    expected = plain_gradients(layers, inputs)
    build_together(layers)
    sum(loss_of(layers, x) for x in inputs).backward()
    assert_same_gradients(gradients(layers), expected, 1e-12)


def test_unused_layers_get_no_gradient():
    layers, inputs = three("AOC-strided", torch.float64)
    build_together(layers)
    layers.forward = lambda x: [layer(x) for layer in layers][0]
    layers(inputs[0]).sum().backward()
    grads = gradients(layers)
    assert all((grads[name] is None) == (not name.startswith("0")) for name in grads)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_activation_checkpoints(reentrant, whole):
    layers, inputs = three("AOC", torch.float64)
    expected = plain_gradients(layers, inputs)
    build_together(layers)
    for x in inputs:
        x = x.clone().requires_grad_()
        if whole:
            loss_of(lambda x: checkpoint(layers, x, use_reentrant=reentrant), x).backward()
        else:
            layers.forward = lambda x: torch.stack([checkpoint(m, x, use_reentrant=reentrant) for m in layers])
            loss_of(layers, x).backward()
    assert_same_gradients(gradients(layers), expected, 1e-12)


def test_second_derivatives():
    layers, inputs = three("AOC-strided", torch.float64)
    raw = layers[0].parametrizations.weight.original0
    other = layers[1].parametrizations.weight.original0

    def second():
        y = layers(inputs[0])
        grads = torch.autograd.grad((y[0] * y[1]).sin().sum(), [raw, other], create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in grads), [raw, other])

    expected = second()
    build_together(layers)
    for ours, plain in zip(second(), expected, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-10, atol=1e-10)


def test_second_derivatives_of_a_loss_that_is_linear_in_one_weight():
    """They reach its raw parameters beside the weight, which gets no gradient itself."""
    layers, (x, *_) = three("AOC-strided", torch.float64)
    raw = [layer.parametrizations.weight.original0 for layer in layers]
    layers.forward = lambda x: [layer(x) for layer in layers]

    def penalty():
        linear, other, _ = layers(x)
        found = torch.autograd.grad((other.detach() * linear).sum() + other.sin().sum(), raw[:2], create_graph=True)
        return sum(g.square().sum() for g in found)

    expected = torch.autograd.grad(penalty(), raw[:2])
    build_together(layers)
    penalty().backward()
    for p, q in zip(raw, expected, strict=False):
        torch.testing.assert_close(p.grad, q, rtol=1e-10, atol=1e-10)
    assert raw[2].grad is None


def test_gradients_inside_of_a_call_without_any():
    layers, inputs = three("AOC", torch.float64)

    def forward(x):
        with torch.enable_grad():
            loss = sum(layer(x).square().sum() + layer(x).sum() for layer in layers)
            return torch.autograd.grad(loss, list(layers.parameters()), allow_unused=True)

    layers.forward = forward
    expected = layers(inputs[0])
    build_together(layers)
    with torch.no_grad():
        torch.testing.assert_close(layers(inputs[0]), expected, rtol=1e-12, atol=1e-12)


def test_evaluation_keeps_its_weights(monkeypatch):
    layers, inputs = three("AOC", torch.float64)
    built = count_builds(layers, monkeypatch)
    build_together(layers.eval())
    with torch.no_grad():
        first = layers(inputs[0])
        assert len(built) == 3  # each layer its own, once
        torch.testing.assert_close(layers(inputs[0]), first, rtol=0, atol=0)
    assert len(built) == 3


def test_raw_parameters_that_change_inside_of_a_call():
    layers, inputs = three("AOC", torch.float64)
    build_together(layers)

    def change(module, args):
        with torch.no_grad():
            module.parametrizations.weight.original0.copy_(layers[2].parametrizations.weight.original0)

    layers[1].bias.data.copy_(layers[2].bias)
    layers[1].register_forward_pre_hook(change)
    y = layers(inputs[0])
    torch.testing.assert_close(y[1], y[2])


def test_a_constant_that_changes_inside_of_a_call():
    layers, inputs = three("AOC", torch.float64)
    expected = layers(inputs[0])[1] - layers[1].bias.view(-1, 1, 1)
    build_together(layers)
    layers[1].register_forward_pre_hook(lambda module, args: setattr(module, "lipschitz", 2.0))
    torch.testing.assert_close(layers(inputs[0])[1] - layers[1].bias.view(-1, 1, 1), 2 * expected)


def test_a_call_that_fails():
    layers, inputs = three("AOC", torch.float64)
    expected = plain_gradients(layers, inputs)
    build_together(layers)
    with pytest.raises(ValueError, match="takes images"):
        layers(inputs[0][:, :1])
    accumulate(layers, inputs)
    assert_same_gradients(gradients(layers), expected, 1e-12)


@pytest.mark.parametrize("ends", ["removed", "interrupted"])
def test_a_call_whose_end_is_not_heard_of(ends):
    """Its weights are not used in later calls."""
    layers, inputs = three("AOC-strided", torch.float64)
    handle = build_together(layers)

    def end(*arguments):
        if ends == "interrupted":
            raise KeyboardInterrupt
        handle.remove()

    hook = layers[1].register_forward_hook(end)
    with pytest.raises(KeyboardInterrupt) if ends == "interrupted" else nullcontext():
        layers(inputs[0])
    hook.remove()
    for _ in range(2):
        with torch.no_grad():
            for p in layers.parameters():
                p.data.add_(torch.randn_like(p))
        layers.zero_grad()
        expected = plain_gradients(layers, inputs)
        accumulate(layers, inputs)
        assert_same_gradients(gradients(layers), expected, 1e-12)


def test_a_call_inside_of_a_call():
    layers, (x, *_) = three("AOC-strided", torch.float64)
    forward, depth = layers.forward, []

    def twice(x):
        if depth:
            return forward(x)
        depth.append(1)
        before, inside, after = layers[0](x), layers(x), layers[0](x)
        depth.clear()
        return torch.stack([before, *inside, after])

    layers.forward = twice
    loss_of(layers, x).backward()
    expected = {name: g.clone() for name, g in gradients(layers).items()}
    layers.zero_grad()
    build_together(layers)
    loss_of(layers, x).backward()
    assert_same_gradients(gradients(layers), expected, 1e-12)


def test_inside_of_build_once(monkeypatch):
    layers, inputs = three("AOC", torch.float64)
    expected = plain_gradients(layers, inputs)
    built = count_builds(layers, monkeypatch)
    build_together(layers)
    layers(inputs[0])
    with build_once(layers):
        accumulate(layers, inputs)
    assert len(built) == 2
    assert_same_gradients(gradients(layers), expected, 1e-12)


def test_copies_and_pickles():
    layers, inputs = three("AOC", torch.float64)
    expected = plain_gradients(layers, inputs)
    build_together(layers)
    layers(inputs[0])
    file = io.BytesIO()
    torch.save(layers, file)
    file.seek(0)
    for other in (copy.deepcopy(layers), torch.load(file, weights_only=False)):
        accumulate(other, inputs)
        assert_same_gradients(gradients(other), expected, 1e-12)
    assert all(p.grad is None for p in layers.parameters())


def test_threads():
    layers, inputs = three("AOC", torch.float64)
    expected = [layers(x) for x in inputs]
    build_together(layers)
    results = [None] * 4

    def run(i):
        for _ in range(5):
            results[i] = layers(inputs[i])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for ours, plain in zip(results, expected, strict=True):
        torch.testing.assert_close(ours, plain)


def test_compiled():
    torch.compiler.reset()
    layers, inputs = three("AOC", torch.float64)
    expected = plain_gradients(layers, inputs)
    build_together(layers)
    accumulate(torch.compile(layers, backend="aot_eager", fullgraph=True), inputs)
    assert_same_gradients(gradients(layers), expected, 1e-12)
