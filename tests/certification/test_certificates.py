"""Certificates: exact for linear models, safe for all, and no attack beats them."""

import math
import time
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from orthogonium import certify, lipschitz_bound
from orthogonium import layers as ol
from orthogonium.attacks import break_certificates
from orthogonium.errors import ParameterError, ShapeError
from orthogonium.losses import LossXent


def test_exact_for_a_linear_model():
    model = nn.Linear(5, 3).double().eval()
    x = torch.randn(20, 5, dtype=torch.float64)
    labels = torch.randint(3, (20,))
    found = certify(model, [(x[:12], labels[:12]), (x[12:], labels[12:])], forward_error=0.0)
    logits, w = model(x).detach(), model.weight.detach()
    for i in range(20):
        pairs = [
            (logits[i, labels[i]] - logits[i, j]) / (w[labels[i]] - w[j]).norm() for j in range(3) if j != labels[i]
        ]
        assert found.pair_radii[i].item() == pytest.approx(min(pairs).item(), rel=1e-9)
        coarse = min(logits[i, labels[i]] - logits[i, j] for j in range(3) if j != labels[i])
        norm = torch.linalg.matrix_norm(w, ord=2)
        assert found.coarse_radii[i].item() == pytest.approx((coarse / (math.sqrt(2) * norm)).item(), rel=1e-9)
    assert torch.equal(found.predictions, logits.argmax(1)) and torch.equal(found.labels, labels)
    assert torch.equal(found.correct, found.predictions == labels)
    assert ((found.radii > 0) <= found.correct).all()
    assert (found.radii[found.correct] >= found.coarse_radii[found.correct]).all()


class Normalized(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body
        self.register_buffer("std", torch.tensor([0.5, 0.25]))

    def forward(self, x):
        return self.body((x - 0.5) / self.std)


def test_head_is_found_wherever_nested_and_input_scaling_counts():
    head = nn.Sequential(nn.Sequential(ol.OrthoLinear(2, 2)))
    plain = nn.Sequential(ol.OrthoLinear(2, 2), head).eval()
    model = Normalized(plain).eval()
    x = torch.rand(6, 2)
    found = certify(model, [(x, model(x).argmax(1))])
    assert torch.allclose(found.bound.head.weight, head[0][0].weight.detach().double())
    assert math.isclose(found.bound.head.features_bound, 4, rel_tol=1e-5)
    inner = certify(plain, [((x - 0.5) / model.std, model(x).argmax(1))])
    assert torch.allclose(4 * found.radii, inner.radii, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("tail", [nn.ReLU(), nn.Softmax(dim=1)])
def test_what_follows_a_dense_layer_makes_it_no_head(tail):
    model = nn.Sequential(ol.OrthoLinear(4, 3), tail).eval()
    x = torch.randn(5, 4)
    found = certify(model, [(x, model(x).argmax(1))])
    assert found.bound.head is None and found.pair_radii is None
    assert torch.equal(found.radii, found.coarse_radii)


def test_rounding_is_deducted():
    model = nn.Sequential(ol.OrthoLinear(8, 8), ol.MaxMin(), ol.OrthoLinear(8, 3)).eval()
    x = torch.randn(30, 8)
    labels = model(x).argmax(1)
    found, ideal = certify(model, [(x, labels)]), certify(model, [(x, labels)], forward_error=0.0)
    assert 0 < found.forward_error < 1e-4
    assert (found.radii < ideal.radii).all()
    assert "Deducted" in str(found)
    assert found.certified_accuracy_at(0.0) == found.certified_accuracy_at(-0.0) <= found.accuracy


def test_bad_input():
    model = nn.Linear(3, 2)
    data = [(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))]
    with pytest.raises(ParameterError, match="eval"):
        certify(model, data)
    model.eval()
    with pytest.raises(ParameterError, match="no batch"):
        certify(model, [])
    with pytest.raises(ParameterError, match="eps"):
        certify(model, data, eps=[-1.0])
    with pytest.raises(ShapeError, match="pair"):
        certify(model, [(torch.randn(4, 3),)])
    labels = torch.tensor([0, 1])
    with pytest.raises(ShapeError, match="one shape"):
        certify(nn.Sequential(nn.Identity()).eval(), [(torch.randn(2, 3), labels), (torch.randn(2, 4), labels)])


def digits(samples):
    datasets = pytest.importorskip("sklearn.datasets")
    data = datasets.load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(data.images, dtype=torch.float32)[order, None] / 16
    y = torch.tensor(data.target)[order]
    return (x[samples:], y[samples:]), (x[:samples], y[:samples])


def digits_network(train, epochs):
    model = nn.Sequential(
        ol.AdaptiveOrthoConv2d(1, 8, 3, stride=2),
        ol.MaxMin(),
        ol.AdaptiveOrthoConv2d(8, 16, 3, stride=2),
        ol.BatchCentering(16),
        ol.MaxMin(),
        nn.Flatten(),
        ol.OrthoLinear(64, 10),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loss = LossXent(n_classes=10)
    x, y = train
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for index in torch.randperm(len(x), generator=generator).split(128):
            optimizer.zero_grad()
            loss(model(x[index]), y[index]).backward()
            optimizer.step()
    return model.eval()


def test_no_attack_beats_the_certificates_of_a_trained_network():
    train, (x, y) = digits(200)
    model = digits_network(train, epochs=4)
    found = certify(model, [(x, y)], eps=[0.1])
    assert found.accuracy > 0.8 and found.certified_accuracy[0] > 0.3
    assert lipschitz_bound(model, (1, 8, 8)).value < 1 + 1e-4
    attacked = break_certificates(model, x, y, found.radii)
    assert attacked.attacked.float().mean() > 0.8 and not attacked.broken.any()
    wide = break_certificates(model, x, y, 4 * found.radii, steps=20)
    assert wide.broken.float().mean() > 0.5  # the attack works where nothing is certified


# Method → how often it runs, each time from other random starts. Where starts are not random, once.
ATTACKS = {
    "foolbox-pgd": 24, "adam-pgd": 20, "noise": 12, "fgm": 1, "bim": 6, "ddn": 1, "cw": 1, "deepfool": 1,
    "autoattack": 1,
}  # fmt: skip


@pytest.mark.slow
def test_no_attack_of_independent_libraries_beats_the_certificates(capsys):
    pytest.importorskip("pyautoattack")
    if find_spec("foolbox") is None:
        pytest.skip("foolbox is not installed")
    train, (x, y) = digits(900)
    model = digits_network(train, epochs=30)
    radii = certify(model, [(x, y)]).radii
    broken, points = {}, 0
    for method, restarts in ATTACKS.items():
        began = time.perf_counter()
        found = break_certificates(model, x, y, radii, method=method, restarts=restarts, batch_size=len(x))
        broken[method] = int(found.broken.sum())
        points += restarts * int(found.attacked.sum())
        with capsys.disabled():
            print(f"{method}: {restarts} times {found}, {time.perf_counter() - began:.0f} s")
    ours = break_certificates(model, x, y, radii, steps=100, restarts=10)
    points += 10 * int(ours.attacked.sum())
    with capsys.disabled():
        print(f"{ours}, {points} attacked points in all")
    assert not any(broken.values()) and not ours.broken.any()
    assert points >= 50_000
    # The same attacks do break what is claimed too widely.
    certified = radii > 0
    x, y, wide = x[certified][:100], y[certified][:100], 8 * radii[certified][:100]
    for method in ("foolbox-pgd", "ddn", "cw", "deepfool"):
        assert break_certificates(model, x, y, wide, method=method).broken.float().mean() > 0.5
