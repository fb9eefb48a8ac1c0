import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn

from orthogonium.errors import GuaranteeWarning, NumericalWarning, ParameterError
from orthogonium.layers import (
    AdaptiveOrthoConv2d,
    AOCLipschitzResBlock,
    LipschitzConv2d,
    OrthoLinear,
    UnitNormLinear,
)
from orthogonium.losses import VRA
from orthogonium.metrics import CertifiedAccuracy, MeanCertifiedRadius
from tests.processes import run_distributed

EPS = [0.0, 36 / 255, 0.5, 1.0]


def data(n=50):
    return 2 * torch.randn(n, 5), torch.randint(5, (n,))


def test_certified_accuracy_of_batches_is_that_of_all_samples():
    logits, labels = data()
    metric = CertifiedAccuracy(EPS, "global", 1.3)
    for part in (slice(0, 30), slice(30, 34), slice(34, 50)):  # a mean of batch means would be wrong
        metric.update(logits[part], labels[part])
    expected = torch.stack([VRA(logits, labels, "global", 1.3, eps).mean() for eps in EPS])
    assert torch.allclose(metric.compute(), expected)
    assert metric.compute()[0] == (logits.argmax(dim=1) == labels).float().mean()
    metric.reset()
    metric.update(logits[:7], labels[:7])
    assert torch.allclose(metric.compute()[1], VRA(logits[:7], labels[:7], "global", 1.3).mean())


def test_single_radius_gives_a_scalar():
    logits, labels = data()
    value = CertifiedAccuracy(last_layer_type="classwise")(logits, labels)
    assert value.shape == () and torch.allclose(value, VRA(logits, labels).mean())


def test_mean_certified_radius_counts_wrong_predictions_as_zero():
    logits, labels = data()
    metric = MeanCertifiedRadius("classwise", L=2.0)
    for part in (slice(0, 30), slice(30, 50)):
        metric.update(logits[part], labels[part])
    top = logits.topk(2, dim=1)
    right = top.indices[:, 0] == labels
    radii = torch.where(right, (top.values[:, 0] - top.values[:, 1]) / 4, 0.0)
    assert torch.allclose(metric.compute(), radii.mean())


def test_head_weight_takes_the_place_of_the_type():
    logits, labels = data()
    for by_type, by_weight in [
        (CertifiedAccuracy(EPS, "global"), CertifiedAccuracy(EPS, "classwise")),
        (MeanCertifiedRadius("global"), MeanCertifiedRadius("classwise")),
    ]:
        by_type.update(logits, labels)
        by_weight.update(logits, labels, torch.eye(5))
        assert torch.allclose(by_type.compute(), by_weight.compute())


def test_gradients_stay_outside():
    logits, labels = data()
    metric = MeanCertifiedRadius("classwise")
    metric.update(logits.requires_grad_(), labels)
    assert not metric.compute().requires_grad


def test_bad_arguments_are_rejected():
    with pytest.raises(ParameterError, match="unknown"):
        CertifiedAccuracy(0.1, "unknown")
    for eps in (-0.1, [], [0.1, -0.1]):
        with pytest.raises(ParameterError, match="radii"):
            CertifiedAccuracy(eps)
    with pytest.raises(ValueError, match="Unexpected keyword"):
        MeanCertifiedRadius(typo=1)


def test_only_metrics_need_torchmetrics_and_say_so():
    code = """
import sys
sys.modules["torchmetrics"] = None  # as if it were not installed
import orthogonium, orthogonium.layers, orthogonium.losses
print("losses work")
import orthogonium.metrics
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout == "losses work\n"
    assert run.returncode != 0 and "pip install '.[train]'" in run.stderr


def _compare_with_one_process(rank):
    torch.manual_seed(0)
    logits, labels = data()
    mine = slice(0, 37) if rank == 0 else slice(37, 50)
    for build in (lambda: CertifiedAccuracy(EPS, "classwise"), lambda: MeanCertifiedRadius("classwise")):
        single = build()
        single.update(logits, labels)
        # Without syncing, the local value; compute() of the other adds up both processes.
        synced = build()
        synced.update(logits[mine], labels[mine])
        single.distributed_available_fn = lambda: False
        assert torch.allclose(synced.compute(), single.compute())
    assert dist.get_world_size() == 2


def test_two_processes_count_every_sample_once(tmp_path):
    run_distributed(_compare_with_one_process, tmp_path)


def test_the_head_is_found_or_assumed_with_a_warning():
    body = [nn.Flatten(), OrthoLinear(12, 8)]
    assert CertifiedAccuracy(EPS, nn.Sequential(*body, OrthoLinear(8, 3))).last_layer_type == "global"
    assert MeanCertifiedRadius(nn.Sequential(*body, UnitNormLinear(8, 3))).last_layer_type == "classwise"
    with pytest.raises(ParameterError, match="head of the model"):
        CertifiedAccuracy(EPS, nn.Sequential(*body, nn.Linear(8, 3)))
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    metric = CertifiedAccuracy(0.1)
    with pytest.warns(GuaranteeWarning, match="assumes 'classwise'") as seen:
        metric.update(logits, labels)
    assert seen[0].filename == __file__  # the caller's line
    metric.update(logits, labels)  # said once
    told = CertifiedAccuracy(0.1)
    told.update(logits, labels, head_weight=torch.eye(3))


def test_warnings_carry_the_line_of_the_caller():
    for make in (
        lambda: AdaptiveOrthoConv2d(4, 4, 3, groups=4),
        lambda: LipschitzConv2d(4, 4, 3, groups=4),
        lambda: AOCLipschitzResBlock(4, 1, 3, groups=4),
    ):
        with pytest.warns(GuaranteeWarning, match="one channel per group") as seen:
            make()
        assert seen[0].filename == __file__
    layer = OrthoLinear(4, 4)
    nn.init.zeros_(layer.parametrizations.weight.original)
    with pytest.warns(NumericalWarning) as told:
        layer(torch.randn(2, 4))
    assert told[0].filename == __file__
