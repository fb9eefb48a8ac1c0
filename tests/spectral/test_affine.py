import pytest
import torch
from torch import nn

from orthogonium import layers as ol
from orthogonium.errors import ParameterError
from orthogonium.spectral import is_affine, spectrum

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


class Offset(nn.Linear):
    """An affine map with an offset, and a bend."""

    def __init__(self, offset, bend=0.0, size=4):
        super().__init__(size, size)
        nn.init.constant_(self.bias, offset)
        self.bend = bend

    def forward(self, x):
        return super().forward(x) + self.bend * x.relu()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("make", "shape"), [
    (lambda: nn.Linear(6, 4), (6,)),
    (lambda: nn.Linear(300, 200), (300,)),
    (lambda: nn.Conv2d(3, 5, 3, padding=1), (3, 8, 8)),
    (lambda: nn.Conv1d(2, 2, 3), (2, 5)),
    (lambda: nn.Sequential(*[nn.Linear(16, 16) for _ in range(8)]), (16,)),
    (lambda: ol.AdaptiveOrthoConv2d(2, 4, 3, stride=2), (2, 6, 6)),
    (lambda: nn.BatchNorm1d(2).eval(), (2, 5)),
    (lambda: Offset(1e4), (4,)),
])  # fmt: skip
def test_affine_layers_are_recognized(make, shape, dtype):
    assert is_affine(make().to(dtype), shape)


@pytest.mark.parametrize("offset", [1e6, 1e9, 1e20])
def test_offsets_of_any_size(offset):
    for dtype in (torch.float64, torch.float32):
        assert is_affine(Offset(offset).to(dtype), (4,))
        for bend in (99.0, 1.0, 1e-2):
            assert not is_affine(Offset(offset, bend).to(dtype), (4,))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bend", [99.0, 1.0, 0.1, 1e-3])
def test_a_bend_is_seen_in_every_dtype(bend, dtype):
    for offset in (0.0, 1.0, 100.0):
        assert not is_affine(Offset(offset, bend).to(dtype), (4,))


@pytest.mark.parametrize("fn", [
    torch.relu, torch.tanh, torch.abs, torch.square, lambda x: x.clamp(-50, 50), lambda x: x + 1e-2 * torch.relu(x),
    lambda x: x + 1e-3 * x.sin() + 1e6, lambda x: x.round(), lambda x: x.sort(dim=1).values,
    lambda x: x * float("nan"), lambda x: x - x.mean(0), lambda x: x * len(x), lambda x: x.sin() + 1e8,
])  # fmt: skip
def test_what_is_not_affine(fn):
    assert not is_affine(fn, (4,))


def test_constant_and_mixing():
    assert is_affine(lambda x: 0 * x + 3, (4,)) and is_affine(torch.zeros_like, (4,))
    assert not is_affine(nn.BatchNorm1d(2), (2, 5))  # the samples of a batch are not independent


class Applied(nn.Module):
    """A linear map that can only be called."""

    def __init__(self, dtype):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(4, 4, dtype=dtype))

    def forward(self, x):
        return x @ self.matrix


@pytest.mark.parametrize("dtype", DTYPES)
def test_spectra_of_declared_linear_maps(dtype):
    layer = Applied(dtype)
    exact = torch.linalg.matrix_norm(layer.matrix.double(), ord=2).item()
    assert spectrum(layer, (4,), linear=True).sigma_max == pytest.approx(exact, rel=4 * torch.finfo(dtype).eps)
    with pytest.raises(ParameterError, match="not linear"):
        spectrum(nn.Sequential(layer, nn.LeakyReLU(-98)), (4,), linear=True)
