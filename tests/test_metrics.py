import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from orthogonium.errors import ParameterError
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
    value = CertifiedAccuracy()(logits, labels)
    assert value.shape == () and torch.allclose(value, VRA(logits, labels).mean())


def test_mean_certified_radius_counts_wrong_predictions_as_zero():
    logits, labels = data()
    metric = MeanCertifiedRadius(L=2.0)
    for part in (slice(0, 30), slice(30, 50)):
        metric.update(logits[part], labels[part])
    top = logits.topk(2, dim=1)
    right = top.indices[:, 0] == labels
    radii = torch.where(right, (top.values[:, 0] - top.values[:, 1]) / 4, 0.0)
    assert torch.allclose(metric.compute(), radii.mean())


def test_head_weight_takes_the_place_of_the_type():
    logits, labels = data()
    for by_type, by_weight in [
        (CertifiedAccuracy(EPS, "global"), CertifiedAccuracy(EPS)),
        (MeanCertifiedRadius("global"), MeanCertifiedRadius()),
    ]:
        by_type.update(logits, labels)
        by_weight.update(logits, labels, torch.eye(5))
        assert torch.allclose(by_type.compute(), by_weight.compute())


def test_gradients_stay_outside():
    logits, labels = data()
    metric = MeanCertifiedRadius()
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
    assert run.returncode != 0 and "orthogonium[train]" in run.stderr


def _compare_with_one_process(rank):
    torch.manual_seed(0)
    logits, labels = data()
    mine = slice(0, 37) if rank == 0 else slice(37, 50)
    for build in (lambda: CertifiedAccuracy(EPS), MeanCertifiedRadius):
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
