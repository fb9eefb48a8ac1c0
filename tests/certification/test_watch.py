"""What cannot be followed raises, and is never taken for a constant."""

import copy
import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from orthogonium import audit, lipschitz_bound
from orthogonium.certification import TraceError
from orthogonium.errors import ParameterError, ShapeError
from orthogonium.layers import L2NormResidual
from tests.certification.networks import Fn


def ten_times(x):
    return 10.0 * x


with warnings.catch_warnings():  # torch.jit is deprecated, and still around
    warnings.simplefilter("ignore", DeprecationWarning)
    scripted = torch.jit.script(ten_times)


def beyond_reach(steep):
    """`x + relu(steep(x) − 1000)`: no secant near the origin tells that it is not 1-Lipschitz."""
    return Fn(lambda x: x + torch.relu(steep(x) - 1e3)).eval()


@pytest.mark.filterwarnings("ignore:To copy construct:UserWarning")
@pytest.mark.parametrize("steep", [
    scripted,
    torch.vmap(lambda x: 10 * x),
    lambda x: 10 * torch.tensor(x),
    lambda x: 10 * x.as_subclass(torch.Tensor),
    lambda x: 10 * torch.empty(0).set_(x),
    lambda x: 10 * torch.tensor(x.untyped_storage().tolist()[:6]).reshape(2, 3),
    lambda x: 10 * torch.from_dlpack(x),
    lambda x: 10 * torch.as_tensor(np.asarray(x)),
    lambda x: 10 * torch.tensor(x.tolist()),
    lambda x: torch.Tensor.data.__set__(x, 10 * x) or x,
    lambda x: 10 * copy.deepcopy(x),
    lambda x: 10 * nn.Parameter(x),
    lambda x: torch.stack([10 * row for row in x]),
])  # fmt: skip
def test_ways_around_the_walk_are_followed_or_refused(steep):
    try:
        assert lipschitz_bound(beyond_reach(steep), (3,)).value == pytest.approx(11)
    except TraceError:
        with pytest.raises(TraceError):
            audit(beyond_reach(steep), (3,))


def test_the_branch_of_a_residual_is_followed_too():
    bound = lipschitz_bound(nn.Sequential(L2NormResidual(beyond_reach(scripted))).eval(), (3,)).value
    assert bound == pytest.approx(math.sqrt((1 + 11**2) / 2))


def test_compiled_parts_are_walked_as_written():
    inner = nn.Linear(3, 3)
    model = nn.Sequential(torch.compile(inner, backend="eager"), Fn(torch.compile(lambda x: 2 * x, backend="eager")))
    expected = 2 * torch.linalg.matrix_norm(inner.weight.detach().double(), ord=2).item()
    assert lipschitz_bound(model.eval(), (3,)).value == pytest.approx(expected, rel=1e-5)


def test_a_model_that_does_not_run_is_named_with_its_place():
    model = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Unflatten(1, (2, 2)), Fn(lambda x: x @ torch.ones(3, 3))))
    with pytest.raises(ShapeError, match=r"inputs of shape \(4,\).*\(1\.1\)"):
        lipschitz_bound(model.eval(), (4,))


def test_bad_arguments():
    with pytest.raises(ParameterError, match="one sample"):
        lipschitz_bound(nn.Linear(3, 3), 3)
    with pytest.raises(ParameterError, match="Wrap a function"):
        lipschitz_bound(torch.relu, (3,))
    assert audit(nn.ReLU(), (np.int64(3),)).to_json().count('"input_shape"') == 1


def test_parameters_ask_for_gradients_as_before():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)).eval()
    model[0].bias.requires_grad_(False)
    lipschitz_bound(model, (3,))
    assert [p.requires_grad for p in model.parameters()] == [True, False, True, True]
