"""Certificates of networks of all kinds, attacked at 0.999 of their radii and evaluated in batches of all sizes.

Short here; the long runs (`-m slow`) attack 50,000 points and certify inputs of scales from 1e-3 to 1e6.
"""

import copy
import functools

import pytest
import torch
from torch import nn

from orthogonium import certify
from orthogonium import layers as ol
from orthogonium.attacks import break_certificates
from orthogonium.certification import TraceError, UnboundedError
from tests.certification.fuzz import pieces
from tests.certification.test_certificates import digits, digits_network

SCALES = (1e-3, 1e-1, 1.0, 1e2, 1e4, 1e6)
BATCHES = (1, 2, 32, 2048)


class InPlace(nn.Module):
    """A trained network between lines that write where they read."""

    def __init__(self, body):
        super().__init__()
        self.body = body
        self.register_buffer("scale", torch.linspace(0.5, 2.0, 10))

    def forward(self, x):
        x = x.clone()
        x -= 0.5
        x[:, :, ::2] *= 1.25
        half = x.shape[2] // 2
        x[:, :, :half].add_(0.1 * x[:, :, half:])
        y = self.body(x)
        y *= self.scale
        out = torch.empty_like(y)
        out[:, 5:], out[:, :5] = y[:, 5:], y[:, :5]
        return out.div_(0.5)


def _sharpened(module, args, output):
    output.mul_(3)


def hooked(body):
    body[0].register_forward_pre_hook(lambda module, args: (2 * args[0] - 1,))
    body[-1].register_forward_hook(_sharpened)
    return body


def lora(body):
    head = pieces.LoRA(64, 10, rank=2, scale=2.0)
    with torch.no_grad():
        head.weight.copy_(body[-1].weight)
        head.bias.copy_(body[-1].bias)
    return nn.Sequential(*body[:-1], head)


class OtherWeight(nn.Linear):
    """Called with another weight than its own, on top of its own."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("other", torch.randn_like(self.weight) / 4)

    def forward(self, input):
        plain = nn.Linear(*self.weight.shape[::-1], device="meta")
        own, other = ({"weight": w, "bias": self.bias} for w in (self.weight, self.other))
        return torch.func.functional_call(plain, own, (input,)) - torch.func.functional_call(plain, other, (input,))


def called(body):
    return nn.Sequential(*body[:-1], OtherWeight(64, 10))


def blocks(body):
    edited = pieces.edited(ol.CPLLinear(64, 32), 1.5)
    return nn.Sequential(*body[:-1], edited, pieces.swapped_activation(ol.CPLLinear(64, 32), nn.GELU()), body[-1])


NETWORKS = {
    "plain": (lambda body: body, torch.float32),
    "in place": (InPlace, torch.float32),
    "hooks": (hooked, torch.float32),
    "LoRA": (lora, torch.float32),
    "functional_call": (called, torch.float32),
    "edited blocks": (blocks, torch.float32),
    "double": (InPlace, torch.float64),
    "bfloat16": (lambda body: body, torch.bfloat16),
    "float16": (InPlace, torch.float16),
}


@functools.cache
def trained(samples, epochs):
    torch.manual_seed(0)
    train, (x, _) = digits(samples)
    return digits_network(train, epochs), x


def built(name, samples, epochs):
    wrap, dtype = NETWORKS[name]
    body, x = trained(samples, epochs)
    torch.manual_seed(0)
    return wrap(copy.deepcopy(body)).to(dtype).eval(), x.to(dtype)


def certified(model, x, y, batch=256):
    """Radii by the model's own predictions; none where it is refused."""
    try:
        return certify(model, list(zip(x.split(batch), y.split(batch), strict=True))).radii
    except (UnboundedError, TraceError):
        return torch.zeros(len(x), dtype=torch.float64)


def classes(model, x, batch):
    with torch.no_grad():
        return torch.cat([model(part.clone()).argmax(1) for part in x.split(batch)])


def attacked_and_broken(name, samples, epochs, steps, restarts):
    model, x = built(name, samples, epochs)
    y = classes(model, x, len(x))
    radii = certified(model, x, y)
    claimed = radii > 0
    assert not radii.isnan().any()
    if not claimed.any():
        return 0, 0
    found = break_certificates(model, x[claimed], y[claimed], radii[claimed], steps=steps, restarts=restarts)
    moved = sum(int((classes(model, x[claimed], batch) != y[claimed]).sum()) for batch in BATCHES)
    return restarts * int(found.attacked.sum()), int(found.broken.sum()) + moved


@pytest.mark.filterwarnings("ignore:.* inputs were not attacked")  # in half precision, some radii are too small
@pytest.mark.operators
@pytest.mark.parametrize("name", NETWORKS)
def test_certificates_hold(name):
    points, broken = attacked_and_broken(name, samples=60, epochs=1, steps=10, restarts=2)
    assert broken == 0
    assert points > 0 or name in ("bfloat16", "float16")


@pytest.mark.filterwarnings("ignore:.* inputs were not attacked")  # in half precision, some radii are too small
@pytest.mark.slow
@pytest.mark.operators
def test_fifty_thousand_points(capsys):
    total = 0
    for name in NETWORKS:
        points, broken = attacked_and_broken(name, samples=900, epochs=8, steps=40, restarts=8)
        with capsys.disabled():
            print(f"{name}: {broken} broken of {points}")
        assert broken == 0, name
        total += points
    assert total >= 50_000


class Wide(nn.Module):
    """Classes that are close to each other, so that rounding decides between them."""

    def __init__(self, features=64, classes=10, spread=1e-4):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        self.head = nn.Linear(256, classes)
        with torch.no_grad():
            self.head.weight.copy_(self.head.weight[:1] + spread * torch.randn(classes, 256))

    def forward(self, x):
        return self.head(self.body(x.flatten(1)))


def changed_without_perturbation(model, x, loaders):
    """How many inputs are certified by one loader and of another class in some batch."""
    count = certified_count = 0
    for batch in loaders:
        y = classes(model, x, batch)
        radii = certified(model, x, y, batch)
        claimed = radii > 0
        certified_count += int(claimed.sum())
        for other in BATCHES:
            count += int((claimed & (classes(model, x, other) != y)).sum())
    return count, certified_count


def mixture(samples, features=64):
    """Inputs of all scales, small ones first."""
    x = torch.randn(samples, features)
    scales = torch.tensor(SCALES).repeat_interleave(-(-samples // len(SCALES)))[:samples]
    return x * scales[:, None]


@pytest.mark.operators
@pytest.mark.parametrize("spread", [1e-2, 1e-5])
def test_batches_of_other_sizes(spread):
    changed, certified_count = changed_without_perturbation(Wide(spread=spread).eval(), mixture(510), loaders=(64,))
    assert changed == 0 and certified_count > 0


@pytest.mark.slow
@pytest.mark.operators
def test_batches_from_1_to_2048(capsys):
    for spread in (1e-1, 1e-3, 1e-5, 1e-7):
        for seed in range(3):
            torch.manual_seed(seed)
            model, x = Wide(spread=spread).eval(), mixture(4096)
            changed, count = changed_without_perturbation(model, x, loaders=(1, 64, 2048))
            with capsys.disabled():
                print(f"spread {spread:g}, seed {seed}: {changed} of {count} certified inputs change their class")
            assert changed == 0
