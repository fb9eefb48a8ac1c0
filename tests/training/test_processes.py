"""Two processes that share each batch end in the weights of one process with the whole batch."""

import os
from functools import partial

import pytest
import torch
from torch import nn

from orthogonium.layers import BatchCentering, MaxMin, OrthoLinear
from orthogonium.layers.conv import aoc
from orthogonium.training import Recipe
from tests.processes import run_distributed
from tests.training.runs import train

SHARED = Recipe(epochs=2, batch_size=128, augment="shift", optimizer="nesterov", lr=0.05, eps=(0.25,))  # 20 steps
SHARDED = SHARED.replace(epochs=10, batch_size=512)  # 20 steps; one batch of test images


def network():
    return nn.Sequential(
        aoc.AdaptiveOrthoConv2d(1, 8, kernel_size=3, stride=2),
        BatchCentering(8),
        MaxMin(),
        nn.Flatten(),
        OrthoLinear(128, 10),
    )


def _run(folder, recipe, **options):
    torch.manual_seed(0)
    return train(folder, recipe, model=network(), **options)


def _worker(rank, folder, recipe, strategy):
    os.environ |= {
        "TORCHELASTIC_RUN_ID": "test",  # as torchrun does
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
    }
    _run(folder, recipe, devices=2, strategy=strategy)


def _compare(tmp_path, recipe, strategy, tolerance):
    alone = _run(tmp_path / "one", recipe)
    run_distributed(partial(_worker, folder=tmp_path / "two", recipe=recipe, strategy=strategy), tmp_path)
    ours = torch.load(tmp_path / "two" / "last.ckpt", weights_only=True)
    theirs = torch.load(alone.checkpoint, weights_only=True)
    assert ours["global_step"] == theirs["global_step"] == 20
    assert ours["state_dict"].keys() == theirs["state_dict"].keys()
    for name, value in theirs["state_dict"].items():
        torch.testing.assert_close(ours["state_dict"][name], value, atol=tolerance, rtol=0, msg=name)
    for row, other in zip(ours["orthogonium"]["history"], theirs["orthogonium"]["history"], strict=True):
        assert row.keys() == other.keys()
        assert row["train_loss"] == pytest.approx(other["train_loss"], abs=1e-4)
        assert row["val_certified@0.25"] == pytest.approx(other["val_certified@0.25"], abs=0.005)


def test_ddp_equals_one_process(tmp_path):
    _compare(tmp_path, SHARED, "ddp", 1e-5)


def test_ddp_with_accumulated_parts_equals_one_process(tmp_path):
    _compare(tmp_path, SHARED.replace(accumulate=2, clip_norm=1.0), "ddp", 1e-5)


@pytest.mark.slow
def test_fsdp_equals_one_process(tmp_path):
    _compare(tmp_path, SHARDED, "fsdp", 1e-3)
