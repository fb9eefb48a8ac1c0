"""Deployment: plain copies, ONNX, distributed training."""

import io

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from orthogonium.errors import ExportError
from orthogonium.layers import (
    AdaptiveOrthoConv2d,
    AdaptiveOrthoConvTranspose2d,
    MaxMin,
    OrthoLinear,
    UnitNormLinear,
    freeze,
)
from orthogonium.linalg import CAYLEY_ORTHO_PARAMS, DEFAULT_ORTHO_PARAMS, EXP_ORTHO_PARAMS
from tests.processes import run_distributed


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        AdaptiveOrthoConv2d(3, 8, 3),
        MaxMin(),
        AdaptiveOrthoConv2d(8, 8, 3, stride=2, padding=1, padding_mode="zeros"),
        AdaptiveOrthoConvTranspose2d(8, 4, 3, stride=2, padding="same", padding_mode="circular"),
        nn.Flatten(),
        OrthoLinear(4 * 8 * 8, 16),
        MaxMin(),
        UnitNormLinear(16, 10),
    )


def test_freeze_leaves_plain_layers_and_the_original_alone():
    model, x = network(), torch.randn(2, 3, 8, 8)
    expected = model(x)
    plain = freeze(model)
    torch.testing.assert_close(plain(x), expected)
    assert not any("parametrizations" in key for key in plain.state_dict())
    assert any("parametrizations" in key for key in model.state_dict())
    torch.save(plain, io.BytesIO())


@pytest.mark.filterwarnings("ignore")
def test_onnx(tmp_path):
    model, x = network(), torch.randn(2, 3, 8, 8)
    path = str(tmp_path / "model.onnx")
    torch.onnx.export(freeze(model), (x,), path, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(output, model(x).detach().numpy(), atol=1e-4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("preset", [DEFAULT_ORTHO_PARAMS, CAYLEY_ORTHO_PARAMS], ids=["Cholesky", "Cayley"])
@pytest.mark.parametrize("dynamo", [True, False])
def test_onnx_asks_for_plain_weights(preset, dynamo, tmp_path):
    """torch wraps errors that are raised while it traces."""
    layer, path = OrthoLinear(6, 6, ortho_params=preset).eval(), tmp_path / "model.onnx"
    with pytest.raises((ExportError, RuntimeError), match=r"freeze\(model\)") as caught:
        torch.onnx.export(layer, (torch.randn(1, 6),), path, dynamo=dynamo, verbose=False)
    assert isinstance(caught.value.__cause__ or caught.value, ExportError)


@pytest.mark.filterwarnings("ignore")
def test_onnx_computes_exponentials(tmp_path):
    """They are sums and products."""
    layer, x, path = (
        OrthoLinear(6, 4, ortho_params=EXP_ORTHO_PARAMS).eval(),
        torch.randn(3, 6),
        str(tmp_path / "model.onnx"),
    )
    torch.onnx.export(layer, (x,), path, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(output, layer(x).detach().numpy(), atol=1e-5)


def _train(model, x, y):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def _train_half(rank):
    """In a world of two, each with half of the batch, the weights are those of one process with all of it."""
    torch.manual_seed(1)
    x, y = torch.randn(8, 3, 8, 8), torch.randint(10, (8,))
    expected = _train(network(), x, y)
    part = slice(rank * 4, rank * 4 + 4)
    for p, q in zip(_train(DistributedDataParallel(network()), x[part], y[part]), expected, strict=True):
        torch.testing.assert_close(p, q, atol=1e-5, rtol=1e-4)


def test_two_processes_train_like_one(tmp_path):
    run_distributed(_train_half, tmp_path)


def _train_sharded(rank):
    """FSDP2 gathers the raw parameters; the weights are those of one process."""
    torch.manual_seed(1)
    x, y = torch.randn(8, 3, 8, 8), torch.randint(10, (8,))
    expected = _train(network(), x, y)
    model = network()
    mesh = init_device_mesh("cpu", (2,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    part = slice(rank * 4, rank * 4 + 4)
    for p, q in zip(_train(model, x[part], y[part]), expected, strict=True):
        torch.testing.assert_close(p.full_tensor(), q, atol=1e-5, rtol=1e-4)


def test_sharded_training(tmp_path):
    run_distributed(_train_sharded, tmp_path)
