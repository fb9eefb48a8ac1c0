"""`convert(weights="keep")`: where networks start from, and that they come back faster than new ones."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from orthogonium import convert, lipschitz_bound
from orthogonium.data import load_dataset, unit_pixels
from tests.conversion.checks import SMALL, check_bound_and_training
from tests.conversion.networks import MLP, Everything, ResNet18, UNet


@pytest.mark.parametrize("name", SMALL)
def test_kept_weights_keep_the_bound(name):
    check_bound_and_training(*SMALL[name], gain=0.99, weights="keep", steps=10)


def trained_digits(steps=150):
    data = load_dataset("digits")
    train_set, test_set = data.train, data.test
    x, y = unit_pixels(train_set.pixels), train_set.labels
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    steps_to(model, x, y, unit_pixels(test_set.pixels), test_set.labels, steps, temperature=1.0)
    return model, x, y, unit_pixels(test_set.pixels), test_set.labels


def accuracy(model, x, y):
    model.eval()
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


def steps_to(model, x, y, test_x, test_y, steps, temperature=30.0, goal=2.0):
    """Number of steps after which the accuracy is `goal`; `steps` if it is not reached."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        if goal <= 1 and accuracy(model, test_x, test_y) >= goal:
            return step
        model.train()
        index = torch.randint(len(x), (128,), generator=generator)
        loss = F.cross_entropy(temperature * model(x[index]), y[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return steps


def test_kept_weights_start_above_chance_and_need_fewer_steps():
    kept_steps = new_steps = 0
    for seed in range(3):  # one alone may go either way
        torch.manual_seed(seed)
        plain, *data = trained_digits()
        test = data[2:]
        reference = accuracy(plain, *test)
        assert reference > 0.95
        kept = convert(plain, (1, 8, 8), weights="keep")
        new = convert(plain, (1, 8, 8), activation="keep")
        assert accuracy(kept.model, *test) > 0.2  # chance is 0.1
        assert all(change.distance is not None for change in kept.changes if "Conv2d" in change.before)
        kept_steps += steps_to(kept.model, *data, 150, goal=reference - 0.02)
        new_steps += steps_to(new.model, *data, 150, goal=reference - 0.02)
        assert lipschitz_bound(kept.model, (1, 8, 8)).value <= 1 + 1e-4
    assert kept_steps < new_steps


def test_kept_weights_of_a_method_that_scales_keep_the_accuracy():
    torch.manual_seed(0)
    plain, *data = trained_digits()
    scaled = convert(plain, (1, 8, 8), "aol", weights="keep")
    assert scaled.bound <= 1 + 1e-4 and accuracy(scaled.model, *data[2:]) >= accuracy(plain, *data[2:]) - 0.01


@pytest.mark.parametrize("make", [lambda: ResNet18(width=4), lambda: UNet(width=4), Everything, MLP])
def test_methods_that_scale_keep_the_network_up_to_a_factor(make):
    plain = make()
    shape = {"ResNet18": (3, 32, 32), "UNet": (1, 16, 16), "Everything": (3, 8, 8), "MLP": (1, 8, 8)}[
        type(plain).__name__
    ]
    if isinstance(plain, Everything):  # each group has a factor of its own, the same for equal ones
        plain.depthwise.weight.data[1:] = plain.depthwise.weight.data[:1]
    plain.train()
    for _ in range(3):  # statistics that are not those of the start
        plain(1 + 2 * torch.randn(16, *shape))
    plain.double().eval()
    found = convert(plain, shape, "spectral" if isinstance(plain, MLP) else "aol", weights="keep")
    x = torch.randn(8, *shape, dtype=torch.float64)
    after, before = found.model.eval()(x), plain(x)
    if isinstance(plain, MLP | Everything):  # without the softmax at the end, up to a constant for each sample
        before = before.log() if isinstance(plain, MLP) else before
        after, before = after - after.mean(1, keepdim=True), before - before.mean(1, keepdim=True)
    assert F.cosine_similarity(after.flatten(), before.flatten(), dim=0) > 1 - 1e-6
    assert found.agreement > 1 - 1e-6


def test_the_state_of_a_kept_network_has_its_units():
    def network():
        layers = [nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.GELU(), nn.Flatten(), nn.Linear(64, 4)]
        return nn.Sequential(*layers, nn.Tanh(), nn.Linear(4, 3))

    one, other = network(), network()
    with torch.no_grad():
        one[0].weight.mul_(3)
    kept = convert(one, (2, 4, 4), "aol", weights="keep").model.eval()
    x = torch.randn(8, 2, 4, 4)
    for options in ({"weights": "keep"}, {"activation": "keep"}):
        into = convert(other, (2, 4, 4), "aol", **options).model.eval()
        into.load_state_dict(kept.state_dict())
        torch.testing.assert_close(into(x), kept(x))
