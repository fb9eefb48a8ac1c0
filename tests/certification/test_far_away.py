"""Functions that are harmless wherever a search looks, and steep a million away: only rules can be right about them."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from orthogonium import certify, lipschitz_bound
from orthogonium.certification import TraceError, UnboundedError
from orthogonium.layers import CPLLinear
from tests.certification.networks import Fn


def gate(x):
    return F.relu(x - 1e6)


def moved_constant(x):
    c = torch.full((4,), 1e6, dtype=x.dtype)
    above = x > c
    c.add_(1e5)
    return torch.where(above, x, c)


def spread(x):
    n = len(x)
    places = torch.arange(n)[:, None], torch.arange(5)[None]
    return torch.zeros(n, 5, dtype=x.dtype).index_put(places, gate(x)[:, :1], accumulate=True)


def overlapping_windows(x):
    h = gate(x) * 1
    h.unfold(1, 2, 1).mul_(2)
    return h


def read_while_written(x):
    h = gate(x) * 1
    h[:, 1:].add_(h[:, :-1])
    return h


def other_memory(x):
    h = gate(x) * 1
    h.set_(gate(x) * 50)
    return h


def negative_energy(x):
    e = F.avg_pool2d(gate(x)[:, None, :, None].square(), (1, 1), (2, 1), divisor_override=-1)
    return (e + 100).clamp_min(0).sqrt().flatten(1)


def hidden_gap(x):
    return torch.where(x > 1e6, x + 1e12, torch.full_like(x, 1e12 + 1e6 + 3e-3)) - 1e12


def swallowed(x):
    try:
        large = float(x[0, 0]) > 1e6
    except Exception:  # noqa: BLE001
        large = False
    return x * 50 if large else x * 1


def in_a_thread(x):
    h = gate(x)
    s = torch.zeros_like(h)
    thread = threading.Thread(target=lambda: s.copy_(h))
    thread.start()
    thread.join()
    return h * 0 + s


# function, shape, two inputs (n,) that are moved apart
CASES = {
    "moved constant": (moved_constant, (4,), 1e6, 1e6 + 1e-3),
    "spread": (spread, (4,), torch.tensor([1e6 + 1, 0, 0, 0]), torch.tensor([1e6 + 2, 0, 0, 0])),
    "cumsum of integers": (
        lambda x: torch.cumsum(x * 1e-6, 1, dtype=torch.int32) * 1.0, (1,), 1e6 - 1e-3, 1e6 + 1e-3
    ),
    "mean in half": (
        lambda x: gate(x)[:, :, None].mean(2, dtype=torch.float16).to(x.dtype), (2,), 1e6 + 2048.9, 1e6 + 2049.1
    ),
    "overlapping windows": (
        overlapping_windows, (3,), torch.tensor([0, 1e6 + 1, 0]), torch.tensor([0, 1e6 + 2, 0])
    ),
    "read while written": (read_while_written, (400,), 1e6 + 1, 1e6 + 2),
    "other memory": (other_memory, (4,), 1e6 + 1, 1e6 + 2),
    "negative energy": (negative_energy, (4,), 1e6 + 9.99, 1e6 + 10.0),
    "hidden gap": (hidden_gap, (2,), 1e6, 1e6 + 1e-6),
    "mish": (lambda x: (gate(x) - 5) - F.mish(gate(x) - 5), (1,), 1e6 + 5 - 2.2564, 1e6 + 5 - 2.2562),
    "swallowed": (swallowed, (2,), 1e6 + 1, 1e6 + 2),
    "in a thread": (in_a_thread, (2,), 1e6 + 1, 1e6 + 2),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("name", CASES)
def test_sound_or_refused(name):
    fn, shape, a, b = CASES[name]
    model = Fn(fn).double().eval()
    model.register_buffer("kind", torch.zeros((), dtype=torch.float64))
    x, y = (torch.as_tensor(t, dtype=torch.float64).expand(2, *shape).clone() for t in (a, b))
    quotient = float((fn(x.clone()) - fn(y.clone()))[0].norm() / (x - y)[0].norm())
    try:
        bound = lipschitz_bound(model, shape).value
    except (TraceError, UnboundedError):
        return
    assert bound >= quotient * (1 - 1e-6)


def test_the_slopes_of_blocks_are_those_at_their_own_shape():
    block = CPLLinear(6, dtype=torch.float64).eval()
    block.activation = Fn(lambda z: -2 * z if z.dim() > 2 else F.relu(z))
    assert lipschitz_bound(block, (3, 6)).value > 4.9


W = torch.eye(2).double()


def edited_later(x):
    k = torch.ones(2, dtype=x.dtype)
    y = (x @ W) * k
    k.fill_(1e-3)
    return y


def by_place(x):
    return (gate(x) @ W) * (1 + 99 * (torch.arange(len(x))[:, None] > 0).to(x.dtype))


def permuted_by_place(x):
    return gate(x).gather(1, (torch.arange(2)[None] + torch.arange(len(x))[:, None] % 2) % 2)


@pytest.mark.parametrize(("fn", "offset"), [(edited_later, 0.0), (by_place, 1e6), (permuted_by_place, 1e6)])
def test_certificates_of_single_samples(fn, offset):
    """One sample in a batch of wrong ones, at a place where nobody looks first."""
    x = torch.full((32, 2), offset, dtype=torch.float64)
    x[:, 1] += 1
    x[20] = torch.tensor([offset + 2.0, offset + 1.0])
    model = nn.Sequential(Fn(fn)).double().eval()
    model.register_buffer("kind", torch.zeros((), dtype=torch.float64))
    try:
        radius = float(certify(model, [(x, torch.zeros(32).long())], eps=0.0, rounding="proved").radii[20])
    except (TraceError, UnboundedError):
        return
    assert radius <= 2**-0.5 * (1 + 1e-9)
