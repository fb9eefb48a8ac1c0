"""Operations that repeat entries are divided by their constant, or named: nothing expands in silence."""

import math

import pytest
import torch
from torch import nn

import orthogonium
from orthogonium import convert
from orthogonium.conversion.expansion import expansions
from orthogonium.layers import ConvexSum, OrthoLinear, Scale, UnitConcat
from tests.conversion.test_kept_function import largest_error


class Behind(nn.Module):
    """A dense layer, code, and a dense layer, with an index and a row beside them."""

    def __init__(self, code, inner=4, outer=4):
        super().__init__()
        self.a, self.b, self.code = nn.Linear(6, inner), nn.Linear(outer, 3), code
        self.register_buffer("i", torch.tensor([0, 1, 1, 1]))
        self.register_buffer("row", torch.linspace(-1, 1, 4).view(1, 4))
        with torch.no_grad():
            self.a.weight.mul_(10.0)

    def forward(self, x):
        return self.b(self.code(self, self.a(x)))


REPEATED = {
    "list": lambda: Behind(lambda s, y: y[:, [0, 0, 0, 0]]),
    "buffer": lambda: Behind(lambda s, y: y[:, s.i]),
    "tensor": lambda: Behind(lambda s, y: y[:, torch.tensor([3, 2, 2, 0])]),
    "index_select": lambda: Behind(lambda s, y: torch.index_select(y, 1, s.i)),
    "permutation": lambda: Behind(lambda s, y: y[:, [3, 1, 0, 2]]),
    "cat with itself": lambda: Behind(lambda s, y: torch.cat([y, y], 1), 2),
    "stack": lambda: Behind(lambda s, y: torch.stack([y, y], 1).flatten(1), 2),
    "broadcast buffer": lambda: Behind(lambda s, y: y + s.row, 1),
    "broadcast, subtracted from": lambda: Behind(lambda s, y: s.row - y, 1),
    "factor": lambda: Behind(lambda s, y: torch.add(1.0, y, alpha=3)),
    "expand": lambda: Behind(lambda s, y: y.expand(-1, 4), 1),
}


@pytest.mark.parametrize("name", REPEATED)
def test_entries_that_are_repeated(name):
    plain = REPEATED[name]()
    for options in ({}, {"activation": "keep"}):
        found = convert(plain, (6,), **options)
        assert found.refused == () and found.bound <= 1 + 1e-4
    error, refused = largest_error(plain, (6,))
    assert error <= 1e-5 and refused == ()


def test_a_factor_on_a_learned_tensor_is_refused():
    plain = Behind(lambda s, y: torch.add(s.row, y, alpha=3))
    assert [refusal.operation for refusal in convert(plain, (6,)).refused] == ["add"]


def test_samples_that_a_constant_would_multiply_are_refused():
    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4)
            self.register_buffer("rows", torch.ones(3, 1, 4))

        def forward(self, x):
            return (self.a(x) + self.rows).transpose(0, 1)

    found = convert(Rows(), (4,))
    assert [refusal.name for refusal in found.refused] == ["add"] and "along the samples" in found.refused[0].reason


def test_what_brings_the_bound_above_the_constant_is_named():
    model = nn.Sequential(OrthoLinear(4, 4, lipschitz=3.0), nn.ReLU(), OrthoLinear(4, 2))
    found = convert(model, (4,))
    assert found.model.get_submodule("0").lipschitz == 3 and found.bound == pytest.approx(3, rel=1e-4)
    (refusal,) = found.refused
    assert expansions(found.model.eval(), (4,), found.bound, 1.0, []) == [refusal]
    assert refusal.name == "0" and "factor 3" in refusal.reason and "instead of 1" in refusal.reason
    assert expansions(found.model, (4,), found.bound, 1.0, [refusal]) == []
    assert expansions(found.model, (4,), 1.0005, 1.0, []) == [] == expansions(found.model, (4,), math.inf, 1.0, [])


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = OrthoLinear(4, 4)

    def forward(self, x):
        return x + self.a(x)


def test_sums_are_named_as_what_expands():
    found = expansions(Residual().eval(), (4,), 2.0, 1.0, [])
    assert found and all("2 instead of 1" in refusal.reason for refusal in found)


CONCATENATED = {
    "axis": lambda a, b: torch.cat([a, b], axis=1),
    "tensors and axis": lambda a, b: torch.concat(tensors=(a, b), axis=-1),
    "dim before tensors": lambda a, b: torch.cat(dim=1, tensors=[a, b]),
    "concatenate": lambda a, b: torch.concatenate([a, b], axis=1),
}


class Branches(nn.Module):
    def __init__(self, join):
        super().__init__()
        self.a, self.b, self.join = nn.Linear(6, 2), nn.Linear(6, 2), join

    def forward(self, x):
        return self.join(self.a(x), self.b(x))


@pytest.mark.parametrize("name", CONCATENATED)
def test_concatenations_by_any_name_of_the_axis(name):
    plain = Branches(CONCATENATED[name])
    found = convert(plain, (6,))
    assert found.refused == () and found.bound <= 1 + 1e-4
    assert found.model(torch.randn(5, 6)).shape == (5, 4)
    error, refused = largest_error(plain, (6,))
    assert error <= 1e-5 and refused == ()


SPELLED = {
    "softmax of an axis": lambda y: torch.softmax(y, axis=1),
    "softmax of x": lambda y: torch.softmax(input=y, dim=1),
    "method": lambda y: y.log_softmax(axis=-1),
}


@pytest.mark.parametrize("name", SPELLED)
def test_a_softmax_at_the_end_by_any_spelling(name):
    found = convert(nn.Sequential(nn.Linear(6, 4), Code(SPELLED[name])), (6,))
    assert found.refused == () and found.changes[-1].after == "Identity()"


class Code(nn.Module):
    def __init__(self, code):
        super().__init__()
        self.code = code

    def forward(self, x):
        return self.code(x)


SUMS = {
    "other": lambda a, b: torch.add(input=a, other=b),
    "method": lambda a, b: a.add(other=b),
    "x2": lambda a, b: torch.add(a, x2=b),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_by_any_spelling(name):
    found = convert(Branches(SUMS[name]), (6,))
    assert found.refused == () and found.bound <= 1 + 1e-4 and "ConvexSum" in str(found.changes)


class Keywords(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.act, self.b = nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)

    def forward(self, x):
        return self.b(input=self.act(input=self.a(input=x)))


def test_modules_that_are_called_by_keyword():
    with torch.inference_mode():
        assert len(convert(Keywords(), (6,)).changes) == 3
    found = convert(Keywords(), (6,))
    assert found.refused == () and found.bound <= 1 + 1e-4 and found.changes[1].after == "MaxMin()"


class Blamed(nn.Module):
    """A layer that expands behind a join of branches with unequal bounds."""

    def __init__(self, join):
        super().__init__()
        self.small, self.large, self.join, self.loud = Scale(0.1), Scale(0.9), join, Scale(3.0)

    def forward(self, x):
        return self.loud(self.join(self.small(x), self.large(x)))


@pytest.mark.parametrize("join", [ConvexSum([1, 1]), UnitConcat(2, 1)])
def test_joins_are_not_blamed_for_the_smaller_of_their_branches(join):
    found = orthogonium.audit(Blamed(join), (4,))
    rows = {row.name: row for row in found.rows}
    assert not found.warnings and rows["join"].contribution <= 1 and rows["loud"].contribution == pytest.approx(3)
    found = convert(Blamed(join), (4,), "aol")
    assert not any(r.name == "join" for r in found.refused)
