"""Functions whose bounds were once below the truth, and functions like them: each is bounded soundly or refused."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from orthogonium import lipschitz_bound
from orthogonium.certification import RefutedError, UnboundedError
from tests.certification.networks import Fn
from tests.certification.soundness import REFUSALS, sound_or_refused

pytestmark = pytest.mark.operators


def function(fn, dtype=torch.float64):
    model = Fn(fn)
    model.register_buffer("kind", torch.zeros((), dtype=dtype))
    return model.eval()


T8, MASK = torch.linspace(-3, 3, 8, dtype=torch.float64), torch.tensor([True, False, True, True])


def _written(x):
    x = x.clone()
    x.squeeze_(1)
    return x.sum(1)


def _turned(x):
    x = x.clone()
    x.transpose_(1, 2)
    return x.sum(1)


def _widened(x):
    x = x.clone()
    x.unsqueeze_(1)
    return x.expand(-1, 9, -1).sum(1)


def _swapped(x):
    x = x.clone()
    x.swapaxes_(1, 2)
    return x[:, :1].expand(-1, 9, -1)


def _resized(x):
    x = x.clone()
    x.t_()
    return 3 * x.t()


def _flattened(x):
    y = x.clone().unsqueeze_(1)
    y.squeeze_(1)
    return y.amax(1) + y.sum(1)


# name → function on (n, *shape), shape of a sample
FUNCTIONS = {
    # pooling with powers
    "lp_pool 3": (lambda x: F.lp_pool1d(x, 3.0, 2), (2, 6)),
    "lp_pool 1": (lambda x: F.lp_pool1d(x, 1.0, 3), (2, 6)),
    "lp_pool 5 in 2d": (lambda x: F.lp_pool2d(x, 5.0, 2), (1, 4, 4)),
    "lp_pool ceil": (lambda x: F.lp_pool1d(x, 2.0, 4, ceil_mode=True), (1, 5)),
    "lp_pool ceil in 2d": (lambda x: F.lp_pool2d(x, 2.0, 3, ceil_mode=True), (1, 4, 4)),
    "lp_pool overlapping": (lambda x: F.lp_pool1d(x, 2.0, 4, stride=1), (1, 8)),
    "lp_pool 2.5": (lambda x: F.lp_pool1d(x.abs(), 2.5, 4), (1, 8)),
    "lp_pool of a row": (lambda x: F.lp_pool1d(x, 4.0, 2, ceil_mode=True), (2, 7)),
    # the order of what is not sorted
    "topk unsorted": (lambda x: x.topk(6, dim=1, sorted=False).values, (8,)),
    "topk unsorted smallest": (lambda x: x.topk(5, dim=1, largest=False, sorted=False).values, (8,)),
    "topk unsorted of rows": (lambda x: torch.topk(x, 3, -1, True, False)[0], (2, 6)),
    "topk all unsorted": (lambda x: x.topk(8, sorted=False).values, (8,)),
    "topk unsorted, weighted": (lambda x: x.topk(4, sorted=False).values * T8[:4], (40,)),
    "sort by its indices": (lambda x: x.gather(1, x.argsort(1)) + x.argsort(1).to(x), (5,)),
    # broadcasting by functions that look pointwise
    "clamp to many": (lambda x: x.clamp(min=T8), (1,)),
    "clamp below many": (lambda x: torch.clamp(x, max=T8), (1,)),
    "clamp between many": (lambda x: x.clamp(T8 - 9, T8 + 9), (1,)),
    "clamp_min to many": (lambda x: x.clamp_min(T8), (3, 1)),
    "maximum with many": (lambda x: torch.maximum(x, T8), (1,)),
    "minimum with many": (lambda x: torch.fmin(T8, x), (1,)),
    "where of many": (lambda x: torch.where(T8 > 0, x, 2 * x), (1,)),
    "hypot with many": (lambda x: torch.hypot(x, T8), (1,)),
    "lerp to many": (lambda x: torch.lerp(x, T8, 0.1), (1,)),
    "masked_fill of many": (lambda x: x.expand(-1, 4).masked_fill(MASK, 0.0), (1,)),
    # metadata changed in place
    "squeeze_": (_written, (1, 4)),
    "transpose_": (_turned, (2, 9)),
    "unsqueeze_": (_widened, (4,)),
    "swapaxes_": (_swapped, (2, 3)),
    "t_": (_resized, (4,)),
    "squeeze_ and back": (_flattened, (4,)),
    # pieces that overlap
    "tensor_split overlapping": (lambda x: torch.cat(x.tensor_split([5, 1], 1), 1), (6,)),
    "tensor_split by a tensor": (lambda x: torch.cat(x.tensor_split(torch.tensor([4, 2]), 1), 1), (6,)),
    "tensor_split thrice": (lambda x: torch.cat(x.tensor_split([6, 0, 0], 1), 1), (6,)),
    "boolean index twice": (lambda x: torch.cat([x[:, MASK], x[:, MASK]], 1), (4,)),
    "boolean index and slice": (lambda x: torch.cat([x[:, MASK], x[:, :2]], 1), (4,)),
    "boolean index of the sample": (lambda x: torch.cat([x[:, MASK.reshape(2, 2)], x.flatten(1)], 1), (2, 2)),
    "index with repeats": (lambda x: x[:, [0, 0, 0, 1]], (2,)),
    "windows": (lambda x: x.unfold(1, 3, 1), (6,)),
    "windows by strides": (lambda x: x.contiguous().as_strided((len(x), 4, 3), (6, 1, 1)), (6,)),
    "chunks and slices": (lambda x: torch.cat([*x.chunk(2, 1), x[:, 1:3]], 1), (4,)),
    # factors that depend on the batch
    "times the batch": (lambda x: x * len(x), (3,)),
    "over the batch": (lambda x: 2 * x / x.shape[0], (3,)),
    "first batch size only": (lambda x: x if len(x) in (2, 3) else 50 * x, (3,)),
    "away from two": (lambda x: x * (1 + abs(x.size(0) - 2)), (3,)),
    "mean over the batch": (lambda x: x - x.mean(0), (3,)),
    "largest of the batch": (lambda x: torch.minimum(x, x.amax()), (3,)),
    "copies by the batch": (lambda x: x.repeat(1, 3) / math.sqrt(x.shape[0]), (3,)),
    "neighbours in the batch": (lambda x: x + x.roll(1, 0), (3,)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    fn, shape = FUNCTIONS[name]
    # Code that asks for the batch sizes of the certifier can be found out by other sizes only.
    refusals = (*REFUSALS, RefutedError) if name == "first batch size only" else REFUSALS
    sound_or_refused(function(fn), shape, refusals=refusals)


# Positions are computed in the format of the input: single precision copies some pixels once more.
RESIZED = {
    "94 times": (nn.Upsample(scale_factor=94), (1, 3)),
    "47 times": (nn.Upsample(scale_factor=47.0), (2, 5)),
    "2.3 times": (lambda x: F.interpolate(x, scale_factor=2.3), (1, 13)),
    "exactly 9.7 times": (lambda x: F.interpolate(x, scale_factor=9.7, mode="nearest-exact"), (1, 13)),
    "to a size": (lambda x: F.interpolate(x, size=94), (1, 9)),
    "images": (lambda x: F.interpolate(x, scale_factor=(47, 3.1)), (1, 2, 3)),
    "linearly": (lambda x: F.interpolate(x, scale_factor=7.3, mode="linear"), (1, 7)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", RESIZED)
def test_resizing(name, dtype):
    fn, shape = RESIZED[name]
    sound_or_refused(function(fn, dtype), shape, dtype)


SOFTPLUS = {
    "default": (1.0, 20.0), "low threshold": (1.0, 5.0), "wide": (0.1, 20.0), "steep": (10.0, 20.0),
    "at once": (2.0, 1.0),
    "never": (1.0, 60.0),
}  # fmt: skip


@pytest.mark.parametrize("name", SOFTPLUS)
def test_softplus_jumps_at_its_threshold(name):
    beta, threshold = SOFTPLUS[name]
    edge = torch.tensor(threshold / beta, dtype=torch.float64)
    above = edge
    for _ in range(8):
        above = torch.nextafter(above, edge + 1)
    pairs = [(edge[None], above[None]), (edge[None] - 1e-13, above[None])]
    model = function(nn.Softplus(beta, threshold))
    jump = F.softplus(edge, beta, threshold) - F.softplus(above, beta, threshold)
    sound_or_refused(model, (1,), pairs=pairs if abs(jump) > 1e-14 * (1 + edge) else ())


HALF = {
    "bfloat16": lambda x: x.bfloat16().to(x.dtype),
    "float16": lambda x: x.half().to(x.dtype),
    "product in bfloat16": lambda x: (x.bfloat16() * 0.5).to(x.dtype),
    "float32 in float64": lambda x: x.double().float().to(x.dtype),
    "autocast": lambda x: _autocast(x),
    "to an integer": lambda x: (256 * x).to(torch.int32).to(x.dtype) / 256,
    "float8": lambda x: x.to(torch.float8_e5m2).to(x.dtype),
}


def _autocast(x):
    with torch.autocast("cpu", torch.bfloat16):
        return (x @ torch.eye(x.shape[1], dtype=x.dtype)).to(x.dtype)


@pytest.mark.parametrize("name", HALF)
def test_steps_of_coarse_formats(name):
    """Refused, or bounded up to the steps that rounding makes of a function."""
    dtype = torch.float64 if "float64" in name else torch.float32
    model = function(HALF[name], dtype)
    bound = sound_or_refused(model, (3,), dtype)
    assert bound is None or bound >= 0.999


LIBRARY = torch.library.Library("orthogonium_tests", "DEF")
for _name, _fn in {"relu": lambda x: 10 * x, "linear": lambda x: 7 * x, "clone": lambda x: 4 * x.clone()}.items():
    LIBRARY.define(f"{_name}(Tensor x) -> Tensor")
    LIBRARY.impl(_name, _fn, "CompositeExplicitAutograd")
LIBRARY.define("add(Tensor x, Tensor y) -> Tensor")
LIBRARY.impl("add", lambda x, y: 10 * x + y, "CompositeExplicitAutograd")


def relu(x):
    return 10 * x


class ReLU(nn.ReLU):
    def forward(self, input):
        return 10 * input


NAMES = {
    "relu of another library": lambda x: torch.ops.orthogonium_tests.relu(x),
    "linear of another library": lambda x: torch.ops.orthogonium_tests.linear(x),
    "clone of another library": lambda x: torch.ops.orthogonium_tests.clone(x),
    "add of another library": lambda x: torch.ops.orthogonium_tests.add(x, x),
    "elu with a scale": lambda x: torch.ops.aten.elu(x, 1.0, 10.0, 1.0),
    "elu with an input scale": lambda x: torch.ops.aten.elu(x, 2.0, 1.0, 10.0),
    "leaky_relu by its operator": lambda x: torch.ops.aten.leaky_relu.default(x, 10.0),
    "hardtanh by its operator": lambda x: 10 * torch.ops.aten.hardtanh(x, -9.0, 9.0),
    "a function named relu": relu,
    "a class named ReLU": ReLU(),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_prove_nothing(name):
    sound_or_refused(function(NAMES[name]), (4,))


def test_roots_of_squares_of_indices_have_no_bound():
    """Known patterns do not hide that what they were applied to jumps."""

    class Model(nn.Module):
        def forward(self, x):
            return F.lp_pool1d(x.argsort(-1).to(x), 2, 2)

    with pytest.raises(UnboundedError, match="argsort|sort|Indices"):
        lipschitz_bound(Model(), (2, 4))


def test_samples_alone_are_compared():
    """`flatten` of a transposed image is a view for one sample and a copy for several: the write is lost or not."""

    class Model(nn.Module):
        def forward(self, x):
            x = x.clone()
            x.transpose(0, 1).flatten(0, 1).mul_(3)
            return x

    alone, among = (Model()(torch.ones(n, 2, 3))[0] for n in (1, 2))
    assert not torch.equal(alone, among)
    with pytest.raises((RefutedError, *REFUSALS)):
        lipschitz_bound(Model(), (2, 3))
