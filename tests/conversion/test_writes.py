"""Writes into tensors that are read elsewhere are refused, by way of whatever view; others are converted."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from orthogonium import convert


class Between(nn.Module):
    """Two dense layers with code between them."""

    def __init__(self, code):
        super().__init__()
        self.a, self.b, self.code = nn.Linear(4, 4), nn.Linear(4, 3), code

    def forward(self, x):
        return self.b(self.code(self.a(x)))


def write(view, change=lambda v: v.mul_(0.5)):
    """The value itself, of which a view was written into."""

    def code(y):
        change(view(y))
        return y

    return code


def read_by_view(y):
    z = y.view(-1, 2, 2)
    y.mul_(3.0)
    return z.flatten(1)


def augmented(y):
    v = y.view(-1, 2, 2)
    v += 1
    v *= 3
    return y


LOST = {
    "itself": write(lambda y: y),
    "inplace of a slice": write(lambda y: y[:, :2], lambda v: F.relu(v, inplace=True)),
    "view": write(lambda y: y.view(-1, 2, 2)),
    "reshape": write(lambda y: y.reshape(-1, 2, 2)),
    "unflatten, flatten": write(lambda y: y.unflatten(1, (2, 2)).flatten(1)),
    "transpose": write(lambda y: y.transpose(0, 1)),
    "permute": write(lambda y: torch.permute(y, (1, 0))),
    "t": write(lambda y: y.t()),
    "narrow": write(lambda y: y.narrow(1, 0, 2)),
    "select": write(lambda y: y.select(1, 0)),
    "unsqueeze, squeeze": write(lambda y: y.unsqueeze(1).squeeze(1)),
    "detach": write(lambda y: y.detach()),
    "expand_as": write(lambda y: y.expand_as(y)),
    "contiguous": write(lambda y: y.contiguous()),
    "chunk": write(lambda y: y.chunk(2, 1)[0]),
    "split": write(lambda y: torch.split(y, 2, 1)[1]),
    "unbind": write(lambda y: y.unbind(1)[3]),
    "diagonal": write(lambda y: y.view(-1, 2, 2).diagonal(dim1=1, dim2=2)),
    "read by a view": read_by_view,
    "augmented": augmented,
}


@pytest.mark.parametrize("weights", ["new", "keep"])
@pytest.mark.parametrize("name", LOST)
def test_writes_that_others_read_are_refused(name, weights):
    found = convert(Between(LOST[name]), (4,), "spectral", weights=weights)
    assert any("reads afterwards" in refusal.reason and "y = 3 * y" in refusal.reason for refusal in found.refused)


def halves(y):
    u, v = y.chunk(2, 1)
    v += F.relu(u)
    return torch.cat([u, v], 1)


READ = {
    "the result": lambda y: F.relu(y.view(-1, 4), inplace=True),
    "a copy": write(lambda y: y.clone()),
    "sizes": lambda y: F.relu(y, inplace=True).view(y.size(0), -1),
    "another half": halves,
    "in turn": lambda y: F.relu(y, inplace=True).add_(1.0).mul_(0.5),
}


@pytest.mark.parametrize("name", [name for name in READ if name != "a copy"])
def test_writes_whose_results_are_read_are_converted(name):
    plain = Between(READ[name]).eval().requires_grad_(False)
    found = convert(plain, (4,), "spectral", weights="keep")
    assert found.refused == () and found.bound <= 1 + 1e-4 and found.agreement > 1 - 1e-6


@pytest.mark.parametrize("code", [READ["a copy"], write(torch.relu, lambda v: v)])
def test_what_nobody_reads_is_named(code):
    found = convert(Between(code), (4,))
    assert [r.reason.split(".")[0] for r in found.refused] == ["Nothing reads its result"]
    assert all(change.name in ("a", "b") for change in found.changes)
