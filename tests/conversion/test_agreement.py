"""`agreement` and `same_class` of kept weights: they see what decides, and nothing else."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from orthogonium import convert
from orthogonium.conversion.agreement import agreement


def dense(*ends):
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4), *ends)


def test_agreement_is_measured():
    plain = dense()
    kept = convert(plain, (1, 4, 4), "spectral", weights="keep")
    assert kept.agreement == pytest.approx(1, abs=1e-6) and "agree to 1.0000" in str(kept)
    assert kept.same_class == 1 and "100.0% of normal inputs" in str(kept)
    other = convert(plain, (1, 4, 4), "spectral", weights="keep", activation="maxmin")
    x = torch.randn(20000, 1, 4, 4)
    with torch.no_grad():
        before, after = plain(x), other.model(x)
    varying = before - before.mean(0)
    factor = (varying * after).sum() / varying.square().sum()
    seen = F.cosine_similarity(varying.flatten(), (after - factor * before.mean(0)).flatten(), dim=0)
    assert other.agreement < 0.99 and abs(other.agreement - seen) < 0.05
    assert abs(other.same_class - (before.argmax(1) == after.argmax(1)).float().mean()) < 0.08  # 512 samples, 4σ
    new = convert(plain, (1, 4, 4))
    assert new.agreement is None and new.same_class is None


class Affine(nn.Module):
    """`factor · x + offset`, as two networks that are compared."""

    def __init__(self, factor=1.0, offset=(0.0, 0.0, 0.0)):
        super().__init__()
        self.factor = factor
        self.register_buffer("offset", torch.tensor(offset))

    def forward(self, x):
        return self.factor * x + self.offset


@pytest.mark.parametrize("offset", [0.0, 10.0, 100.0])
def test_what_does_not_depend_on_the_input_hides_nothing(offset):
    """An offset of all outputs makes any two networks look alike, if it is not taken off."""
    old = Affine(1.0, (offset,) * 3)
    assert agreement(old, Affine(0.3, (0.3 * offset,) * 3), (3,), ()).cosine == pytest.approx(1, abs=1e-4)
    mixed = nn.Sequential(Affine(), nn.Linear(3, 3))
    with torch.no_grad():
        mixed[1].weight.copy_(torch.eye(3)[[1, 2, 0]])
        mixed[1].bias.fill_(offset)
    cosine, same_class = agreement(old, mixed, (3,), ())
    assert abs(cosine) < 0.1 and same_class == 0  # outputs in another order are independent


def test_offsets_and_signs_count():
    """1 means equal up to a positive factor: another offset is an error, as far as it exceeds what varies."""
    measured = [agreement(Affine(), Affine(1.0, (0.0, c, 0.0)), (3,), ()) for c in (0.0, 0.1, 1.0, 30.0)]
    assert [m.cosine for m in measured] == pytest.approx([(1 + c * c / 3) ** -0.5 for c in (0, 0.1, 1, 30)], abs=0.02)
    assert measured[0].same_class == 1 > measured[1].same_class > measured[2].same_class > measured[3].same_class
    assert agreement(Affine(), Affine(-2.0), (3,), ()).cosine == pytest.approx(-1)
    assert agreement(Affine(0.0), Affine(), (3,), ()).cosine == 0


def test_a_bias_of_the_head_hides_nothing():
    torch.manual_seed(2)
    plain = nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 5)
    )  # fmt: skip
    nn.init.constant_(plain[-1].bias, 10.0)
    found = convert(plain, (2, 6, 6), weights="keep")
    x = torch.randn(4000, 2, 6, 6)
    same = (plain(x).argmax(1) == found.model(x).argmax(1)).float().mean()
    assert found.agreement < 0.5 and abs(found.same_class - same) < 0.1
    assert convert(plain, (2, 6, 6), "spectral", weights="keep").agreement > 1 - 1e-6


def as_function(fn):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 4)

        def forward(self, x):
            return fn(self.last(torch.relu(self.first(x))))

    return Net()


def as_module(end):
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4), end)


ENDS = {
    "Softmax": lambda axis: as_module(nn.Softmax(axis)),
    "LogSoftmax": lambda axis: as_module(nn.LogSoftmax(axis)),
    "F.softmax": lambda axis: as_function(lambda x: F.softmax(x, axis)),
    "torch.softmax": lambda axis: as_function(lambda x: torch.softmax(x, dim=axis)),
    "log_softmax": lambda axis: as_function(lambda x: x.log_softmax(axis)),
}


@pytest.mark.parametrize(
    "scale", [1.0, 1000.0]
)  # the second saturates: what goes in is not to be found in what comes out
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(("shape", "axis"), [((6,), 1), ((5, 6), -1), ((5, 6), 1)])
def test_a_softmax_at_the_end(shape, axis, end, scale):
    torch.manual_seed(0)
    plain = ENDS[end](axis).double()
    last = plain.last if hasattr(plain, "last") else plain[2]
    with torch.no_grad():
        last.weight.mul_(scale)
        last.bias.copy_(scale * torch.tensor([0.0, 1.0, 0.0, 0.0]))
    found = convert(plain, shape, "spectral", weights="keep")
    assert found.agreement == pytest.approx(1, abs=1e-9) and found.same_class == 1
    other = convert(plain, shape, weights="keep", activation="maxmin")
    assert -1 <= other.agreement < 0.99 and 0 < other.same_class < 1


def test_a_softmax_without_an_axis():
    with pytest.warns(UserWarning, match="Implicit dimension"):
        found = convert(dense(nn.Softmax()), (1, 4, 4), "spectral", weights="keep")
    assert found.agreement == pytest.approx(1, abs=1e-6) and found.same_class == 1


def test_networks_that_write_into_their_input():
    plain = nn.Sequential(nn.LeakyReLU(0.5, inplace=True), nn.Linear(8, 4))
    found = convert(plain, (8,), "spectral", weights="keep")
    assert found.agreement == pytest.approx(1, abs=1e-6) and found.same_class == 1


def test_outputs_that_are_no_logits_have_no_class():
    for plain, shape in ((nn.Linear(4, 1), (4,)), (nn.Conv2d(1, 2, 3), (1, 5, 5))):
        found = convert(nn.Sequential(plain), shape, "spectral", weights="keep")
        assert found.agreement == pytest.approx(1, abs=1e-6) and found.same_class is None and "%" not in str(found)


def test_agreement_of_outputs_next_to_nothing():
    """Constants of many layers multiply: what is left of the outputs may be far below 1, but not another function."""
    blocks = [nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(4)]
    plain = nn.Sequential(*blocks, nn.Linear(8, 3)).double()
    for factor in (1e-30, 1e-200):
        with torch.no_grad():
            plain[-1].weight.mul_(factor)
            plain[-1].bias.mul_(factor)
        assert convert(plain, (8,), "aol", weights="keep").agreement == pytest.approx(1, abs=1e-6)
