import pytest
import torch

from orthogonium.errors import ParameterError
from orthogonium.legacy import RKO
from tests.legacy.oracle import singular_values


@pytest.mark.parametrize("k, s", [(3, 1), (3, 2), (4, 2), (5, 2), (4, 3)])
@pytest.mark.parametrize("padding", [0, 2])
def test_overlap_is_divided_out_for_the_worst_kernel(k, s, padding):
    # the constant kernel adds up all its windows: it needs the whole factor
    layer = RKO(1, 1, k, s, padding).double().eval()
    with torch.no_grad():
        layer.weight.fill_(1.0)
    sigma = singular_values(layer, (1, 16, 16), torch.float64).max()
    assert sigma <= 1 + 1e-12
    assert sigma * layer.overlap > 1.2


def test_stride_one_is_nearly_tight():
    layer = RKO(1, 1, 3).double().eval()
    with torch.no_grad():
        layer.weight.fill_(1.0)
    assert singular_values(layer, (1, 20, 20), torch.float64).max() > 0.95


def test_reshaped_kernel_is_orthonormal():
    layer = RKO(3, 5, 3).double().eval()
    matrix = layer.kernel().flatten(1) * layer.overlap
    assert torch.allclose(matrix @ matrix.T, torch.eye(5).double(), atol=1e-12)


def test_refusals():
    with pytest.raises(ParameterError, match="negative"):
        RKO(3, 3, 3, padding=-1)
    with pytest.raises(ParameterError, match="bjorck_iters"):
        RKO(3, 3, 3, bjorck_iters=0)
