"""Everything a network is made of beside its constrained layers survives export, in one chain."""

import warnings

import pytest
import torch
from torch import nn

from orthogonium.layers import custom_activations as act
from orthogonium.layers.channel_shuffle import ChannelShuffle
from orthogonium.layers.global_pooling import GlobalL2NormPool, ScaledAdaptiveAvgPool
from orthogonium.layers.normalization import BatchCentering, BatchLipNorm, LayerCentering
from orthogonium.layers.pooling import L2NormPool2d, ScaledAvgPool2d, ScaledMaxPool2d
from orthogonium.layers.residual import (
    AdditiveResidual,
    ConcatResidual,
    L2NormResidual,
    PrescaledAdditiveResidual,
)
from orthogonium.layers.shape import InvertibleDownsampling, InvertibleUpsampling, IsometricPad


def everything():
    """From (n, 8, 10, 10) to (n, 16)."""
    activations = [
        act.Abs(),
        act.MaxMin(),
        act.ReLUMaxMin(),
        act.GroupSort(2),
        act.GroupSort(4),
        act.FullSort(),
        act.HouseHolder(8),
        act.HouseHolder_Order_2(8),
        act.NActivation(8),
        act.SoftHuber(),
    ]
    norms = [BatchCentering(8), BatchLipNorm(8), LayerCentering(8)]
    residuals = [ConcatResidual, L2NormResidual, AdditiveResidual, PrescaledAdditiveResidual]
    shapes = [IsometricPad(1, "circular"), InvertibleDownsampling(2), ChannelShuffle(2, 4), InvertibleUpsampling(2)]
    pools = [ScaledAvgPool2d(2), L2NormPool2d(2, 1), ScaledMaxPool2d(2, 1), ScaledAdaptiveAvgPool(2), act.CReLU()]
    wrapped = [wrapper(nn.Tanh()) for wrapper in residuals]
    return nn.Sequential(*activations, *norms, *wrapped, *shapes, *pools, GlobalL2NormPool()).eval()


def test_torch_export_keeps_the_batch_free():
    model, x = everything(), torch.randn(2, 8, 10, 10)
    batch = torch.export.Dim("n", min=2, max=64)
    exported = torch.export.export(model, (x,), dynamic_shapes=({0: batch},)).module()
    x = torch.randn(5, 8, 10, 10)
    assert torch.allclose(exported(x), model(x), atol=1e-6)


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # torch's own, at the first jvp
def test_function_transforms():
    """Forward and reverse mode agree, under vmap too."""
    model, x = everything().double(), torch.randn(3, 8, 10, 10, dtype=torch.float64)
    direction, cotangent = torch.randn_like(x), torch.randn(3, 16, dtype=torch.float64)
    _, moved = torch.func.jvp(model, (x,), (direction,))
    _, pullback = torch.func.vjp(model, x)
    assert torch.allclose((moved * cotangent).sum(), (direction * pullback(cotangent)[0]).sum())
    singly = torch.func.vmap(lambda one: model(one[None])[0])(x)
    assert torch.allclose(singly, model(x))


@pytest.mark.slow
def test_onnx(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model, x = everything(), torch.randn(2, 8, 10, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter
        torch.onnx.export(model, (x,), dynamo=True, verbose=False).save(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert torch.allclose(torch.from_numpy(y), model(x), atol=1e-5)
