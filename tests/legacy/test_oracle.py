"""The judges must convict: plain layers are neither isometries nor contractions."""

import torch
from torch import nn

from tests.legacy.oracle import jacobian_norm, singular_values, steepest_secant


def test_plain_convolution_is_convicted():
    conv = nn.Conv2d(3, 3, 3, padding=1).double()
    with torch.no_grad():
        conv.weight.mul_(3)
    sigma = singular_values(conv, (3, 5, 5), torch.float64)
    assert sigma.max() > 1.1 and sigma.min() < 0.9


def test_norms_of_known_maps():
    matrix = torch.tensor([[3.0, 0.0], [4.0, 0.0], [0.0, 2.0]])
    assert torch.allclose(
        singular_values(lambda x: x @ matrix.T + 1, (2,), torch.float32).float(), torch.tensor([5.0, 2])
    )
    assert abs(jacobian_norm(lambda x: (x @ matrix.T).sin() / 5, 1e-4 * torch.ones(1, 2)) - 1) < 1e-5


def test_ascent_finds_a_hidden_slope():
    # slope 2 only along one axis, 1 elsewhere: random pairs in 20 dimensions miss it
    gain = torch.ones(20)
    gain[3] = 2
    assert steepest_secant(lambda x: x * gain, (20,), torch.float32) > 1.9
