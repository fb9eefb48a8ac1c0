"""Ways to compute with a tensor, or to read it, that a certifier might not see: bounded as what they do, or refused."""

import copy
import pickle
import random
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from orthogonium import lipschitz_bound
from orthogonium.certification import TraceError
from tests.certification.networks import Fn
from tests.certification.soundness import REFUSALS, sound_or_refused

pytestmark = pytest.mark.operators
D = torch.float64


def double(fn):
    model = Fn(fn)
    model.register_buffer("kind", torch.zeros((), dtype=D))
    return model.eval()


def written(write):
    """A copy of the input, after something was written to it."""

    def fn(x):
        y = x.clone()
        write(y, x)
        return y

    return fn


class Ten(torch.autograd.Function):
    """Its derivative lies."""

    @staticmethod
    def forward(ctx, x):
        return 10 * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class TenInPlace(Ten):
    @staticmethod
    def forward(ctx, x):
        x.mul_(10)
        ctx.mark_dirty(x)
        return x


LIBRARY = torch.library.Library("orthogonium_ways", "DEF")
LIBRARY.define("ten(Tensor x) -> Tensor")
LIBRARY.impl("ten", lambda x: 10 * x, "CompositeExplicitAutograd")
LIBRARY.define("ten_(Tensor(a!) x) -> ()")
LIBRARY.impl("ten_", lambda x: [x.mul_(10), None][1], "CompositeExplicitAutograd")


def by_a_thread(x):
    found = {}
    thread = threading.Thread(target=lambda: found.update(y=10 * x))
    thread.start()
    thread.join()
    return found["y"]


def first(x):
    return torch.zeros(len(x), 4, dtype=torch.long)


WRITES = {
    "out": lambda x: torch.mul(x, 10, out=torch.empty_like(x)),
    "out of another size": lambda x: torch.mul(x, 10, out=torch.empty(0, dtype=D)),
    "out, itself": written(lambda y, x: torch.mul(y, 10, out=y)),
    "out, a part": written(lambda y, x: torch.mul(x[:, :2], 10, out=y[:, :2])),
    "foreach": written(lambda y, x: torch._foreach_mul_([y], 10.0)),
    "fill_diagonal_": written(lambda y, x: y.fill_diagonal_(0.0)),
    "index_add_": written(lambda y, x: y.index_add_(1, torch.zeros(4, dtype=torch.long), x)),
    "index_copy_": written(lambda y, x: y.index_copy_(1, torch.tensor([0, 1]), 10 * x[:, 2:])),
    "scatter_": written(lambda y, x: y.scatter_(1, first(x), 10 * x)),
    "scatter_ that adds": written(lambda y, x: y.scatter_(1, first(x), 10 * x, reduce="add")),
    "put_": written(lambda y, x: y.put_(torch.tensor([0]), 10 * x[0, :1])),
    "masked_fill_ by values": written(lambda y, x: y.masked_fill_(y > 0, 0.0)),
    "masked_scatter_": written(lambda y, x: y.masked_scatter_(torch.tensor([True, False, True, False]), 10 * x)),
    "indices by values": written(lambda y, x: y.__setitem__(y > 0, 0.0)),
    "resize_": written(lambda y, x: y.resize_(len(x), 2)),
    "set_": written(lambda y, x: y.set_(10 * x)),
    "swap_tensors": written(lambda y, x: torch.utils.swap_tensors(y, 10 * x)),
    "storage": written(lambda y, x: y.untyped_storage().copy_((10 * x).untyped_storage())),
    "strides": written(lambda y, x: y.as_strided((len(x), 4), (4, 1)).mul_(10)),
    "function with a derivative": Ten.apply,
    "function in place": written(lambda y, x: TenInPlace.apply(y)),
    "operator of a library": lambda x: torch.ops.orthogonium_ways.ten(x),
    "operator that writes": written(lambda y, x: torch.ops.orthogonium_ways.ten_(y)),
    "operator that writes to a view": written(lambda y, x: torch.ops.orthogonium_ways.ten_(y[:, :2])),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter")
@pytest.mark.parametrize("name", WRITES)
def test_writes(name):
    sound_or_refused(double(WRITES[name]), (4,))


READS = {
    "numpy": lambda x: torch.from_numpy(10 * x.detach().numpy()),
    "dlpack": lambda x: 10 * torch.from_dlpack(x),
    "tolist": lambda x: 10 * torch.tensor(x.tolist(), dtype=D),
    "deepcopy": lambda x: 10 * copy.deepcopy(x),
    "pickle": lambda x: 10 * pickle.loads(pickle.dumps(x)),
    "parameter": lambda x: 10 * nn.Parameter(x),
    "as_tensor": lambda x: 10 * torch.as_tensor(x),
    "checkpoint": lambda x: checkpoint(lambda t: 10 * t, x, use_reentrant=False),
    "vmap": lambda x: torch.vmap(lambda t: 10 * t.flip(0))(x),
    "gradient": lambda x: torch.func.grad(lambda t: (5 * t * t).sum())(x),
    "derivative forwards": lambda x: torch.func.jvp(lambda t: 10 * t, (x,), (x,))[1],
    "cond": lambda x: torch.cond(x.sum() > 0, lambda t: t.clone(), lambda t: 50 * t, (x,)),
    "is_nonzero": lambda x: x if torch.is_nonzero(x.sum()) else 50 * x,
    "allclose": lambda x: x if torch.allclose(x, 0 * x) else 50 * x,
    "any NaN": lambda x: x if not x.isnan().any() else 50 * x,
    "float": lambda x: x * float(x.abs().sum()),
    "embedding": lambda x: F.embedding((2 * x.abs()).long() % 4, torch.eye(4, dtype=D)),
    "one_hot": lambda x: F.one_hot(x.argmax(1), 4).to(x),
    "sparse": lambda x: 10 * x.to_sparse().to_dense(),
    "complex": lambda x: torch.view_as_real(torch.complex(x, 9 * x)).flatten(1),
    "remainder": lambda x: x % 1.0,
    "copysign": lambda x: torch.copysign(torch.ones_like(x), x),
    "samples as channels": lambda x: F.conv1d(x[None], torch.ones(len(x), len(x), 3, dtype=D))[0],
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", READS)
def test_reads(name):
    sound_or_refused(double(READS[name]), (4,))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_other_threads():
    with pytest.raises(REFUSALS):
        lipschitz_bound(double(by_a_thread), (4,))


OTHERWISE = {
    "memory layout": lambda x: [x.flatten(1).div_(8.0), x][1],
    "grad mode": lambda x: x * (3.0 if torch.is_grad_enabled() else 1.0),
    "gradient of the input": lambda x: x * (3.0 if x.requires_grad else 1.0),
    "nine samples": lambda x: x * (3.0 if len(x) == 9 else 1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERWISE)
def test_other_functions_for_the_same_values(name):
    with pytest.raises(TraceError, match="It computes something else"):
        lipschitz_bound(double(OTHERWISE[name]), (3, 4))


def test_a_model_that_runs_in_one_layout_only():
    model = double(lambda x: 2 * x.view(len(x), -1))
    assert lipschitz_bound(model, (3, 4)).value == pytest.approx(2.0)


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_random_numbers_of_others(draw):
    with pytest.raises(TraceError, match="random numbers"):
        lipschitz_bound(double(lambda x: x * (2.0 if draw() < 1e-9 else 1.0)), (4,))


def test_functions_of_python_for_each_entry():
    with pytest.raises(REFUSALS):
        lipschitz_bound(double(lambda x: x.clone().apply_(lambda v: 10 * v)), (4,))
