"""Parameters sharded over two processes (FSDP2) end in the values that one process finds with the whole batch."""

from functools import partial

import pytest
import torch
from torch import nn

from orthogonium.models import list_models
from tests.models.cases import small
from tests.processes import run_distributed

FEW = ["aocnet_v1", "lip_resnet_tiny", "sllxbcop_resnet50"]
STEPS, BATCH = 2, 4


def train(name, share, prepare=lambda model: model):
    """The parameters after a few steps on the images of `share` of each batch."""
    torch.manual_seed(0)
    model, shape = small(name)
    images, labels = torch.rand(STEPS, BATCH, *shape), torch.randint(5, (STEPS, BATCH))
    model = prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in zip(images[:, share], labels[:, share], strict=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(4 * model(x), y).backward()
        optimizer.step()
    return model.state_dict()


def shard(model):
    """The parts of the model, then what is left of it."""
    from torch.distributed.fsdp import fully_shard

    for part in model.children():
        if any(True for _ in part.parameters()):
            fully_shard(part)
    return fully_shard(model)


def _worker(rank, names, folder):
    torch.set_num_threads(1)
    for name in names:
        found = train(name, slice(rank, None, 2), shard)
        whole = {key: t.full_tensor() if hasattr(t, "full_tensor") else t for key, t in found.items()}
        if rank == 0:
            torch.save(whole, folder / f"{name}.pt")


@pytest.mark.parametrize(
    "names", [FEW, pytest.param(sorted({*list_models()} - {*FEW}), marks=pytest.mark.slow)], ids=["few", "rest"]
)
def test_shards_train_as_one_process(names, tmp_path):
    run_distributed(partial(_worker, names=names, folder=tmp_path), tmp_path)
    for name in names:
        found = torch.load(tmp_path / f"{name}.pt", weights_only=True)
        expected = train(name, slice(None))
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, atol=1e-5, rtol=1e-5, msg=f"{name}: {key}")
