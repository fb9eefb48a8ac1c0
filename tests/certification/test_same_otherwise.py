"""Models that compute something else in another memory layout, mode or batch, or with other random numbers."""

import random

import numpy as np
import pytest
import torch

from orthogonium import lipschitz_bound
from orthogonium.certification.failures import TraceError
from tests.certification.networks import Fn


def _scaled_in_place(x):
    x.flatten(1).div_(8.0)  # a copy, where the image is not contiguous
    return x.flatten(1)


OTHERWISE = {
    "layout": _scaled_in_place,
    "gradients": lambda x: x * (3 if torch.is_grad_enabled() else 1),
    "leaf": lambda x: x * (3 if x.requires_grad else 1),
    "inference": lambda x: x * (3 if torch.is_inference_mode_enabled() else 1),
    "batch": lambda x: x + 1e-4 * len(x),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_refused(name):
    with pytest.raises(TraceError, match="something else"):
        lipschitz_bound(Fn(OTHERWISE[name]).eval(), (3, 4, 4))


@pytest.mark.parametrize("draw", [random.random, np.random.rand], ids=["python", "numpy"])
def test_random_numbers_from_elsewhere(draw):
    with pytest.raises(TraceError, match="random numbers"):
        lipschitz_bound(Fn(lambda x: x * (2 if draw() < 0.02 else 1)).eval(), (4,))


def test_models_that_take_one_layout_only():
    model = Fn(lambda x: x.view(len(x), -1) / 2).eval()
    assert lipschitz_bound(model, (3, 4, 4)).value == pytest.approx(0.5)
