"""Random modules: no bound below the quotient that a search finds; the search itself finds what it must."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import nn

from tests.certification.fuzz.examine import examine, program
from tests.certification.fuzz.judge import Judge, Verdict
from tests.certification.fuzz.runs import main, summary


@pytest.mark.operators
@settings(max_examples=40, database=None, phases=[Phase.generate])  # a smaller seed is no smaller program
@given(st.integers(0, 2**32 - 1))
def test_random_modules_never_exceed_their_bound(seed):
    found = examine(program(seed), thorough=seed % 4 == 0)
    assert found.kind in ("bounded", "refused"), f"{found.kind}: {found.reason}\n{found.program.source}"


@pytest.mark.operators
def test_most_modules_have_a_bound():
    outcomes = [examine(program(seed)) for seed in range(40)]
    bounded = sum(outcome.kind == "bounded" for outcome in outcomes)
    reasons = [outcome.reason for outcome in outcomes if outcome.kind != "bounded" and not outcome.program.tags]
    refused = [reason for reason in reasons if "this version of torch" not in reason]
    assert len(refused) <= 0.1 * (bounded + len(refused)), refused


def test_a_program_is_its_seed():
    first, second = program(11), program(11)
    assert first == second and program(12) != first
    x = torch.randn(3, *first.shape).to(first.dtype)
    with torch.no_grad():
        assert torch.equal(first.load()(x.clone()), second.load()(x.clone()))


def _hidden(x):
    """The gradient says 1, the function says 4."""
    y = x.clone()
    y.data.mul_(4)
    return y


# function on (n, 6), its constant
KNOWN = {
    "identity": (lambda x: x, 1.0),
    "sum": (lambda x: x.sum(1), math.sqrt(6)),
    "bend far away": (lambda x: x + F.pad(F.relu(9 * x[:, :1] - 90), (0, 5)), 10.0),
    "bend near zero": (lambda x: x + 9 * x.clamp(-1e-3, 1e-3), 10.0),
    "hidden from autograd": (_hidden, 4.0),
    "detached": (lambda x: x + (9 * x).detach(), 10.0),
    "sorted": (lambda x: x.sort(dim=1).values, 1.0),
    "norm": (lambda x: x.norm(dim=1), 1.0),
    "oscillating": (lambda x: (5 * x).sin(), 5.0),
    "softmax": (lambda x: (8 * x).softmax(1), 4.0),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_the_search_attains_known_constants(name):
    fn, constant = KNOWN[name]
    judge = Judge(fn, (6,), torch.float64)
    assert judge.verdict(constant).against is None
    found = Judge(fn, (6,), torch.float64).verdict(0.98 * constant)
    assert found.against is not None and found.quotient <= constant * (1 + 1e-9)


def test_a_constant_function_has_no_quotient():
    assert Judge(lambda x: 0 * x, (6,), torch.float64).verdict(1.0) == Verdict(0.0)


UNBOUNDED = {
    "step": lambda x: x + 0.01 * (x > 0.5).to(x),
    "rounding": lambda x: (8 * x).round() / 8,
    "root": lambda x: x.abs().sqrt(),
    "square": lambda x: x.square(),
    "order": lambda x: x.topk(5, dim=1, sorted=False).values,
    "branch": lambda x: torch.where(x.sum(1, keepdim=True) > 1, x, x + 1e-3),
    "batch mean": lambda x: x - x.mean(0),
    "batch size": lambda x: x / len(x),
    "first sample": lambda x: x + 0.1 * x[:1],
    "not a number": lambda x: x / (x.abs() > 0.2),
}  # fmt: skip


@pytest.mark.parametrize("name", UNBOUNDED)
def test_the_search_refutes_functions_without_a_constant(name):
    assert Judge(UNBOUNDED[name], (6,), torch.float64).verdict(200.0 if name == "square" else 20.0).against is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_refutes_nothing(dtype):
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)).to(dtype)
    with torch.no_grad():
        bound = math.prod(float(torch.linalg.matrix_norm(model[i].weight.double(), ord=2)) for i in (0, 2))
    assert Judge(model, (6,), dtype).verdict(bound).against is None
    assert Judge(model, (6,), dtype).verdict(0.1 * bound).against is not None


def test_a_run_reports(capsys):
    outcomes = [(seed, examine(program(seed))) for seed in range(4)]
    assert "modules   4" in summary(outcomes) and "unsound   " in summary(outcomes)
    main(["--seed", "1", "--show"])
    assert "class Model(nn.Module)" in capsys.readouterr().out
