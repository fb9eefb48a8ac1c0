"""Small networks as people write them, and what is asked of each after its conversion."""

import copy

import torch
import torch.nn.functional as F

from orthogonium import convert, lipschitz_bound
from tests.conversion.networks import MLP, VGG11, ResNet18, UNet

SMALL = {
    "ResNet-18": (lambda: ResNet18(width=4), (3, 32, 32)),
    "VGG-11": (lambda: VGG11(width=4, hidden=64, pooled=2), (3, 32, 32)),
    "U-Net": (lambda: UNet(width=4), (1, 16, 16)),
    "MLP": (MLP, (1, 8, 8)),
}


def train(model, shape, steps=20, batch=4, temperature=None, lr=1e-2):
    """Fit a fixed batch; the loss in eval mode, before and after, with statistics that have come to rest."""
    x = torch.randn(batch, *shape)
    output = model.eval()(x)
    labels = torch.arange(batch) % output.shape[1] if output.dim() == 2 else (x[:, 0] > 0).long()
    temperature = temperature or 1 / output.detach().std()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def loss():
        return F.cross_entropy(temperature * model(x), labels)

    @torch.no_grad()
    def loss_at_rest():
        model.train()
        for _ in range(30):
            model(x)
        model.eval()
        return loss().item()

    first = loss_at_rest()
    for _ in range(steps):
        model.train()
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    return first, loss_at_rest()


def check_bound_and_training(make, shape, gain=0.9, temperature=None, lr=1e-2, **options):
    plain = make()
    before = copy.deepcopy(plain.state_dict())
    found = convert(plain, shape, **options)
    assert found.refused == () and found.bound <= 1 + 1e-4
    assert all(torch.equal(value, before[key]) for key, value in plain.state_dict().items())
    x = torch.randn(2, *shape)
    assert found.model.eval()(x).shape == plain.eval()(x).shape
    first, last = train(found.model, shape, temperature=temperature, lr=lr)
    assert last < gain * first
    assert lipschitz_bound(found.model, shape).value <= 1 + 1e-4
    return found
