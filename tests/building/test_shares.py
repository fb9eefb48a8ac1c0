"""Two processes that share their builds train as one process does on the whole batch."""

import warnings
from contextlib import nullcontext
from copy import deepcopy
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from orthogonium import build_once
from orthogonium.building.shares import assign
from orthogonium.errors import DerivativeError, ParameterError
from orthogonium.layers import AdaptiveOrthoConv2d, OrthoLinear
from orthogonium.models import create_model
from orthogonium.recipes.presets import PRESETS
from tests.building.passes import accumulate, assert_same_gradients, gradients, move, plain_gradients
from tests.models.cases import small
from tests.processes import run_distributed

STEPS, BATCH, PARTS = 20, 16, 2


DIGITS = {torch.float64: 1e-9, torch.float32: 1e-5}
RATES = {torch.float64: 0.05, torch.float32: 0.01}  # large steps lift rounding errors from step to step


def make(name):
    """The network of the preset `digits`, or a residual one."""
    torch.manual_seed(0)
    if name == "digits":
        return create_model(PRESETS[name].model, (1, 8, 8), 10, **PRESETS[name].model_options)
    return small(name)[0]


def batch(name, step, dtype):
    generator = torch.Generator().manual_seed(step)
    labels = torch.randint(10 if name == "digits" else 5, (BATCH,), generator=generator)
    return torch.randn(BATCH, 1, 8, 8, generator=generator).to(dtype), labels


def train(name, dtype, rank=0, size=1, group=None, wrap=lambda model: model):
    """Steps on a share of each batch, in two parts; gradients accumulate."""
    model = make(name).to(dtype)
    called = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATES[dtype], momentum=0.9)
    for step in range(STEPS):
        # Statistics of a batch are those of the parts of all processes at a time.
        x, y = ([part.chunk(size)[rank] for part in t.chunk(PARTS)] for t in batch(name, step, dtype))
        optimizer.zero_grad()
        with build_once(model, group):
            for i, (a, b) in enumerate(zip(x, y, strict=True)):
                waits = isinstance(called, DistributedDataParallel) and i < PARTS - 1
                with called.no_sync() if waits else nullcontext():
                    (cross_entropy(called(a), b) / PARTS).backward()
        optimizer.step()
    return {key: value.clone() for key, value in model.state_dict().items()}


def compare(ours, expected, atol):
    for key, value in expected.items():
        if value.is_floating_point():
            torch.testing.assert_close(ours[key], value, rtol=0, atol=atol, msg=lambda m, key=key: f"{key}: {m}")


def _worker(rank, name, dtype, wrapped, folder):
    torch.set_num_threads(1)
    group = None if wrapped == "ddp alone" else dist.group.WORLD
    ours = train(name, dtype, rank, 2, group, *([DistributedDataParallel] if "ddp" in wrapped else []))
    torch.save(ours, folder / f"{rank}.pt")


@pytest.mark.parametrize(
    ("wrapped", "dtype"),
    [
        ("shares", torch.float64),
        ("shares", torch.float32),
        ("shares in ddp", torch.float64),
        ("ddp alone", torch.float64),
    ],
)
@pytest.mark.parametrize("name", ["digits", "lip_resnet_tiny"])
def test_two_processes_train_as_one(name, wrapped, dtype, tmp_path):
    expected = train(name, dtype)
    run_distributed(partial(_worker, name=name, dtype=dtype, wrapped=wrapped, folder=tmp_path), tmp_path)
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    compare(ranks[0], expected, DIGITS[dtype])
    assert all(torch.equal(ranks[0][key], ranks[1][key]) for key in expected)


class _Net(nn.Module):
    """Weights of several kinds and dtypes, tied raw parameters, plain layers, and a branch that only rank 0 takes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem = AdaptiveOrthoConv2d(3, 4, 3, stride=2)
        self.dense = nn.ModuleList([OrthoLinear(36, 36) for _ in range(3)])
        self.tied = OrthoLinear(36, 36)
        self.tied.parametrizations.weight.original = self.dense[0].parametrizations.weight.original
        self.frozen = OrthoLinear(36, 36).requires_grad_(False)
        self.branch, self.plain, self.unused = OrthoLinear(36, 36), nn.Linear(36, 36), nn.Linear(2, 2)
        self.wide = OrthoLinear(36, 5)
        move(self)
        self.double()
        self.wide.float()

    def forward(self, x, branch):
        x = self.stem(x).flatten(1)
        for layer in (*self.dense, self.tied, self.frozen):
            x = layer(x).sin()
        if branch:
            x = self.plain(self.branch(x)).sin()
        return self.wide(x.float())


def _mixed(rank):
    torch.set_num_threads(1)
    model, plain = _Net(), _Net()
    inputs = [torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(i)).double() for i in range(4)]
    for x, takes_branch in zip(inputs, (True, True, False, False), strict=True):
        (plain(x, takes_branch).square().sum() / 2).backward()
    calls = []
    model.stem.parametrizations.weight.original0.register_post_accumulate_grad_hook(calls.append)
    with build_once(model, dist.group.WORLD):
        for x in inputs[2 * rank : 2 * rank + 2]:
            model(x, rank == 0).square().sum().backward()
    assert_same_gradients(gradients(model), gradients(plain), 1e-5)
    assert len(calls) == 1
    # A block that ends by an exception communicates nothing; the next one works.
    before = gradients(model)
    with pytest.raises(KeyError), build_once(model, dist.group.WORLD):
        raise KeyError
    assert gradients(model) == before


def _beside_weights(rank):
    """Gradients of raw parameters from a pass before the block, and from a penalty that one rank adds."""
    torch.manual_seed(0)
    model = move(nn.Sequential(OrthoLinear(4, 4), OrthoLinear(4, 4)).double())
    raw, inputs = model[0].parametrizations.weight.original, torch.randn(2, 3, 4).double()
    for part, x in enumerate(inputs):
        ((2 * model(x).sin().sum() + part * (x @ raw).square().sum()) / 2).backward()
    expected = gradients(model)
    model.zero_grad()
    x = inputs[rank]
    model(x).sin().sum().backward()
    with build_once(model, dist.group.WORLD):
        (model(x).sin().sum() + rank * (x @ raw).square().sum()).backward()
    assert_same_gradients(gradients(model), expected, 1e-12)


def _mistakes(rank):
    torch.set_num_threads(1)
    world = dist.group.WORLD
    model = nn.Sequential(OrthoLinear(4, 4), OrthoLinear(4, 4))
    with pytest.raises(ParameterError, match="differ among ranks"), build_once(move(deepcopy(model)), world):
        raise AssertionError
    torch.manual_seed(0)
    model = nn.Sequential(OrthoLinear(4, 4), OrthoLinear(4, 4))
    for change in (lambda raw: raw.copy_(raw.flip(0)), lambda raw: raw[0].add_(1e-6), lambda raw: raw.neg_()):
        other = deepcopy(model)
        with torch.no_grad():
            change(other[1].parametrizations.weight.original if rank else torch.zeros(4, 4))
        with pytest.raises(ParameterError, match="differ among ranks"), build_once(other, world):
            raise AssertionError
    other = deepcopy(model)
    other[0].lipschitz = 1.0 + rank
    with pytest.raises(ParameterError, match="differ among ranks"), build_once(other, world):
        raise AssertionError
    hook = model[0].bias.register_post_accumulate_grad_hook(lambda p: None)
    with pytest.raises(ParameterError, match="0.bias"), build_once(model, world):
        raise AssertionError
    hook.remove()
    with pytest.raises(ParameterError, match="another block"), build_once(model), build_once(model, world):
        raise AssertionError
    with pytest.raises(DerivativeError), build_once(model, world):
        torch.optim.SGD(model.parameters(), lr=1.0).step()
    model[1].parametrizations.weight[0].kernel.weight_shape = None
    with pytest.raises(ParameterError, match="weight_shape"), build_once(model, world):
        raise AssertionError


def _sharded_parameters(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(OrthoLinear(4, 4), OrthoLinear(4, 4))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    for group in (None, dist.group.WORLD):
        with pytest.raises(ParameterError, match="FSDP"), build_once(model, group):
            raise AssertionError


def _flat_parameters(rank):
    from torch.distributed.fsdp import FullyShardedDataParallel

    for keeps in (False, True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch
            model = nn.Sequential(OrthoLinear(4, 4), nn.Linear(4, 4))
            model = FullyShardedDataParallel(model, use_orig_params=keeps, device_id=torch.device("cpu"))
        for part in (model, model.module):
            with pytest.raises(ParameterError, match="FSDP"), build_once(part):
                raise AssertionError


def _unused_parameters(rank):
    """Of which `DistributedDataParallel` would not average the gradients."""
    model = nn.Sequential(OrthoLinear(4, 4), nn.Linear(4, 4))
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    for group in (None, dist.group.WORLD):
        with pytest.raises(ParameterError, match="find_unused_parameters"), build_once(model, group):
            wrapped(torch.randn(2, 4))


@pytest.mark.parametrize(
    "worker", [_mixed, _beside_weights, _mistakes, _sharded_parameters, _flat_parameters, _unused_parameters]
)
def test_workers(worker, tmp_path):
    run_distributed(worker, tmp_path)


def _one(rank):
    model = nn.Sequential(OrthoLinear(4, 4), nn.ReLU(), OrthoLinear(4, 3)).double()
    inputs = [torch.randn(2, 4).double() for _ in range(3)]
    expected = plain_gradients(model, inputs)
    with build_once(model, dist.group.WORLD):
        accumulate(model, inputs)
    assert_same_gradients(gradients(model), expected, 1e-12)


def _hooked(rank):
    """Hooks of raw parameters see the sum of all gradients once."""
    model = nn.Sequential(OrthoLinear(4, 4), OrthoLinear(4, 3)).double()
    inputs, calls = [torch.randn(2, 4).double() for _ in range(3)], []
    expected = plain_gradients(model, inputs)
    model[1].parametrizations.weight.original.register_hook(lambda g: calls.append("gradient") or 2 * g)
    with build_once(model, dist.group.WORLD):
        accumulate(model, inputs)
    found = gradients(model)
    found["1.parametrizations.weight.original"] /= 2
    assert calls == ["gradient"]
    assert_same_gradients(found, expected, 1e-12)


@pytest.mark.parametrize("worker", [_one, _hooked])
def test_a_group_of_one(worker, tmp_path):
    run_distributed(worker, tmp_path, size=1)


def test_shares_are_balanced():
    owners = assign([7] * 9 + [1] * 30, 3)
    loads = [sum((7 if i < 9 else 1) for i, owner in enumerate(owners) if owner == rank) for rank in range(3)]
    assert loads == [31, 31, 31]
    assert assign([], 2) == [] and assign([1], 3) == [0]
